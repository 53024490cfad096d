"""Branches on random numbers (layerdrop): drawn on the host as eager draws them, one graph for each way."""

import collections
import copy
import random

import numpy
import pytest
import torch
import transformers as hf
from cached import graphs
from modules import Of, assert_same, step, x

from lowtide.errors import EngineError
from lowtide.ortmodule import DebugOptions, LogLevel, ORTModule

LAYERS = 3


class Layers(torch.nn.Module):
    """Drops each layer with probability p; `drops(p)` draws and asks."""

    def __init__(self, drops, p, layers=LAYERS):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(layers))
        self.head = torch.nn.Linear(4, 4)
        self.drops, self.p = drops, p
        self.dropped = None

    def forward(self, a):
        for layer in self.layers:
            if self.drops(self.p):
                continue
            a = torch.tanh(layer(a))
        return self.head(a)


def of_bart(p):
    return torch.rand([]) < p


DRAWS = {
    "rand([])": of_bart,
    "p > rand([])": lambda p: p > torch.rand([]),
    "not rand(1) >= p": lambda p: not (torch.rand(1) >= p),
    "rand(()).item()": lambda p: torch.rand(()).item() < p,
    "lt(rand(1, 1)).item()": lambda p: torch.lt(torch.rand(1, 1, dtype=torch.float64), p).item(),
    "empty([]).uniform_()": lambda p: torch.empty([]).uniform_(0, 1) < p,
    "empty(1).bernoulli_()": lambda p: torch.empty(1).bernoulli_(p) == 1,
    "randn([])": lambda p: torch.randn([]) < 2 * p - 1,
    "randint": lambda p: torch.randint(0, 2, (1,)).item() == 1,
    "two questions": lambda p: (number := torch.rand([])) < p / 2 or bool(number > 1 - p / 2),
    "random.random()": lambda p: random.random() < p,
    "random.uniform()": lambda p: random.uniform(0, 1) < p,
    "random.randint()": lambda p: random.randint(0, 1) == 1,
    "numpy.random.random()": lambda p: numpy.random.random() < p,
    "numpy.random.rand()": lambda p: numpy.random.rand() < p,
    "numpy.random.uniform()": lambda p: not numpy.random.uniform(0.0, 1.0) > p,
}


def seed():
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)


def next_numbers():
    return torch.rand(2).tolist(), random.random(), numpy.random.rand()


def train(module, call, steps):
    """Losses of SGD's steps, the reasons of fallbacks, and what the generators give after them."""
    seed()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses, reasons = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = call(module)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        reasons.append(getattr(module, "fallback_reason", None))
    return losses, reasons, next_numbers()


def squares(module):
    return module(x().double()).square().sum()


def compare(module, call=squares, steps=10):
    module = module.double()
    eager, wrapped = copy.deepcopy(module), ORTModule(module)
    theirs, ours = train(eager, call, steps), train(wrapped, call, steps)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-9, atol=0)
    assert ours[2] == theirs[2]  # the generators are where eager's are
    for one, other in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    return wrapped, ours[1]


def counts_of(wrapped):
    (counts,) = wrapped.transition_counts().values()
    return collections.Counter(counts)


@pytest.mark.parametrize("name", DRAWS)
def test_each_way_has_a_graph_and_the_choices_are_eagers(name):
    wrapped, reasons = compare(Layers(DRAWS[name], 0.5))
    assert reasons == [None] * 10
    counts = counts_of(wrapped)
    assert 1 <= counts["draw"] < 2**LAYERS and counts.total() == counts["draw"] + 1


@pytest.mark.parametrize("drops", [of_bart, DRAWS["random.random()"], lambda p: not torch.rand([]) >= p])
def test_one_graph_serves_where_nothing_is_dropped(drops):
    wrapped, reasons = compare(Layers(drops, 0.0))
    assert reasons == [None] * 10 and counts_of(wrapped) == {"first call": 1}


def test_a_draw_that_decides_nothing_still_moves_the_generator():
    def draws(m, a):
        dropped = torch.rand([]) < 0.5
        return m.l(a) if not m.training or dropped is not None else a

    wrapped, reasons = compare(Of(draws).eval())
    assert reasons == [None] * 10 and counts_of(wrapped) == {"first call": 1}


def test_later_draws_depend_on_earlier_answers():
    def nested(m, a):
        if torch.rand([]) < 0.5:
            return m.l(a) if torch.rand(1) < 0.5 else m.l(a) * 2
        return m.l(a) * (3 if random.random() < 0.5 else 4)

    wrapped, reasons = compare(Of(nested), steps=12)
    assert reasons == [None] * 12 and counts_of(wrapped)["draw"] == 3


def test_beyond_the_limit_pytorch_runs_the_call():
    wrapped, reasons = compare(Layers(of_bart, 0.5, layers=6), steps=24)
    assert counts_of(wrapped)["limit"] > 0
    assert any(reason and "8 graphs were exported" in reason for reason in reasons)
    assert reasons[-1] is None or reasons.count(None) >= 8


def test_the_log_tells_which_answer_is_another_one(caplog):
    module = Layers(of_bart, 0.5)
    seed()
    answers = [(torch.rand([]) < 0.5).item() for _ in range(LAYERS)]
    while (again := [(torch.rand([]) < 0.5).item() for _ in range(LAYERS)]) == answers:
        pass
    place = [one == other for one, other in zip(answers, again, strict=True)].index(False)
    seed()
    wrapped = ORTModule(module, DebugOptions(LogLevel.INFO))
    with caplog.at_level("INFO", logger="lowtide"):
        for _ in range(20):
            wrapped(x())
    text = f"draw {place}: torch.rand([]) < 0.5 was {answers[place]}, is now {again[place]}"
    assert text in caplog.text


def test_another_probability_is_another_graph():
    module = Layers(of_bart, 0.0)
    wrapped = ORTModule(module)
    wrapped(x())
    module.p = 1.0
    torch.testing.assert_close(wrapped(x()), module.head(x()))
    assert wrapped.fallback_reason is None and counts_of(wrapped)["number"] == 1


# ---- draws that the graph makes itself


@pytest.mark.parametrize(
    "computes",
    [
        lambda m, a: m.l(a) + 0 * torch.rand([]),
        lambda m, a: m.l(a) * (torch.rand(1) >= 0),
        lambda m, a: torch.where(torch.rand([]) < 2, m.l(a), a),
        lambda m, a: m.l(a) + 0 * torch.stack([torch.rand([]), torch.rand([])]).sum(),
        lambda m, a: m.l(a) + 0 * torch.empty(1).uniform_(1, 2),
        lambda m, a: m.l(a) + torch.empty(1).fill_(2),
        lambda m, a: (m.l(a), torch.rand([]) * 0),
        lambda m, a: m.l(a) + 0 * torch.rand(1).item(),
        lambda m, a: m.l(a) * (1 + 0 * torch.randint(7, (1,)).item()),
        lambda m, a: m.l(a) * ((torch.randint(7, (1,)).item() + torch.rand(1)) * 0 + 1),
        lambda m, a: m.l(a) + 0 * (2.0 - torch.empty(1).uniform_(1, 2).item()),
    ],
)
def test_numbers_to_compute_with_are_drawn_in_the_graph(computes):
    module = Of(computes)
    wrapped = ORTModule(module)
    for _ in range(2):
        assert_same(step(wrapped, (x(),)), step(module, (x(),)))
        assert wrapped.fallback_reason is None
    assert counts_of(wrapped) == {"first call": 1}


def test_an_output_is_drawn_anew_in_each_call():
    wrapped = ORTModule(Of(lambda m, a: (m.l(a), torch.rand([]))))
    numbers = {wrapped(x())[1].item() for _ in range(4)}
    assert wrapped.fallback_reason is None and len(numbers) == 4


@pytest.mark.parametrize("read", [lambda number: number.item(), lambda number: float(number)], ids=["item", "float"])
def test_a_number_that_is_only_computed_with_is_drawn_anew_in_each_call(read):
    wrapped = ORTModule(Of(lambda m, a: (m.l(a), a.new_ones(1) * read(torch.rand([])))))
    numbers = {wrapped(x())[1].item() for _ in range(4)}
    assert wrapped.fallback_reason is None and len(numbers) == 4


def branches_and_computes(m, a):
    number = torch.rand([])
    return m.l(a) * number if number < 0.5 else m.l(a)


def computes_and_branches(m, a):
    number = torch.rand([])
    a = a * number
    return m.l(a) if number < 0.5 else a


REFUSED = {
    "a branch first": (branches_and_computes, "branches on a random number and computes with it"),
    "a branch later": (computes_and_branches, "branches on a random number and computes with it"),
    "Python's number": (lambda m, a: m.l(a) * random.random(), "changes Python's random numbers"),
    "NumPy's number": (lambda m, a: m.l(a) * float(numpy.random.rand()), "changes NumPy's random numbers"),
    "NumPy's array": (lambda m, a: m.l(a) * float(numpy.random.rand(1)[0]), "changes NumPy's random numbers"),
    "a tensor of it": (lambda m, a: m.l(a) * torch.tensor([torch.rand([])]), "torch.export: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_else_is_done_with_a_number_runs_in_pytorch_and_the_reason_names_it(name):
    function, reason = REFUSED[name]
    _, reasons = compare(Of(function), steps=3)
    assert all(found and reason in found for found in reasons), reasons


def test_a_number_that_forward_keeps_is_real():
    def keeps(m, a):
        m.last = torch.rand([])
        return m.l(a) if m.last < 0.5 else m.l(a) * 2

    module = Of(keeps)
    compare(module, steps=3)
    assert type(module.last) is torch.Tensor


# ---- calls that fail, files


def test_a_call_that_fails_has_drawn_nothing(monkeypatch):
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_FORCE_TORCH_FORWARD")
    module = Layers(DRAWS["two questions"], 0.5)
    wrapped = ORTModule(copy.deepcopy(module))
    seed()
    wrapped(x())
    agent = wrapped._training_manager.last_agent

    class Failing:
        def forward(self, *_):
            raise EngineError("no")

    monkeypatch.setattr(agent, "session", Failing())
    seed()
    expected, after = module(x()), next_numbers()
    seed()
    torch.testing.assert_close(wrapped(x()), expected)
    assert wrapped.fallback_reason is not None and next_numbers() == after


def test_a_second_start_reads_the_graphs_of_all_ways(folder, exports):
    module = Layers(DRAWS["two questions"], 0.5)
    wrapped = ORTModule(module)
    seed()
    expected = [wrapped(x()) for _ in range(6)]
    made = len(exports)
    assert 1 < made == len(graphs(folder)) == counts_of(wrapped).total()
    again = ORTModule(module)
    seed()
    for theirs in expected:
        torch.testing.assert_close(again(x()), theirs, rtol=0, atol=0)
    assert len(exports) == made and counts_of(again)["draw"] == made - 1


# ---- models of transformers


def bart(p):
    config = hf.BartConfig(
        vocab_size=99, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, pad_token_id=0,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32, dropout=0.0,
        encoder_layerdrop=p, decoder_layerdrop=p, use_cache=False,
    )  # fmt: skip
    ids = torch.randint(3, 99, (2, 8), generator=torch.Generator().manual_seed(0))
    return hf.BartForConditionalGeneration(config), {"input_ids": ids, "labels": ids}


def wav2vec2(p):
    config = hf.Wav2Vec2Config(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, layerdrop=p,
        conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, hidden_dropout=0.0,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, feat_proj_dropout=0.0, attention_dropout=0.0,
        activation_dropout=0.0, final_dropout=0.0, mask_time_prob=0.0, classifier_proj_size=8, num_labels=5,
    )  # fmt: skip
    waves = torch.randn(2, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return hf.Wav2Vec2ForSequenceClassification(config), {"input_values": waves, "labels": torch.tensor([1, 3])}


@pytest.mark.parametrize("build", [bart, pytest.param(wav2vec2, marks=pytest.mark.long)])
@pytest.mark.parametrize("p", [pytest.param(0.0, marks=pytest.mark.long), 0.5])
def test_models_of_transformers(build, p):
    model, batch = build(p)
    wrapped, reasons = compare(model.train(), lambda module: module(**batch).loss, steps=6)
    assert reasons == [None] * 6
    assert (counts_of(wrapped)["draw"] > 0) == (p > 0)
