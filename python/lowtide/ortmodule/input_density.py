"""How much of a call's tokens and labels counts: those that are not padding, and not ignored by the loss."""

import logging
from dataclasses import dataclass

from lowtide import environment
from lowtide.log import logger

_SPARSE = 0.9  # labels below this density let drop_unlabelled_rows pay, a mask below it what leaves padding out
_LOSSES = ("aten::cross_entropy_loss.default", "aten::nll_loss.default", "aten::nll_loss_nd.default")
_ATTENTION = "aten::scaled_dot_product_attention.default"
_IGNORED = -100  # PyTorch's ignore_index where none is given
_NO_PADDING = -1


@dataclass(frozen=True)
class CountedInput:
    """An argument of integers of which one number means nothing."""

    kind: str  # "LABEL", "EMBED" or "MASK"
    name: str
    place: int  # among the graph's inputs
    index: int  # among the call's tensors
    without: int

    def counts(self, tensor):
        """Of each row along the first dim, how many of its numbers mean something."""
        counted = tensor.detach() != self.without
        return counted.sum(tuple(range(1, counted.dim()))) if counted.dim() > 1 else counted.sum().reshape(1)

    def density(self, tensor):
        """1 where there are no numbers: a batch of no rows has none that means nothing."""
        return self.counts(tensor).sum().item() / tensor.numel() if tensor.numel() else 1.0


def counted_inputs(captured):
    """CountedInput of each argument that comes to a loss as its labels, to an embedding with padding, or into an
    attention's mask."""
    graph, found = captured.graph, {}
    places = {entry["value"]: place for place, entry in enumerate(graph.inputs())}
    makers, masks = {}, set()
    for node in graph.nodes():
        makers.update(dict.fromkeys(node["outputs"], node))
        if node["target"] == _ATTENTION:
            masks.update(node["inputs"][3:4])
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
        if not isinstance(without, int) or (kind == "EMBED" and without == _NO_PADDING):
            continue
        if _is_of_call(captured, place) and graph.value_type(value)[0] == "i64":
            source = captured.sources[place]
            found[kind, place] = CountedInput(kind, source.name, place, source.index, without)
    others = {place for _, place in found}
    for value in _what_makes(masks, makers):
        place = places.get(value)
        if _is_of_call(captured, place) and place not in others and graph.value_type(value)[0] in ("i64", "bool"):
            source = captured.sources[place]
            found["MASK", place] = CountedInput("MASK", source.name, place, source.index, 0)
    return list(found.values())


def _is_of_call(captured, place):
    return place is not None and captured.sources[place].kind == "input"


def _what_makes(values, makers):
    """The values, and all that they are computed from."""
    found, waiting = set(), list(values)
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += makers[value]["inputs"] if value in makers else ()
    return found


class LabelSparsity:
    """Whether a graph's rows without a label are left out, which is decided by the labels of its first call."""

    def __init__(self, captured, call):
        densities = {"LABEL": {}, "EMBED": {}, "MASK": {}}
        for each in counted_inputs(captured):
            densities[each.kind][each.name] = each.density(call.tensors[each.index])
        self._labels, self._masks = densities["LABEL"], densities["MASK"]
        self.is_sparse = any(density < _SPARSE for density in self._labels.values())
        self.is_wanted = self.is_sparse and environment.label_sparsity()
        has_padding = any(density < _SPARSE for density in self._masks.values())
        self.leaves_padding_out = self.is_wanted and has_padding and environment.embedding_sparsity()

    def words(self):
        return _words(self._labels)

    def words_of_masks(self):
        return _words(self._masks)

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


def _words(densities):
    return ", ".join(f"{name}: {100 * density:.1f} %" for name, density in densities.items())


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
