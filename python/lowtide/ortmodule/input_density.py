"""How much of a call's tokens and labels counts: those that are not padding, and not ignored by the loss."""

import logging
from dataclasses import dataclass

from lowtide import environment
from lowtide.log import logger

_SPARSE = 0.9  # labels below this density let drop_unlabelled_rows pay
_LOSSES = ("aten::cross_entropy_loss.default", "aten::nll_loss.default", "aten::nll_loss_nd.default")
_IGNORED = -100  # PyTorch's ignore_index where none is given
_NO_PADDING = -1


@dataclass(frozen=True)
class CountedInput:
    """An argument of integers of which one number means nothing."""

    kind: str  # "LABEL" or "EMBED"
    name: str
    place: int  # among the graph's inputs
    index: int  # among the call's tensors
    without: int

    def counts(self, tensor):
        """Of each row along the first dim, how many of its numbers mean something."""
        counted = tensor.detach() != self.without
        return counted.reshape(counted.shape[0] if counted.dim() > 1 else 1, -1).sum(1)

    def density(self, tensor):
        return self.counts(tensor).sum().item() / max(tensor.numel(), 1)


def counted_inputs(captured):
    """CountedInput of each argument that comes to a loss as its labels, or to an embedding with padding."""
    graph, found = captured.graph, {}
    places = {entry["value"]: place for place, entry in enumerate(graph.inputs())}
    makers = {}
    for node in graph.nodes():
        makers.update(dict.fromkeys(node["outputs"], node))
        if node["target"] in _LOSSES:
            kind, (_, without) = "LABEL", node["attrs"].get("ignore_index", ("int", _IGNORED))
        elif node["target"] == "aten::embedding.default":
            kind, (_, without) = "EMBED", node["attrs"].get("padding_idx", ("int", _NO_PADDING))
        else:
            continue
        value = node["inputs"][1]
        while value not in places and value in makers and makers[value]["inputs"]:
            value = makers[value]["inputs"][0]  # a view, a copy, a slice, padding
        place = places.get(value)
        if place is None or captured.sources[place].kind != "input" or not isinstance(without, int):
            continue
        if kind == "EMBED" and without == _NO_PADDING:
            continue
        if graph.value_type(value)[0] == "i64":
            source = captured.sources[place]
            found[kind, place] = CountedInput(kind, source.name, place, source.index, without)
    return list(found.values())


class LabelSparsity:
    """Whether a graph's rows without a label are left out, which is decided by the labels of its first call."""

    def __init__(self, captured, call):
        labels = [each for each in counted_inputs(captured) if each.kind == "LABEL"]
        self.densities = {each.name: each.density(call.tensors[each.index]) for each in labels}
        self.is_sparse = any(density < _SPARSE for density in self.densities.values())
        self.is_wanted = self.is_sparse and environment.label_sparsity()

    def words(self):
        return ", ".join(f"{name}: {100 * density:.1f} %" for name, density in self.densities.items())

    def hint(self, is_in_force):
        """A line for the log where these labels would make it worth asking for more, or None."""
        if not self.is_sparse or is_in_force:
            return None
        if not self.is_wanted:
            return (
                f"few labels count ({self.words()}): ORTMODULE_ENABLE_COMPUTE_OPTIMIZER=1 and "
                "ORTMODULE_ENABLE_SPARSE_OPTIMIZER=1 leave the other rows out of the model's head"
            )
        return (
            f"few labels count ({self.words()}), and the head computes all rows, whose logits are returned or read: "
            'ORTModule(model, keep_outputs=("loss",)) leaves the others out'
        )


class DensityTable:
    """ORTMODULE_PRINT_INPUT_DENSITY=1: a table in the log, at each step."""

    def __init__(self, captured):
        self._counted = counted_inputs(captured) if environment.prints_input_density() else []
        self._step = 0

    def print(self, tensors):
        """`tensors`: BoundInputs."""
        if not self._counted or not logger.isEnabledFor(logging.INFO):
            return
        rows = [_row("STEP", "INPUT TYPE", "INPUT NAME", "PAD IDX", "DENSITY", "VALID TOKENS", "TOTAL TOKENS")]
        rows[0] += " VALID TOKENS/BATCH |"
        for each in self._counted:
            (tensor,) = tensors.take([each.place])
            counts, total = each.counts(tensor).tolist(), tensor.numel()
            density = f"{100 * sum(counts) / max(total, 1):.2f} %"
            rows.append(_row(self._step, each.kind, each.name, each.without, density, sum(counts), total))
            rows[-1] += f" {counts} |"
        self._step += 1
        logger.info("%s", "\n".join([">>>Valid token/label density (e.g. valid/total):", *rows, "<<<"]))


def _row(*columns):
    return "\t|" + "|".join(f" {column!s:>12} " for column in columns) + "|"
