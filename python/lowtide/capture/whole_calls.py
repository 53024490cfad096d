"""Functions of PyTorch that ask for more than their result needs, data or sizes as numbers: one node each.

torch.export follows such a function into an op whose result, read by the function alone, has a size from data, or makes
guards of what it asks.
"""

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false
from torch.overrides import TorchFunctionMode

from lowtide.guards.data import version_of

from .contiguous import contiguous, copy_in
from .counted_labels import bincount, one_hot
from .inner_gradients import gradients
from .listed_indices import get, put
from .unbound import rows, unbind
from .whole_ops import NAMED, WHOLE_OPS

_library = torch.library.Library("lowtide", "FRAGMENT")
_library.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction, "
    "bool zero_infinity) -> Tensor"
)
_STATES = {"lstm": ("Tensor[]", 2), "gru": ("Tensor", 1), "rnn_tanh": ("Tensor", 1), "rnn_relu": ("Tensor", 1)}
for _kind, (_given, _count) in _STATES.items():
    _library.define(
        f"{_kind}(Tensor input, {_given} hx, Tensor[] params, bool has_biases, int num_layers, float dropout, "
        f"bool train, bool bidirectional, bool batch_first) -> ({', '.join(('Tensor',) * (1 + _count))})"
    )
_plain_batch_norm = torch.nn.functional.batch_norm
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@torch.library.register_fake("lowtide::ctc_loss", lib=_library)
def _trace_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity):
    """log_probs: (T, N, C), or (T, C) of one sequence."""
    each = reduction == _REDUCTIONS["none"] and log_probs.dim() == 3
    return log_probs.new_empty([log_probs.size(1)] if each else [])


def _trace_layer(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first):
    """input: (T, N, features), or (N, T, features); its results do not tell T, which PyTorch's own trace unrolls."""
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    features = states[0].size(2) * (2 if bidirectional else 1)
    return (input.new_empty(*input.shape[:2], features), *(state.new_empty(state.shape) for state in states))


for _kind in _STATES:
    torch.library.register_fake(f"lowtide::{_kind}", _trace_layer, lib=_library)


def _never(*_):
    raise AssertionError("an op of lowtide's stands in a captured graph only, where it has PyTorch's name")


# A result that takes a gradient where one of the inputs does.
for _name in ("ctc_loss", *_STATES, *(op._opname for op in NAMED)):
    torch.library.register_autograd(f"lowtide::{_name}", _never, lib=_library)


def _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction=1, zero_infinity=False):
    lengths = [torch.as_tensor(given, dtype=None if torch.is_tensor(given) else torch.int64)
               for given in (input_lengths, target_lengths)]  # fmt: skip
    number = _REDUCTIONS.get(reduction, reduction)
    for tensor in (targets, *lengths) if log_probs.dim() == 3 else ():
        is_by_sequence = tensor is not targets or targets.dim() == 2
        torch._check(not is_by_sequence or tensor.size(0) == log_probs.size(1), lambda: "one of each for a sequence")
    return torch.ops.lowtide.ctc_loss(log_probs, targets, *lengths, blank, number, zero_infinity)


def _layer(kind):
    original, whole = getattr(torch, kind), getattr(torch.ops.lowtide, kind)

    def call(input, hx, params, *settings, has_onednn):
        # Packed rows come with their sizes in the place of `hx`; autocast has rules of its own for each kind.
        is_packed = isinstance(params, torch.Tensor) or _STATES[kind][1] > 1 and isinstance(hx, torch.Tensor)
        if not is_packed and kind == "lstm" and has_onednn and _takes_bf16((input, *hx, *params)):
            return whole(_bf16(input), list(map(_bf16, hx)), list(map(_bf16, params)), *settings)
        if is_packed or torch.is_autocast_enabled("cpu"):
            return original(input, hx, params, *settings)
        if input.size(1 if settings[-1] else 0) == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        return whole(input, hx, params, *settings)

    return call


def _takes_bf16(tensors):
    """Whether autocast hands them to oneDNN's layer, which the exporter switches off."""
    is_on = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    return is_on and all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in tensors)


def _bf16(tensor):
    return tensor.to(torch.bfloat16)


def _random(tensor, *bounds, **keywords):
    """Of two bounds it is an op whose name is no name in Python, which the exporter's code of a graph cannot say."""
    if len(bounds) != 2 or bounds[1] is None:
        return tensor.random_(*bounds, **keywords)
    if keywords.get("generator", True) is None:
        keywords = {}
    return tensor.copy_(torch.randint(*bounds, tensor.shape, dtype=tensor.dtype, device=tensor.device, **keywords))


def _fill_diagonal(tensor, fill_value, wrap=False):
    """There is no such op that writes nothing."""
    if tensor.dim() != 2:
        for size in tensor.shape:
            torch._check(tensor.dim() > 2 and size == tensor.shape[0], lambda: "dimensions of equal length")
        places = torch.arange(tensor.shape[0], device=tensor.device)
        tensor[(places,) * tensor.dim()] = fill_value
    elif wrap:  # down a tall matrix, with a row between
        rows, columns = tensor.shape
        places = torch.arange(rows, device=tensor.device)[:, None] * columns + torch.arange(columns)
        tensor.masked_fill_(places % (columns + 1) == 0, fill_value)
    else:
        tensor.diagonal().fill_(fill_value)
    return tensor


def _masked_select(tensor, mask, **keywords):
    """As the index that it is, where nothing is broadcast: two calls with one mask have one count then."""
    is_index = not keywords and mask.dtype is torch.bool and tensor.dim() == mask.dim() > 0
    if is_index and all(guard_or_false(one == other) for one, other in zip(tensor.shape, mask.shape, strict=True)):
        return tensor[mask]
    return torch.masked_select(tensor, mask, **keywords)


def _batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """With a momentum from data, one by the number of batches so far (`momentum=None` of the layer), the averages are
    written apart."""
    if not training or running_mean is None or not free_unbacked_symbols(momentum):
        return _plain_batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    with torch.no_grad():
        dims = [0, *range(2, input.dim())]
        var, mean = torch.var_mean(input.detach().to(running_mean.dtype), dims)
        for running, found in ((running_mean, mean), (running_var, var)):
            running.copy_(found * momentum + running * (1 - momentum))
    return _plain_batch_norm(input, None, None, weight, bias, True, 0.0, eps)


_LAYERS = {getattr(torch, kind): _layer(kind) for kind in _STATES}
_WHOLE = {
    torch.Tensor.fill_diagonal_: _fill_diagonal,
    torch.Tensor.random_: _random,
    **_LAYERS,
    torch.ctc_loss: _ctc_loss,
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.Tensor.contiguous: contiguous,
    torch.nn.functional.one_hot: one_hot,
    torch.nn.functional.batch_norm: _batch_norm,
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), _masked_select),
    **dict.fromkeys((torch.bincount, torch.Tensor.bincount), bincount),
    **dict.fromkeys((torch.unbind, torch.Tensor.unbind), unbind),
    torch.Tensor.__iter__: rows,
    torch.Tensor.__getitem__: get,
    torch.Tensor.__setitem__: put,
    torch.autograd.grad: gradients,
    **WHOLE_OPS,
}

# With generator=None these are overloads of their own, whose sizes PyTorch wants as numbers.
_DRAWS = {torch.rand, torch.randn, torch.randint}

_OPS = {
    torch.ops.lowtide.ctc_loss.default: torch.ops.aten.ctc_loss.Tensor,
    **{getattr(torch.ops.lowtide, kind).default: getattr(torch.ops.aten, kind).input for kind in _STATES},
    **NAMED,
}


class WholeCalls(TorchFunctionMode):
    """While active, a call of such a function makes one node."""

    def __init__(self):
        super().__init__()
        self._returned = []  # (tensor, its version then)
        self._has_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _DRAWS and kwargs.get("generator", True) is None:
            kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
        if func in _LAYERS:
            kwargs = {**kwargs, "has_onednn": self._has_onednn}
        result = _WHOLE.get(func, func)(*args, **kwargs)
        if func is torch.Tensor.contiguous and result is args[0]:
            self._returned.append((result, version_of(result)))
        return result

    def take_written(self):
        """Those that contiguous() has returned themselves, of which another call's may be copies, and that forward has
        written since."""
        written = [tensor for tensor, version in self._returned if version_of(tensor) != version]
        self._returned = []
        return written

    @staticmethod
    def name_in(graph_module):
        """Gives these nodes PyTorch's op for a target."""
        for module in graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                copy_in(module)
                for node in module.graph.nodes:
                    node.target = _OPS.get(node.target, node.target)
