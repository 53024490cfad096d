// Convolutions, pools and resizing over [N, C, d1 .. dk].
#include <algorithm>

#include "lower/targets.h"

namespace lowtide {

// x with a batch dim; the window ops need one.
static ValueId batched(Call& c, ValueId x, size_t spatial) {
  return c.b.rank(x) == static_cast<int64_t>(spatial) + 1 ? c.b.unsqueeze(x, {0}) : x;
}

static std::vector<Dim> twice(const std::vector<Dim>& pads) {
  std::vector<Dim> result = pads;
  result.insert(result.end(), pads.begin(), pads.end());
  return result;
}

static bool are_constant(const std::vector<Dim>& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.is_constant(); });
}

// Whether kernels can be prepared for such windows before the sizes of a call are known.
static bool are_known(const std::vector<Dim>& strides, const std::vector<Dim>& pads, const std::vector<Dim>& dilations,
                      const Dim& groups) {
  return are_constant(strides) && are_constant(pads) && are_constant(dilations) && groups.is_constant();
}

// w[M, C / groups, k..]
static Attrs convolution(const Shape& w, const std::vector<Dim>& strides, const std::vector<Dim>& pads,
                         const std::vector<Dim>& dilations, const Dim& groups) {
  Attrs attrs{{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"group", groups}};
  if (const std::vector<Dim> kernel(w.begin() + 2, w.end()); are_constant(kernel)) attrs.set("kernel_shape", kernel);
  return attrs;
}

// Kernels of large windows are of images. Those of PyTorch over lines are as fast for the others, whose images would
// have to be turned around norms that take rows. The bound is that of kernels/cpu/convolution/window_convolution.cpp.
static bool has_a_large_window_over_lines(DType dtype, const Shape& w) {
  constexpr int64_t kLarge = int64_t{1} << 19;
  const Dim numbers = numel(w);
  return dtype == DType::kF32 && w.size() == 3 && numbers.is_constant() && numbers.constant() >= kLarge;
}

// One window a channel: the kernels are of images, whose channels lie side by side, as rows of features do.
static bool is_depthwise_over_lines(DType dtype, const Shape& w, const Dim& groups) {
  return dtype != DType::kF64 && w.size() == 3 && w[0] == groups && w[1].is(1) && !groups.is(1);
}

// [N, C, L] as [N, C, 1, L].
static ValueId as_image_of_a_line(Builder& b, ValueId x) {
  const Shape& shape = b.shape(x);
  return b.reshape(x, {shape[0], shape[1], 1, shape[2]});
}

// The gradient, for its input, of the convolution that maps the result to the operand.
bool lower_conv_transpose(Call& c) {
  const DType dtype = c.dtype();
  const ValueId w = c.operand("weight", dtype);
  const size_t spatial = static_cast<size_t>(c.b.rank(w)) - 2;
  if (!is_float(dtype)) return false;
  const std::vector<Dim> strides = c.window("stride", spatial, 1), dilations = c.window("dilation", spatial, 1);
  const std::vector<Dim> pads = c.window("padding", spatial, 0), more = c.window("output_padding", spatial, 0);
  const ValueId x = batched(c, c.operand("input", dtype), spatial);
  const Dim groups = c.has("groups") ? c.dim("groups") : Dim(1);
  if (!are_known(strides, pads, dilations, groups)) return false;
  Shape shape{c.b.shape(x)[0], c.b.shape(w)[1] * groups};
  for (size_t i = 0; i < spatial; ++i) {
    // More padding than strides leave open would be windows of that convolution.
    if (!more[i].is_constant() || more[i].constant() >= strides[i].constant()) return false;
    shape.push_back((c.b.shape(x)[i + 2] - 1) * strides[i] - pads[i] * 2 + dilations[i] * (c.b.shape(w)[i + 2] - 1) +
                    more[i] + 1);
  }
  const NodeId node =
      c.b.node(Op::kConvGrad, {x, c.b.expand(c.b.scalar(0, dtype), shape), w},
               convolution(c.b.shape(w), strides, twice(pads), dilations, groups), {true, false, false});
  ValueId y = c.b.graph().node(node).outputs[0];
  if (c.is_tensor("bias")) {
    Shape per_channel(spatial + 1, Dim(1));
    per_channel[0] = shape[1];
    y = c.b.add(y, c.b.reshape(c.operand("bias", dtype), per_channel));
  }
  return c.result(c.b.reshape(y, c.shape()));
}

// x[N, C, d1 .. dk] with what its ends have more than its beginnings, which `pads` says no more then: libraries pad
// both alike.
static ValueId evenly_padded(Call& c, ValueId x, std::vector<Dim>& pads) {
  const size_t spatial = pads.size() / 2;
  std::vector<Dim> more(2 * spatial + 4, Dim(0));
  bool is_even = true;
  for (size_t i = 0; i < spatial; ++i) {
    more[spatial + 4 + i] = pads[spatial + i] - pads[i];
    is_even = is_even && more[spatial + 4 + i] == Dim(0);
    pads[spatial + i] = pads[i];
  }
  return is_even ? x : c.b.op(Op::kPad, {x}, {{"pads", more}, {"mode", "constant"}, {"value", 0.0}});
}

// Whether windows are one place each, one after another: then it does not matter how places are shaped.
static bool is_pointwise(const Shape& w, const std::vector<Dim>& strides, const std::vector<Dim>& pads) {
  const auto is_one = [](const Dim& dim) { return dim.is(1); };
  return std::all_of(w.begin() + 2, w.end(), is_one) && std::all_of(strides.begin(), strides.end(), is_one) &&
         std::all_of(pads.begin(), pads.end(), [](const Dim& dim) { return dim.is(0); });
}

// [N, C, D, H, W] as the [N, C, D, H * W] that pointwise convolutions have a kernel for.
static ValueId as_image(Builder& b, ValueId x) {
  const Shape& shape = b.shape(x);
  return b.reshape(x, {shape[0], shape[1], shape[2], shape[3] * shape[4]});
}

bool lower_conv(Call& c) {
  const DType dtype = c.dtype();
  const ValueId w = c.operand("weight", dtype);
  const size_t spatial = static_cast<size_t>(c.b.rank(w)) - 2;
  if (c.flag("transposed")) return lower_conv_transpose(c);
  if (!is_float(dtype)) return false;
  std::vector<Dim> strides = c.window("stride", spatial, 1), dilations = c.window("dilation", spatial, 1);
  std::vector<Dim> pads(2 * spatial, Dim(0));
  ValueId x = batched(c, c.operand("input", dtype), spatial);
  if (const std::string padding = c.text_or_empty("padding"); padding == "same") {
    for (size_t i = 0; i < spatial; ++i) {
      const Dim total = dilations[i] * (c.b.shape(w)[i + 2] - 1);
      pads[i] = floordiv(total, 2);
      pads[spatial + i] = total - pads[i];
    }
    x = evenly_padded(c, x, pads);
  } else if (padding.empty()) {
    pads = twice(c.window("padding", spatial, 0));
  }
  std::vector<ValueId> operands{x, w};
  if (c.is_tensor("bias")) operands.push_back(c.operand("bias", dtype));
  const Dim groups = c.has("groups") ? c.dim("groups") : Dim(1);
  if (!are_known(strides, pads, dilations, groups)) return false;
  if (spatial == 3 && is_pointwise(c.b.shape(w), strides, pads)) {
    operands[0] = as_image(c.b, x);
    operands[1] = as_image(c.b, w);
    const ValueId y =
        c.b.op(Op::kConv, operands, convolution(c.b.shape(operands[1]), {1, 1}, {0, 0, 0, 0}, {1, 1}, groups));
    return c.result(c.b.reshape(y, c.shape()));
  }
  if (has_a_large_window_over_lines(dtype, c.b.shape(w)) || is_depthwise_over_lines(dtype, c.b.shape(w), groups)) {
    operands[0] = as_image_of_a_line(c.b, x);
    operands[1] = as_image_of_a_line(c.b, w);
    strides.insert(strides.begin(), 1);
    dilations.insert(dilations.begin(), 1);
    pads = {0, pads[0], 0, pads[1]};
  }
  const ValueId y = c.b.op(Op::kConv, operands, convolution(c.b.shape(operands[1]), strides, pads, dilations, groups));
  return c.result(c.b.reshape(y, c.shape()));
}

// The number of window dims: max_pool2d → 2.
static size_t spatial_of(Call& c) {
  const size_t digit = c.node().target.find_first_of("123", sizeof("aten::") - 1);
  return static_cast<size_t>(c.node().target.at(digit) - '0');
}

static std::vector<Dim> strides_of(Call& c, const std::vector<Dim>& kernel) {
  const std::vector<Dim> given = c.dims("stride");
  return given.empty() ? kernel : c.window("stride", kernel.size(), 1);
}

static bool max_pool(Call& c, ValueId x, const std::vector<Dim>& kernel, const std::vector<Dim>& strides,
                     const std::vector<Dim>& pads, const std::vector<Dim>& dilations, bool ceil_mode) {
  const NodeId node = c.b.node(Op::kMaxPool, {x},
                               {{"kernel_shape", kernel},
                                {"strides", strides},
                                {"pads", pads},
                                {"dilations", dilations},
                                {"ceil_mode", ceil_mode}});
  const std::vector<ValueId> outputs = c.b.graph().node(node).outputs;
  for (size_t i = 0; i < 2; ++i)
    if (c.wants(i)) c.result(c.b.reshape(outputs[i], c.shape(i)), i);
  return true;
}

bool lower_max_pool(Call& c) {
  const size_t spatial = spatial_of(c);
  const std::vector<Dim> kernel = c.window("kernel_size", spatial, 1);
  return max_pool(c, batched(c, c.tensor("self"), spatial), kernel, strides_of(c, kernel),
                  twice(c.window("padding", spatial, 0)), c.window("dilation", spatial, 1), c.flag("ceil_mode"));
}

static ValueId average(Call& c, ValueId x, const std::vector<Dim>& kernel, const std::vector<Dim>& strides,
                       const std::vector<Dim>& pads, bool ceil_mode, bool count_pads) {
  return c.b.op(Op::kAveragePool, {x},
                {{"kernel_shape", kernel},
                 {"strides", strides},
                 {"pads", pads},
                 {"ceil_mode", ceil_mode},
                 {"count_include_pad", count_pads}});
}

// divisor_override divides the sum by a number of its own.
bool lower_avg_pool(Call& c) {
  if (!is_float(c.dtype())) return false;
  const size_t spatial = spatial_of(c);
  const std::vector<Dim> kernel = c.window("kernel_size", spatial, 1);
  const bool ceil_mode = c.flag("ceil_mode"), count_pads = c.flag("count_include_pad", true);
  double factor = 1;
  if (c.has("divisor_override")) {
    if (ceil_mode || !count_pads || !are_constant(kernel)) return false;
    factor = static_cast<double>(numel(kernel).constant()) / c.real("divisor_override");
  }
  ValueId y = average(c, batched(c, c.tensor("self"), spatial), kernel, strides_of(c, kernel),
                      twice(c.window("padding", spatial, 0)), ceil_mode, count_pads);
  if (factor != 1) y = c.b.mul(y, factor);
  return c.result(c.b.reshape(y, c.shape()));
}

// The windows by which an adaptive pool makes `out` of `in`, over the last dims, where they are of equal size: where
// the output divides the input. Else none.
static std::vector<Dim> equal_windows(const Shape& in, const Shape& out, size_t spatial) {
  std::vector<Dim> kernel;
  for (size_t i = in.size() - spatial; i < in.size(); ++i) {
    kernel.push_back(out[i].is(0) ? Dim(1) : floordiv(in[i], out[i]));
    if (!kernel.back().is_constant() || kernel.back() * out[i] != in[i]) return {};
  }
  return kernel;
}

static ValueId adaptive_average(Call& c, ValueId x, const Shape& shape, const Dim& height, const Dim& width) {
  return c.b.op(Op::kAdaptiveAveragePool, {c.b.reshape(x, shape)}, {{"sizes", std::vector<Dim>{height, width}}});
}

// An output of 1 is a mean, whatever the size. Else one dim comes with another of size 1, three go in two steps.
bool lower_adaptive_avg_pool(Call& c) {
  if (!is_float(c.dtype())) return false;
  const size_t spatial = spatial_of(c);
  ValueId x = c.tensor("self");
  const Shape in = c.b.shape(x), &out = c.shape();
  if (in == out) return c.result(x);
  std::vector<int64_t> axes;
  for (size_t i = in.size() - spatial; i < in.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (std::all_of(axes.begin(), axes.end(), [&](int64_t i) { return out[static_cast<size_t>(i)].is(1); }))
    return c.result(c.b.reduce(Op::kReduceMean, x, axes, true));
  x = batched(c, x, spatial);
  if (const std::vector<Dim> kernel = equal_windows(in, out, spatial); !kernel.empty()) {
    x = average(c, x, kernel, kernel, std::vector<Dim>(2 * spatial, Dim(0)), false, true);
    return c.result(c.b.reshape(x, out));
  }
  const Shape from = c.b.shape(x);
  const std::vector<Dim> to(out.end() - static_cast<int64_t>(spatial), out.end());
  if (spatial == 1) {
    x = adaptive_average(c, x, {from[0], from[1], 1, from[2]}, 1, to[0]);
  } else if (spatial == 2) {
    x = adaptive_average(c, x, from, to[0], to[1]);
  } else {
    x = adaptive_average(c, x, {from[0], from[1] * from[2], from[3], from[4]}, to[1], to[2]);
    x = adaptive_average(c, x, {from[0], from[1], from[2], to[1] * to[2]}, to[0], to[1] * to[2]);
  }
  return c.result(c.b.reshape(x, out));
}

bool lower_adaptive_max_pool(Call& c) {
  const size_t spatial = spatial_of(c);
  const ValueId x = batched(c, c.tensor("self"), spatial);
  const std::vector<Dim> kernel = equal_windows(c.b.shape(c.tensor("self")), c.shape(), spatial);
  if (kernel.empty()) return false;
  return max_pool(c, x, kernel, kernel, std::vector<Dim>(2 * spatial, Dim(0)), std::vector<Dim>(spatial, Dim(1)),
                  false);
}

// PyTorch maps positions by the scale factor that it was given, the node by the ratio of sizes: they must agree.
static bool scales_agree(Call& c, const Shape& in) {
  const std::vector<double> factors = c.reals("scale_factors");
  for (size_t i = 0; i < factors.size(); ++i) {
    const Dim &from = in[in.size() - factors.size() + i], &to = c.shape()[in.size() - factors.size() + i];
    const bool exact = from.is_constant() && to.is_constant()
                           ? static_cast<double>(from.constant()) * factors[i] == static_cast<double>(to.constant())
                           : factors[i] == static_cast<double>(static_cast<int64_t>(factors[i])) &&
                                 from * Dim(static_cast<int64_t>(factors[i])) == to;
    if (!exact) return false;
  }
  return true;
}

// Resize has two window dims: one comes with another of size 1, three are resized in two steps.
static bool resize(Call& c, const std::string& mode, bool align_corners) {
  ValueId x = c.has("input") ? c.tensor("input") : c.tensor("self");
  const Shape in = c.b.shape(x), &out = c.shape();
  if (!scales_agree(c, in)) return false;
  const auto step = [&](const Shape& from, const Dim& height, const Dim& width) {
    x = c.b.op(Op::kResize, {c.b.reshape(x, from)},
               {{"sizes", std::vector<Dim>{height, width}}, {"mode", mode}, {"align_corners", align_corners}});
  };
  if (in.size() == 3) {
    step({in[0], in[1], 1, in[2]}, 1, out[2]);
  } else if (in.size() == 4) {
    step(in, out[2], out[3]);
  } else {
    step({in[0], in[1] * in[2], in[3], in[4]}, out[3], out[4]);
    step({in[0], in[1], in[2], out[3] * out[4]}, out[2], out[3] * out[4]);
  }
  return c.result(c.b.reshape(x, out));
}
bool lower_upsample_linear(Call& c) { return resize(c, "bilinear", c.flag("align_corners")); }
bool lower_upsample_nearest(Call& c) { return resize(c, "nearest", false); }

static Attrs windows(Call& c) {
  return {{"kernel_shape", c.window("kernel_size", 2, 1)},
          {"strides", c.window("stride", 2, 1)},
          {"pads", twice(c.window("padding", 2, 0))},
          {"dilations", c.window("dilation", 2, 1)}};
}

bool lower_im2col(Call& c) {
  ValueId x = batched(c, c.tensor("self"), 2);
  if (c.dtype() == DType::kBool) x = c.b.cast(x, DType::kF32);
  if (!is_float(c.b.dtype(x))) return false;
  return c.result(c.b.reshape(c.b.op(Op::kIm2Col, {x}, windows(c)), c.shape()));
}

bool lower_col2im(Call& c) {
  if (!is_float(c.dtype())) return false;
  Builder& b = c.b;
  const std::vector<Dim> kernel = c.window("kernel_size", 2, 1), stride = c.window("stride", 2, 1),
                         padding = c.window("padding", 2, 0), dilation = c.window("dilation", 2, 1);
  Shape shape = c.shape();
  if (shape.size() == 3) shape.insert(shape.begin(), Dim(1));
  Shape columns{shape[0], shape[1], kernel[0], kernel[1]};
  for (size_t i = 0; i < 2; ++i)
    columns.push_back(floordiv(shape[2 + i] + padding[i] * 2 - dilation[i] * (kernel[i] - 1) - 1, stride[i]) + 1);
  Attrs attrs = windows(c);
  attrs.set("shape", shape);
  return c.result(b.reshape(b.op(Op::kCol2Im, {b.reshape(c.tensor("self"), columns)}, attrs), c.shape()));
}

}  // namespace lowtide
