"""Calls of lowered targets that PyTorch's samples do not reach: mostly other names and forms with a Python number."""

import torch

SAME = "another name, or a form that only a graph after decomposition has"


def _x(*shape):
    return torch.rand(shape, dtype=torch.float64).add_(0.25)


def _unary(*names):
    return {f"aten::{name}.default": (_x(3, 4),) for name in names}


def _binary(suffix, *names):
    second = 1.5 if suffix == "Scalar" else _x(3, 4)
    return {f"aten::{name}.{suffix}": (_x(3, 4), second) for name in names}


def _layer(rows):
    """Parameters of a recurrent layer of 5 units over 4 features, both ways."""
    return [each for _ in range(2) for each in (_x(rows, 4), _x(rows, 5), _x(rows), _x(rows))]


def own_samples():
    """Target → its arguments, f64 where they are floating."""
    torch.manual_seed(0)
    integers, other = torch.arange(12).view(3, 4), torch.arange(12).flip(0).view(3, 4)
    mask = integers % 3 == 0
    comparisons = ("eq", "ge", "gt", "le", "lt", "ne", "greater", "greater_equal", "less", "less_equal", "not_equal")
    bits = ("__and__", "__or__", "__xor__", "bitwise_and", "bitwise_or", "bitwise_xor")
    samples = {
        **_unary("absolute", "alias", "negative", "special_erf", "special_exp2", "special_expit", "fix", "arctan"),
        **_unary("detach", "contiguous", "zero", "numpy_T", "adjoint"),
        **_binary("Scalar", "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", *comparisons),
        **_binary("Scalar", "fmod", "remainder", "rsub"),
        **_binary("Tensor", "multiply", "subtract", "divide", "greater", "greater_equal", "less", "less_equal"),
        **_binary("Tensor", "not_equal", "clamp_min", "clamp_max"),
        **{f"aten::{name}.Scalar": (integers, 5) for name in bits},
        **{f"aten::{name}.Tensor": (integers, other) for name in bits},
        "aten::_is_all_true.default": (mask,),
        "aten::_is_any_true.default": (mask,),
        "aten::_log_softmax.default": (_x(3, 4), 1, False),
        "aten::_softmax.default": (_x(3, 4), 1, False),
        "aten::col2im.default": (_x(2, 12, 12), (4, 5), (2, 2), (1, 1), (0, 0), (1, 1)),
        "aten::_reshape_alias.default": (_x(3, 4), [4, 3], [3, 1]),
        "aten::_to_copy.default": (_x(3, 4),),
        "aten::_unsafe_view.default": (_x(3, 4), [4, 3]),
        "aten::_weight_norm.default": (_x(3, 4), _x(3, 1), 0),
        "aten::arange.default": (5,),
        "aten::arctan2.default": (_x(3, 4), _x(3, 4)),
        "aten::clamp.default": (_x(3, 4), 0.4, 0.8),
        "aten::clamp_max.default": (_x(3, 4), 0.5),
        "aten::clamp_min.default": (_x(3, 4), 0.5),
        "aten::clip.default": (_x(3, 4), 0.4, None),
        "aten::clip.Tensor": (_x(3, 4), _x(4), _x(4) + 1),
        "aten::concat.default": ([_x(3, 4), _x(2, 4)],),
        "aten::concatenate.default": ([_x(3, 4), _x(3, 2)], 1),
        "aten::conv2d.padding": (_x(2, 3, 6, 7), _x(4, 3, 3, 2), _x(4), [1, 1], "same"),
        "aten::convolution.default": (_x(2, 3, 6, 7), _x(4, 3, 3, 2), None, [2, 1], [1, 0], [1, 1], False, [0, 0], 1),
        "aten::copy.default": (integers, other[0]),
        "aten::cross_entropy_loss.default": (_x(5, 4), torch.arange(5) % 4),
        "aten::div.Scalar_mode": (_x(3, 4), 0.3),
        "aten::divide.Tensor_mode": (_x(3, 4), _x(3, 4)),
        "aten::floor_divide.Scalar": (integers, 5),
        "aten::gru_cell.default": (_x(3, 4), _x(3, 5), _x(15, 4), _x(15, 5), _x(15), _x(15)),
        "aten::lstm_cell.default": (_x(3, 4), [_x(3, 5), _x(3, 5)], _x(20, 4), _x(20, 5), _x(20), _x(20)),
        "aten::gru.input": (_x(4, 3, 4), _x(2, 3, 5), _layer(15), True, 1, 0.0, True, True, False),
        "aten::lstm.input": (_x(3, 4, 4), [_x(2, 3, 5), _x(2, 3, 5)], _layer(20), True, 1, 0.0, True, True, True),
        "aten::rnn_tanh.input": (_x(4, 3, 4), _x(2, 3, 5), _layer(5), True, 1, 0.0, True, True, False),
        "aten::rnn_relu.input": (_x(4, 3, 4), _x(2, 3, 5), _layer(5), True, 1, 0.0, True, True, False),
        "aten::rnn_tanh_cell.default": (_x(3, 4), _x(3, 5), _x(5, 4), _x(5, 5), _x(5), _x(5)),
        "aten::rnn_relu_cell.default": (_x(3, 4), _x(3, 5), _x(5, 4), _x(5, 5)),
        "aten::fill.Tensor": (_x(3, 4), _x()),
        "aten::index.Tensor": (_x(3, 4, 5), [torch.tensor([2, 0, 2]), None, torch.tensor([1, 4, 0])]),
        "aten::linalg_matmul.default": (_x(2, 3, 4), _x(4, 5)),
        "aten::meshgrid.default": ([_x(3), _x(4)],),
        "aten::moveaxis.int": (_x(2, 3, 4), 0, 2),
        "aten::moveaxis.intlist": (_x(2, 3, 4), [0, 1], [2, 0]),
        "aten::movedim.int": (_x(2, 3, 4), 2, 0),
        "aten::nll_loss.default": (_x(5, 4), torch.arange(5) % 4),
        "aten::nll_loss2d.default": (_x(2, 4, 3, 3), torch.arange(18).view(2, 3, 3) % 4),
        "aten::norm.Scalar": (_x(3, 4), 3),
        "aten::norm.ScalarOpt_dim": (_x(3, 4), 2, [1]),
        "aten::pow.Scalar": (1.5, _x(3, 4)),
        "aten::pow.Tensor_Scalar": (_x(3, 4), 2.5),
        "aten::reflection_pad1d.default": (_x(2, 5), [1, 2]),
        "aten::reflection_pad2d.default": (_x(2, 4, 5), [1, 2, 0, 3]),
        "aten::reflection_pad3d.default": (_x(2, 3, 4, 5), [1, 2, 0, 3, 1, 1]),
        "aten::replication_pad1d.default": (_x(2, 5), [1, 2]),
        "aten::replication_pad2d.default": (_x(2, 4, 5), [1, 2, 0, 3]),
        "aten::replication_pad3d.default": (_x(2, 3, 4, 5), [1, 2, 0, 3, 1, 1]),
        "aten::scatter.value": (_x(3, 4), 1, other[:, :2] % 4, 0.5),
        "aten::scatter.value_reduce": (integers, 1, other[:, :2] % 4, 2),
        "aten::special_digamma.default": (_x(3, 4) ** 2 + 0.5,),
        "aten::special_gammaln.default": (_x(3, 4) ** 2 + 0.5,),
        "aten::special_psi.default": (_x(3, 4) ** 2 + 0.5,),
        "aten::_adaptive_avg_pool2d.default": (_x(2, 3, 4, 6), [2, 3]),
        "aten::_adaptive_avg_pool3d.default": (_x(2, 3, 4, 6, 2), [2, 3, 1]),
        "aten::split.sizes": (_x(3, 4), [1, 3], 1),
        "aten::split_copy.Tensor": (_x(3, 4), 3, 1),
        "aten::swapaxes.default": (_x(3, 4), 0, 1),
        "aten::swapdims.default": (_x(3, 4), 0, 1),
        "aten::to.dtype": (_x(3, 4), torch.float32),
        "aten::to.other": (_x(3, 4), integers),
        "aten::type_as.default": (_x(3, 4), _x(2).float()),
        "aten::unsafe_split_with_sizes.default": (_x(3, 4), [1, 3], 1),
        "aten::upsample_bilinear2d.default": (_x(1, 2, 3, 4), [6, 8], True),
        "aten::upsample_bilinear2d.vec": (_x(1, 2, 3, 4), [5, 9], False, None),
        "aten::upsample_nearest2d.default": (_x(1, 2, 3, 4), [6, 8]),
        "aten::upsample_nearest2d.vec": (_x(1, 2, 3, 4), None, [2.0, 2.0]),
        "aten::upsample_linear1d.vec": (_x(2, 3, 5), [8], False, None),
        "aten::upsample_nearest1d.vec": (_x(2, 3, 5), None, [2.0]),
        "aten::upsample_nearest3d.vec": (_x(2, 3, 4, 5, 3), [5, 8, 2], None),
        "aten::upsample_trilinear3d.vec": (_x(2, 3, 4, 5, 3), [5, 8, 6], True, None),
        "aten::where.Scalar": (mask, 1.5, 0.5),
        "aten::where.ScalarOther": (mask, _x(3, 4), 0.5),
        "aten::where.ScalarSelf": (mask, 1.5, _x(3, 4)),
    }
    keywords = {
        "aten::div.Scalar_mode": {"rounding_mode": "floor"},
        "aten::divide.Tensor_mode": {"rounding_mode": "trunc"},
        "aten::_to_copy.default": {"dtype": torch.float32},
        "aten::scatter.value_reduce": {"reduce": "add"},
    }
    return {target: (arguments, keywords.get(target, {})) for target, arguments in samples.items()}
