"""What the op tests leave out, each with its reason. No entry hides a wrong value."""

import torch

# OpInfos (by name) whose values are not comparable: only dtypes and sizes are checked.
DRAWS = "PyTorch draws other random numbers; means, variances and repeatability have tests of their own"
UNDEFINED = "its values are undefined"
NO_VALUES = {
    "bernoulli": DRAWS,
    "nn.functional.dropout2d": DRAWS,
    "nn.functional.rrelu": DRAWS,
    "nn.functional.dropout": DRAWS,
    "normal": DRAWS,
    "rand_like": DRAWS,
    "randint": DRAWS,
    "randint_like": DRAWS,
    "randn": DRAWS,
    "randn_like": DRAWS,
    "uniform": DRAWS,
    "empty": UNDEFINED,
    "empty_like": UNDEFINED,
    "empty_permuted": UNDEFINED,
    "new_empty": UNDEFINED,
}

DATA = "the result's size depends on data"
SIZE_IN_TENSOR = "a size or position comes in a tensor: PyTorch's exporter makes it a size that depends on data"

# OpInfo name → (condition on (dtype, sample), reason)
SAMPLES = {
    "argsort": (
        lambda dtype, sample: dtype is torch.bool,
        "the order of equal entries is PyTorch's own, unless stable",
    ),
    "as_strided": (
        lambda dtype, sample: sample.input.untyped_storage().nbytes() > sample.input.nbytes,
        "it reads the memory around a view that an argument is",
    ),
    "narrow": (lambda dtype, sample: isinstance(sample.args[1], torch.Tensor), SIZE_IN_TENSOR),
    "nn.functional.batch_norm": (
        lambda dtype, sample: sample.input.dim() < 2,
        "PyTorch's own tracing fails on fewer than two dims",
    ),
    "nn.functional.instance_norm": (
        lambda dtype, sample: sample.kwargs.get("running_mean") is not None,
        "it updates running statistics: refused with its reason",
    ),
    "nn.functional.one_hot": (lambda dtype, sample: sample.kwargs.get("num_classes", -1) == -1, DATA),
    "nn.functional.scaled_dot_product_attention": (
        lambda dtype, sample: sample.kwargs.get("dropout_p", 0) > 0,
        DRAWS,
    ),
    "repeat_interleave": (
        lambda dtype, sample: isinstance(sample.kwargs.get("repeats", (*sample.args, 0)[0]), torch.Tensor),
        DATA,
    ),
    "sort": (
        lambda dtype, sample: dtype is torch.bool and not sample.kwargs.get("stable"),
        "the order of equal entries is PyTorch's own, unless stable",
    ),
    "sparse.mm": (lambda dtype, sample: True, "sparse tensors"),
    "tensor_split": (lambda dtype, sample: isinstance(sample.args[0], torch.Tensor), SIZE_IN_TENSOR),
    "unique": (
        lambda dtype, sample: "dim" in sample.kwargs or not sample.kwargs.get("sorted", True),
        "along one dim, or in an order that PyTorch leaves open",
    ),
    "unique_consecutive": (lambda dtype, sample: "dim" in sample.kwargs, "along one dim"),
}


def skip_reason(op, dtype, sample):
    """Why this sample is left out, or empty."""
    condition, reason = SAMPLES.get(op.name, (None, ""))
    return reason if condition is not None and condition(dtype, sample) else ""


# OpInfo name → (dtype, rtol, reason), where PyTorch's own result is not exact to the usual tolerance.
TOLERANCES = {
    "digamma": (torch.float32, 1e-4, "places near poles"),
    "nn.functional.ctc_loss": (
        torch.float32,
        1e-3,
        "paths of 50 steps, which PyTorch adds up in float32: test_ctc_loss.py",
    ),
    "nn.functional.scaled_dot_product_attention": (
        torch.float32,
        1e-4,
        "scores near 100, whose roundings are parts in 100,000 of the probabilities: test_attention_rounding.py",
    ),
}

# Targets that stay on PyTorch's kernel for some arguments, whose results are still compared.
INTEGERS = "integer matrix products and windows"
ZERO_DIM = "0-d tensors"
STAYS = {
    "aten::addbmm.default": INTEGERS,
    "aten::addmm.default": INTEGERS,
    "aten::addr.default": INTEGERS,
    "aten::inner.default": INTEGERS,
    "aten::linalg_norm.default": "norms of matrices; negative orders",
    "aten::rrelu.default": "slopes that are drawn",
    "aten::addmv.default": INTEGERS,
    "aten::baddbmm.default": INTEGERS,
    "aten::bmm.default": INTEGERS,
    "aten::dot.default": INTEGERS,
    "aten::einsum.default": INTEGERS,
    "aten::linear.default": INTEGERS,
    "aten::matmul.default": INTEGERS,
    "aten::mm.default": INTEGERS,
    "aten::mv.default": INTEGERS,
    "aten::avg_pool1d.default": INTEGERS,
    "aten::avg_pool2d.default": INTEGERS + "; a divisor of its own with windows cut at the border",
    "aten::avg_pool3d.default": INTEGERS + "; a divisor of its own with windows cut at the border",
    "aten::conv1d.default": INTEGERS,
    "aten::conv1d.padding": INTEGERS,
    "aten::conv2d.default": INTEGERS,
    "aten::conv2d.padding": INTEGERS,
    "aten::conv3d.default": INTEGERS,
    "aten::conv3d.padding": INTEGERS,
    "aten::conv_transpose1d.default": INTEGERS,
    "aten::conv_transpose2d.input": INTEGERS + "; an output padded by a stride or more",
    "aten::conv_transpose3d.input": INTEGERS + "; an output padded by a stride or more",
    "aten::adaptive_max_pool1d.default": "windows of unequal sizes",
    "aten::adaptive_max_pool2d.default": "windows of unequal sizes",
    "aten::adaptive_max_pool3d.default": "windows of unequal sizes",
    "aten::cosine_similarity.default": ZERO_DIM,
    "aten::gather.default": ZERO_DIM + "; an empty index of another rank",
    "aten::index_add.default": ZERO_DIM + "; booleans",
    "aten::index_copy.default": ZERO_DIM,
    "aten::index_fill.int_Scalar": ZERO_DIM,
    "aten::index_fill.int_Tensor": ZERO_DIM,
    "aten::histc.default": "bounds that the data has",
    "aten::index_put.default": "accumulating booleans",
    "aten::index_select.default": ZERO_DIM,
    "aten::log_softmax.int": ZERO_DIM,
    "aten::max.dim": ZERO_DIM + "; booleans",
    "aten::nonzero_numpy.default": ZERO_DIM,
    "aten::min.dim": ZERO_DIM + "; booleans",
    "aten::scatter.reduce": ZERO_DIM + "; products of floats",
    "aten::scatter.src": ZERO_DIM,
    "aten::scatter.value": ZERO_DIM,
    "aten::scatter.value_reduce": ZERO_DIM + "; products of floats",
    "aten::scatter_add.default": ZERO_DIM,
    "aten::scatter_reduce.two": ZERO_DIM + "; products; extremes of floats without the old entry",
    "aten::softmax.int": ZERO_DIM,
    "aten::topk.default": ZERO_DIM,
    "aten::unfold.default": ZERO_DIM,
    "aten::arange.start_step": "integers out of floating bounds; rows that are rounded",
    "aten::linspace.default": "integers; rows that are rounded",
    "aten::hardtanh.default": "integers",
    "aten::relu6.default": "integers",
    "aten::outer.default": "booleans",
    "aten::sgn.default": "booleans",
    "aten::sign.default": "booleans",
    "aten::round.decimals": "decimals other than 0",
    "aten::linalg_vector_norm.default": "order 0",
}

# Lowered targets that no test here calls.
REFUSED = "refused with its reason: " + DATA
PACKED = "stands in a captured graph only: tests/ortmodule/test_recurrent_kernels.py"
ELSEWHERE = "sizes from data need an export: tests/ortmodule/test_data_sizes.py"
NO_GENERATOR = "draws without a generator have a test of their own: tests/ortmodule/test_execution_operators.py"
AFTER = "only functionalise makes it, tested by its goldens"
NOT_CALLED = {
    "aten::unique_dim.default": REFUSED,
    "aten::_native_batch_norm_legit_functional.default": AFTER,
    "aten::normal_functional.default": AFTER,
    "aten::uniform.default": AFTER,
    "aten::bernoulli.p": DRAWS,
    "aten::native_dropout.default": DRAWS,
    "aten::rand.default": DRAWS,
    "aten::rand_like.default": DRAWS,
    "aten::rand_like.generator": NO_GENERATOR,
    "aten::randn_like.generator": NO_GENERATOR,
    "aten::lift.default": "the exporter's copy of a constant: an input of the graph here",
    "aten::lift_fresh.default": "the exporter's copy of a constant: an input of the graph here",
    "aten::lift_fresh_copy.default": "the exporter's copy of a constant: an input of the graph here",
    "aten::_grouped_mm.default": ELSEWHERE,
    "aten::_unique2.default": ELSEWHERE,
    "aten::repeat_interleave.self_Tensor": ELSEWHERE,
    "aten::unique_consecutive.default": ELSEWHERE,
    "aten::where.default": ELSEWHERE,
    "transformers::grouped_mm_fallback.default": ELSEWHERE,
    "lowtide::overwrite.default": AFTER,
    "lowtide::packed_gru.default": PACKED,
    "lowtide::packed_lstm.default": PACKED,
    "lowtide::packed_rnn_relu.default": PACKED,
    "lowtide::packed_rnn_tanh.default": PACKED,
    "aten::norm.ScalarOpt_dim_dtype": "norm.ScalarOpt_dim with a cast before it",
    "aten::to.dtype_layout": "to.dtype with a layout, which capture leaves out",
}
