"""The figures of docs/distributed.md, of measured points."""

import statistics

from trained import table as trained_table

CALM = 0.05  # of the processors
BEGIN, END = "<!-- written by ./dev bench distributed -->", "<!-- end -->"

READING = """## Measured

Models, batches and counter are those of `./dev bench training`; {cores} cores in all, gloo on one machine, of which
every rank has its part. *step* is forward, backward and the optimizer (AdamW), the slowest rank's, with quartiles;
*peak* is what forward and backward need above parameters, optimizer state and the wrapper's own buffers, *with
optimizer* that of the whole step, of the rank that needs most; *sent* is what one rank has given to TCP in a step.
*travels*: milliseconds of a step in which something that rank 0 has begun is on its way, from where it begins to its
end, also while another rank is not there yet; *hidden* is the share of them in which rank 0 computes and does not wait.
*gained* is how much of the time that the exchange of all gradients takes by itself does not show in a step beside the
same step without it (`no_sync`): on one machine gloo's threads have the same cores as the kernels, so that what is
hidden slows kernels down, and less is gained than is hidden, or something lost.
"""


def figures(points):
    lines = [BEGIN]
    if cells := points.get("tests"):
        lines += ["## Trained", "", *trained_table(cells), ""]
    if turns := points.get("turns", {}):
        cores = max(row.get("cores", 0) for rows in turns.values() for row in rows.values())
        lines += [READING.format(cores=cores)]
        for key in sorted(turns):
            model, _, ranks = key.partition("/")
            rows = list(turns[key].values())
            lines += [f"### {model} on {ranks} processes", "", *disturbance(rows), *table(rows), ""]
    if traces := points.get("overlap", {}):
        lines += ["### Buckets and gradients in a backward", "", *overlap_lines(traces), ""]
    if found := points.get("in_backward", {}):
        lines += ["### An optimizer in backward", "", *in_backward_lines(found), ""]
    if found := points.get("simulated", {}):
        lines += ["### Simulated", "", *simulated_lines(found), ""]
    return "\n".join([*lines, END])


def disturbance(rows):
    if any(map(is_disturbed, rows)):
        others = max(row.get("others", 0) for row in rows)
        yield f"Where times have a ?, other work had up to {others:.0%} of the processors; bytes are exact."
        yield ""


def is_disturbed(row):
    """Also where nobody looked."""
    return "error" not in row and row.get("others", 1.0) > CALM


def table(rows):
    columns = "step ms | of eager | peak MB | of eager | with optimizer MB | sent MB | travels ms | hidden | gained"
    yield f"| wrapper | way | {columns} |"
    yield "|---|---" + "|--:" * (columns.count("|") + 1) + "|"
    for row in rows:
        start = f"| {row['wrapper']} | {row['way']} | "
        if "error" in row:
            yield f"{start}{row['error']}" + " |" * (columns.count("|") + 1)
            continue
        eager = next(
            (r for r in rows if r["wrapper"] == row["wrapper"] and r["way"] == "eager" and "error" not in r), None
        )
        times = row["step_times_ms"]
        timed = not is_disturbed(row)
        against = eager if eager and timed and not is_disturbed(eager) else None
        low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
        cells = [
            f"{middle:.0f} ({low:.0f} to {high:.0f})" if timed else "?",
            share(middle, against and statistics.median(against["step_times_ms"]), row is eager) if timed else "?",
            f"{row['peak_bytes'] / 1e6:.1f}",
            share(row["peak_bytes"], eager and eager["peak_bytes"], row is eager),
            f"{row['peak_with_optimizer_bytes'] / 1e6:.1f}",
            f"{row['sent_bytes'] / 1e6:.1f}",
            *(traffic(row) if timed else ("?", "?", "?")),
        ]
        if row["fallback_reason"]:
            cells[0] += f", in PyTorch: {row['fallback_reason']}"
        yield start + " | ".join(cells) + " |"


def share(part, whole, is_itself):
    return f"{part / whole:.2f}" if whole and not is_itself else ""


def traffic(row):
    """What travels, what of it is hidden and what hiding the exchange gains, of the exchange's own time."""
    travels = row.get("travels_ms")
    yield f"{travels:.0f}" if travels else ""
    yield f"{row['hidden_ms'] / travels:.0%}" if travels else ""
    alone = row.get("alone_ms")
    gained = alone and 1 - (row["together_ms"] - alone) / row["exchange_ms"]
    yield f"{gained:.0%} of {row['exchange_ms']:.0f} ms" if alone else ""


def overlap_lines(traces):
    yield "On rank 0 (`--overlap`): where in backward hooks run and buckets of DistributedDataParallel travel. A bucket"
    yield "that ends behind 100 % is what the step waits for."
    yield ""
    yield "| model | way | backward ms | first gradient | half of them | bucket | MB | begins | ends |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for model, way, trace in [(m, way, trace) for m in sorted(traces) for way, trace in traces[m].items()]:
        whole = trace["backward_ms"]
        of_kind = {kind: [e for e in trace["events"] if e["kind"] == kind] for kind in ("gradient", "begins", "ends")}
        gradients = sorted(event["ms"] for event in of_kind["gradient"])
        ends = {event["index"]: event["ms"] for event in of_kind["ends"]}
        middle = gradients[len(gradients) // 2]
        first = [model, way, f"{whole:.0f}", f"{gradients[0] / whole:.0%}", f"{middle / whole:.0%}"]
        for event in of_kind["begins"]:
            cells = [str(event["index"]), f"{event['bytes'] / 1e6:.1f}", f"{event['ms'] / whole:.0%}"]
            yield "| " + " | ".join([*first, *cells, f"{ends[event['index']] / whole:.0%}"]) + " |"
            first = [""] * len(first)


def in_backward_lines(found):
    """`found`: by model and way, what in_backward.py gives."""
    yield "Of one process (`--in-backward`), above parameters: peak of forward and backward where gradients are *kept*,"
    yield "and where a hook *updates* each parameter and drops its gradient; *stash* is what is there when forward has"
    yield "returned, outputs included, *bucket* the largest of what hooks are given together (in eager one gradient)."
    yield ""
    yield "| model | way | gradients MB | kept MB | updates MB | stash MB | bucket MB | updates, of stash and bucket |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|"
    for model in sorted(found):
        for way, row in found[model].items():
            columns = ("gradients", "kept", "updated", "stash", "bucket")
            cells = [f"{row[f'{name}_bytes'] / 1e6:.1f}" for name in columns]
            cells.append(f"{row['updated_bytes'] / (row['stash_bytes'] + row['bucket_bytes']):.2f}")
            yield "| " + " | ".join([model, way, *cells]) + " |"


def simulated_lines(found):
    """`found`: by model, what simulated.py gives."""
    network = next(iter(found.values()))["network"]
    inside, between = network["inside"], network["between"]
    yield "Predicted by `--simulate`, with kernels as fast as on the machine of the figures above: nodes of "
    speeds = [f"{link['gigabytes_per_second']} GB/s and {link['latency_us']} µs" for link in (inside, between)]
    yield f"{network['ranks_per_node']} processes, {speeds[0]} inside, {speeds[1]}"
    yield "between them, for each process. *hidden* is"
    yield "the share of communication that no kernel waits for; *peak* is planned, above parameters, under ddp with all"
    yield "buckets."
    yield ""
    columns = "step ms | kernels ms | network ms | hidden | peak MB | parameters MB | sent MB"
    yield f"| model | processes | wrapper | {columns} |"
    yield "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|"
    for model in sorted(found):
        for row in found[model]["rows"]:
            cells = [model, str(row["ranks"]), row["way"]]
            cells += [f"{row[name]:.1f}" for name in ("step_ms", "kernels_ms", "communication_ms")]
            cells += [f"{row['hidden']:.0%}"]
            cells += [f"{row[name] / 1e6:.1f}" for name in ("peak_bytes", "parameter_bytes", "sent_bytes")]
            yield "| " + " | ".join(cells) + " |"
