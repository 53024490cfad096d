"""`keep_outputs`: which parts of the output training steps return; what evaluation, PyTorch and copies make of it."""

import collections
import copy
import pickle

import pytest
import torch
import zoo
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from lowtide.capture import keep_only, parse_keep_outputs
from lowtide.errors import FallbackWarning, InvalidArgument
from lowtide.ortmodule import ORTModule

Pair = collections.namedtuple("Pair", "first second")
TREE = {"loss": 0, "pair": Pair(1, [2, 3]), "a.b": 4, 5: (6,)}
NOTHING = dict.fromkeys(TREE)


class Classifier(torch.nn.Module):
    def __init__(self, classes=30):
        super().__init__()
        self.body, self.head = torch.nn.Linear(6, 12), torch.nn.Linear(12, classes)

    def forward(self, x, labels, scale=1.0):
        hidden = torch.tanh(self.body(x))
        logits = self.head(hidden) * scale
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits, "hidden": (hidden, [hidden.sum(), 7])}


def batch(rows=5):
    return torch.randn(rows, 6), torch.randint(0, 30, (rows,))


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("loss",), {**NOTHING, "loss": 0}),
        (("pair",), {**NOTHING, "pair": TREE["pair"]}),
        (("pair.second.1", "loss"), {**NOTHING, "loss": 0, "pair": Pair(None, [None, 3])}),
        (("pair.1.0",), {**NOTHING, "pair": Pair(None, [2, None])}),
        (("pair", "pair.first"), {**NOTHING, "pair": TREE["pair"]}),
        (("a.b",), {**NOTHING, "a.b": 4}),
        (("5.0",), {**NOTHING, 5: (6,)}),
    ],
)
def test_what_no_path_leads_to_is_none(paths, expected):
    assert keep_only(TREE, paths) == expected


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("logits", "'logits', but the output of forward has 'loss', 'pair', 'a.b', '5'"),
        ("pair.third", "'pair.third', but 'pair' of the output has 'first', 'second'"),
        ("pair.second.2", "'pair.second.2', but 'pair.second' of the output has '0', '1'"),
        ("loss.0", "'loss.0', but 'loss' of the output is a int, which has no parts"),
    ],
)
def test_a_path_that_leads_nowhere_is_answered_with_what_there_is(path, reason):
    with pytest.raises(InvalidArgument) as found:
        keep_only(TREE, ("loss", path))
    assert reason in str(found.value)


def test_an_output_of_transformers_is_one_without_what_is_not_kept():
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    output = CausalLMOutputWithPast(loss=torch.tensor(1.0), logits=torch.ones(2), past_key_values=cache)
    kept = keep_only(output, ("loss",))
    assert type(kept) is CausalLMOutputWithPast
    assert kept.loss is output.loss and kept.logits is None and kept.past_key_values is None
    assert keep_only(output, ("1",)).logits is output.logits
    part = keep_only(output, ("past_key_values.layers.0.keys",)).past_key_values
    assert part.layers[0].keys is cache.layers[0].keys and part.layers[0].values is None
    assert output.logits is not None and cache.layers[0].values is not None


@pytest.mark.parametrize("keep", [(), [], True, 1.5, {"loss"}, ("",), ("a..b",), (None,), (True,)])
def test_what_is_no_path_is_refused_with_the_expected_form(keep):
    with pytest.raises(InvalidArgument, match="expected (a path|paths) into the output"):
        ORTModule(Classifier(), keep_outputs=keep)


def test_one_path_needs_no_tuple():
    assert parse_keep_outputs("loss") == ("loss",)
    assert parse_keep_outputs(0) == ("0",)
    assert parse_keep_outputs(["loss", "loss", 1]) == ("loss", "1")
    assert parse_keep_outputs(None) is None


def test_a_training_step_returns_what_is_kept_and_trains_as_before():
    torch.manual_seed(1)
    net, (x, labels) = Classifier(), batch()
    wrapped = ORTModule(copy.deepcopy(net), keep_outputs=("loss", "hidden.1"))
    output, expected = wrapped(x, labels), net(x, labels)
    assert output["logits"] is None and output["hidden"][0] is None
    assert output["hidden"][1][1] == 7
    torch.testing.assert_close(output["loss"], expected["loss"])
    torch.testing.assert_close(output["hidden"][1][0], expected["hidden"][1][0])
    output["loss"].backward()
    expected["loss"].backward()
    for (name, ours), theirs in zip(wrapped.named_parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, msg=name)
    assert wrapped.fallback_reason is None


def test_evaluation_and_calls_without_gradients_return_everything():
    wrapped, arguments = ORTModule(Classifier(), keep_outputs=("loss",)), batch()
    assert wrapped(*arguments)["logits"] is None
    with torch.no_grad():
        assert wrapped(*arguments)["logits"] is not None
    wrapped.eval()
    assert wrapped(*arguments)["logits"] is not None
    wrapped.train()
    assert wrapped(*arguments)["logits"] is None


def test_a_path_that_leads_nowhere_is_raised_by_each_training_step():
    wrapped, arguments = ORTModule(Classifier(), keep_outputs=("loss", "logit")), batch()
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="'logit', but the output of forward has 'loss', 'logits', 'hidden'"):
            wrapped(*arguments)
    wrapped.eval()
    assert wrapped(*arguments)["logits"] is not None


def test_an_output_without_parts_has_no_names():
    wrapped = ORTModule(torch.nn.Linear(3, 2), keep_outputs=("loss",))
    with pytest.raises(InvalidArgument, match="is a Tensor, which has no parts"):
        wrapped(torch.randn(2, 3))


def test_pytorch_returns_the_same_parts_where_it_takes_over():
    class Branching(Classifier):
        def forward(self, x, labels):
            return super().forward(x if x.sum() > 0 else -x, labels)

    wrapped = ORTModule(Branching(), keep_outputs=("loss",))
    with pytest.warns(FallbackWarning, match="branches on data"):
        output = wrapped(*batch())
    assert output["logits"] is None and output["hidden"] is None
    output["loss"].backward()
    assert wrapped.head.weight.grad is not None


def test_a_number_that_changes_leads_to_a_graph_that_keeps_the_same():
    wrapped, arguments = ORTModule(Classifier(), keep_outputs=("loss",)), batch()
    for scale in (1.0, 2.0, 3.0):
        assert wrapped(*arguments, scale=scale)["logits"] is None
    assert wrapped(*batch(3), scale=3.0)["logits"] is None
    assert wrapped.fallback_reason is None


def test_copies_keep_the_same():
    wrapped, arguments = ORTModule(Classifier(), keep_outputs=("loss",)), batch()
    for twin in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert twin(*arguments)["logits"] is None


def test_cached_graphs_of_all_outputs_are_not_taken_for_those_of_a_few(folder, exports):
    net, arguments = Classifier(), batch()
    for keep, found in ((None, 1), (("loss",), 2), (("loss",), 2), (("loss", "logits"), 3), (None, 3)):
        output = ORTModule(net, keep_outputs=keep)(*arguments)
        assert (output["logits"] is None) == (keep == ("loss",))
        assert len(exports) == found


def test_what_is_not_kept_is_not_computed():
    class Detour(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = torch.nn.Linear(4, 1), torch.nn.Linear(4, 64)

        def forward(self, x):
            return self.used(x).sum(), torch.erf(self.spare(x))

    x = torch.randn(8, 4)
    whole, part = ORTModule(Detour()), ORTModule(Detour(), keep_outputs=(0,))
    whole(x), part(x)
    assert "Erf" in whole.text() and "Erf" not in part.text()
    assert part.memory_report()["planned_peak_bytes"] < whole.memory_report()["planned_peak_bytes"]


def test_losses_of_a_language_model_are_those_of_all_outputs():
    losses = {}
    for keep in (None, ("loss",)):
        torch.manual_seed(3)
        model, make_batch = zoo.build("gpt2")
        wrapped = ORTModule(model, keep_outputs=keep)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
        losses[keep] = []
        for step in range(4):
            output = wrapped(**make_batch(batch=2, length=12, seed=step))
            assert (output.logits is None) == (keep is not None)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            losses[keep].append(output.loss.item())
    assert losses[None] == pytest.approx(losses["loss",], rel=1e-6)
