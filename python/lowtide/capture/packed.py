"""Packed sequences while forward is traced: what packs, a recurrent layer and what pads again make one call.

    pack_padded_sequence(x, lengths)  ->  LSTM  ->  pad_packed_sequence      =      packed_lstm(x, lengths, …)

How many rows a packed sequence has at each step is data. Here it stays padded and cannot be read: code that does more
with it than hand it on is refused.
"""

import contextlib

import torch

from lowtide.errors import UnsupportedError

_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class _Steps:
    """In the place of the longest length, which is only compared with what is at least as long."""

    def __gt__(self, other):
        return False


class _Lengths:
    """In the place of `batch_sizes`. `lengths`: descending."""

    device = torch.device("cpu")

    def __init__(self, lengths, batch):
        self.lengths, self._batch = lengths, batch

    def __getitem__(self, step):
        if step != 0:
            raise UnsupportedError("forward reads the sizes of a packed sequence")
        return self._batch

    def size(self, dim=0):
        return _Steps()


class _Rows:
    """In the place of `data`. `padded`: (T, B, features)."""

    def __init__(self, padded):
        self._lowtide_padded = padded

    def __getattr__(self, name):
        if name in ("dtype", "device"):
            return getattr(self._lowtide_padded, name)
        raise UnsupportedError("forward computes with the rows of a packed sequence")


_library = torch.library.Library("lowtide", "FRAGMENT")


def _trace_layer(padded, lengths, hx, params, has_biases, num_layers, dropout, train, bidirectional):
    features = hx[0].size(2) * (2 if bidirectional else 1)
    return (padded.new_empty(*padded.shape[:2], features), *(torch.empty_like(each) for each in hx))


def _never(*_):
    raise AssertionError("packed layers of lowtide's stand in a captured graph only")


for _kind in _LAYERS:
    _results = ", ".join(("Tensor",) * (3 if _kind == "lstm" else 2))
    _library.define(
        f"packed_{_kind}(Tensor padded, Tensor lengths, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, "
        f"float dropout, bool train, bool bidirectional) -> ({_results})"
    )
    torch.library.register_fake(f"lowtide::packed_{_kind}", _trace_layer, lib=_library)
    torch.library.register_autograd(f"lowtide::packed_{_kind}", _never, lib=_library)


def _is_native(padded, states, weights, has_biases, num_layers, *_, bidirectional):
    """Whether the engine has the layer: of f32 or f64, without projections."""
    dtypes = {each.dtype for each in (padded, *states, *weights)}
    is_plain = len(weights) == num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    return is_plain and dtypes in ({torch.float32}, {torch.float64}) and not torch.is_autocast_enabled("cpu")


class Recurrent(torch.autograd.Function):
    """PyTorch's layer, where the engine has none.

    The layer `kind` over sequences of these lengths: (T, B, features) → (T, B, features), zeros behind their ends,
    then its last states."""

    @staticmethod
    def forward(ctx, kind, settings, states, padded, lengths, *tensors):
        """`settings`: what follows the weights in PyTorch's call; `states`: how many of `tensors`, the others being
        weights."""
        if isinstance(padded, torch._subclasses.FakeTensor):
            last = tensors[0].size(2)
            features = last * (2 if settings[-1] else 1)
            is_lowered = kind.startswith("rnn") and torch.is_autocast_enabled("cpu") and padded.dtype is torch.float32
            dtype = torch.get_autocast_dtype("cpu") if is_lowered else padded.dtype
            return (
                padded.new_empty(*padded.shape[:2], features, dtype=dtype),
                *(torch.empty_like(each, dtype=dtype) for each in tensors[:states]),
            )
        leaves = [
            each.detach().requires_grad_(need) for each, need in zip((padded, *tensors), _wanted(ctx), strict=True)
        ]
        with torch.enable_grad():
            packed = torch.nn.utils.rnn.pack_padded_sequence(leaves[0], lengths)
            hidden, weights = leaves[1 : 1 + states], leaves[1 + states :]
            hidden = tuple(hidden) if kind == "lstm" else hidden[0]
            data, *last = getattr(torch._VF, kind)(packed.data, packed.batch_sizes, hidden, weights, *settings)
            again = torch.nn.utils.rnn.PackedSequence(data, packed.batch_sizes)
            out, _ = torch.nn.utils.rnn.pad_packed_sequence(again, total_length=padded.size(0))
        ctx.held = leaves, (out, *last)
        return tuple(each.detach() for each in (out, *last))

    @staticmethod
    def backward(ctx, *gradients):
        leaves, results = ctx.held
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad and pair[1] is not None]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if not pairs or not wanted:
            return (None,) * (len(leaves) + 4)
        results, gradients = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(results, wanted, gradients, allow_unused=True))
        padded, *others = [next(found) if leaf.requires_grad else None for leaf in leaves]
        return (None, None, None, padded, None, *others)


def _wanted(ctx):
    needs = ctx.needs_input_grad
    return (needs[3], *needs[5:])


@contextlib.contextmanager
def packed_sequences_padded(is_traced):
    """While active, where `is_traced()`."""

    def pack(original, x, lengths, batch_first):
        if isinstance(x, _Rows):
            raise UnsupportedError("forward packs what is packed")
        padded = x.transpose(0, 1) if batch_first else x
        return _Rows(padded), _Lengths(lengths, padded.size(1))

    def layer(kind):
        def run(original, rows, *arguments):
            if not isinstance(rows, _Rows):
                return original(rows, *arguments)
            lengths, hidden, weights, *settings = arguments
            states = list(hidden) if isinstance(hidden, tuple | list) else [hidden]
            padded, wanted = rows._lowtide_padded, weights[0].size(1)
            if padded.size(2) != wanted:  # as the layer has it, whose check knows no padded rows
                found = padded.size(2)
                raise RuntimeError(f"input.size(-1) must be equal to input_size. Expected {wanted}, got {found}")
            if _is_native(padded, states, weights, *settings[:-1], bidirectional=settings[-1]):
                native = getattr(torch.ops.lowtide, f"packed_{kind}")
                out, *last = native(padded, lengths.lengths, states, list(weights), *settings)
                return (_Rows(out), *last)
            given = padded, lengths.lengths, *states, *weights
            out, *last = Recurrent.apply(kind, tuple(settings), len(states), *given)
            return (_Rows(out), *last)

        return run

    def pad(original, rows, lengths, batch_first, value, steps):
        if not isinstance(rows, _Rows):
            return original(rows, lengths, batch_first, value, steps)
        out = rows._lowtide_padded
        if isinstance(steps, _Steps):
            longest = lengths.lengths[0].item()
            torch._check(longest >= 0)
            torch._check(longest <= out.size(0))
            out = out[:longest]
        elif steps != out.size(0):
            raise UnsupportedError("forward pads a packed sequence to another length than it had")
        if value != 0:
            raise UnsupportedError("forward pads a packed sequence with another number than 0")
        return out.transpose(0, 1) if batch_first else out, lengths.lengths

    def check(original, layer, rows, *arguments):
        return None if isinstance(rows, _Rows) else original(layer, rows, *arguments)

    functions = {"_pack_padded_sequence": pack, "_pad_packed_sequence": pad, **{kind: layer(kind) for kind in _LAYERS}}
    with contextlib.ExitStack() as stack:
        for name, function in functions.items():
            stack.enter_context(_replaced(torch._VF, name, function, is_traced))
        for cls in (torch.nn.RNNBase, torch.nn.LSTM):
            stack.enter_context(_replaced(cls, "check_forward_args", check, is_traced))
        yield


@contextlib.contextmanager
def _replaced(owner, name, function, is_traced):
    original, is_own = getattr(owner, name), name in vars(owner)

    def call(*arguments):
        return function(original, *arguments) if is_traced() else original(*arguments)

    setattr(owner, name, call)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
