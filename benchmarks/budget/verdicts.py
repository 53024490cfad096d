"""What measured points say: which budgets do not hold, and which ways another one beats in peak and in time."""

import statistics

SCRATCH = 0.02  # of a peak: what PyTorch's convolution takes for itself, beyond what it says
# What the counter finds in any plan besides: autograd's nodes and Python's objects around tensors.
AROUND_BYTES = 256 << 10


def faults_of_budgets(result):
    """What does not hold of a model's budgets (check.py), in words."""
    model, before = result["model"], None
    for row in result["rows"]:
        asked = row["asked_bytes"]
        where = f"{model} at {asked:,} bytes"
        if row["planned_bytes"] > asked:
            yield f"{where}: {row['planned_bytes']:,} are planned"
        if row["measured_bytes"] > allowed(asked, result["external_bytes"]):
            yield f"{where}: {row['measured_bytes']:,} are used"
        if not row["same_bits"]:
            yield f"{where}: loss or gradients are other bits than without a budget"
        if before and row["planned_bytes"] > before["planned_bytes"]:
            yield f"{where}: more bytes are planned than for {before['asked_bytes']:,}"
        if before and row["predicted_ms"] < before["predicted_ms"]:
            yield f"{where}: less time is predicted than for {before['asked_bytes']:,}"
        before = row


def faults_of_lengths(result):
    """What does not hold of batches of many lengths under one budget (lengths.py), in words."""
    budget, model = result["budget_bytes"], result["model"]
    if result["eager_longest_bytes"] <= budget:
        yield f"{model}: eager keeps within {budget:,} bytes as well"
    if result["transitions"] != {"first call": 1} or result["fallback_reason"]:
        yield f"{model}: one export is expected, found {result['transitions']}, {result['fallback_reason']}"
    for row in result["rows"]:
        where = f"{model} at length {row['length']}"
        if row["planned_bytes"] > budget or row["measured_bytes"] > allowed(budget, 0):
            yield f"{where}: {row['planned_bytes']:,} bytes planned, {row['measured_bytes']:,} used of {budget:,}"
        if row["without_bytes"] <= budget and row["planned_bytes"] != row["without_bytes"]:
            yield f"{where}: not the plan without a budget, which fits"


def allowed(asked, external_bytes):
    return asked + AROUND_BYTES + (SCRATCH * asked if external_bytes else 0)


def relative_times(row, base):
    """A row's times over the base's median of the same round: what the machine does to a round, it does to both."""
    return [
        time / statistics.median(of_base)
        for times, of_base in zip(row["times_ms"], base["times_ms"], strict=True)
        for time in times
    ]


def quartiles(numbers):
    return statistics.quantiles(numbers, n=4) if len(numbers) > 1 else list(numbers) * 3


def beats(ours, theirs):
    """Whether a point (bytes, time) needs no more of either, and less of one."""
    return ours[0] <= theirs[0] and ours[1] <= theirs[1] and ours != theirs


def beaten_by(theirs, ours):
    """The name of one of `ours`, {name: (bytes, time)}, which beats that point: the one that does in time by most."""
    found = [name for name, point in ours.items() if beats(point, theirs)]
    return min(found, key=lambda name: (ours[name][1], ours[name][0]), default=None)
