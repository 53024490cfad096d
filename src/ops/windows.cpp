// Convolutions, pools and resizing over [N, C, d1 .. dk].
#include "ops/builder.h"
#include "ops/inference.h"

namespace lowtide {

// One number per window dim.
static std::vector<int64_t> per_dim(const InferArgs& args, std::string_view name, size_t count, int64_t least) {
  const std::vector<int64_t> values = constants_attr(args, name);
  LT_INFER_CHECK(args, values.size() == count, name, " has ", values.size(), " entries, expected ", count);
  for (int64_t value : values)
    LT_INFER_CHECK(args, value >= least && value <= INT32_MAX, name, "=[", join(values, ", "), "]: expected ", least,
                   " to ", INT32_MAX);  // kernels multiply them by coordinates
  return values;
}

// Output sizes of windows that slide over `x`'s dims from 2 on.
static Shape window_sizes(const InferArgs& args, const TensorType& x, const std::vector<Dim>& kernel, bool ceil_mode) {
  const size_t count = kernel.size();
  LT_INFER_CHECK(args, x.shape.size() == count + 2 && count >= 1, "x must be [N, C, and ", count, " more dims], is ",
                 to_string(x));
  const std::vector<int64_t> strides = per_dim(args, "strides", count, 1), pads = per_dim(args, "pads", 2 * count, 0);
  const std::vector<int64_t> dilations =
      args.attrs.has("dilations") ? per_dim(args, "dilations", count, 1) : std::vector<int64_t>(count, 1);
  Shape sizes;
  for (size_t i = 0; i < count; ++i) {
    const Dim& size = x.shape[i + 2];
    // With ceil_mode the last window, which may be the only one, may reach beyond the end by less than a stride.
    const Dim reach =
        size + (pads[i] + pads[i + count] + (ceil_mode ? strides[i] - 1 : 0)) - Dim(dilations[i]) * (kernel[i] - 1) - 1;
    LT_INFER_CHECK(args, !reach.is_constant() || reach.constant() >= 0, "the window is larger than dim ", i + 2, " of ",
                   to_string(x));
    Dim out = floordiv(reach, strides[i]) + 1;
    // The last window must start inside of the input or its left padding.
    if (ceil_mode) out = min(out, floordiv(size + (pads[i] - 1), strides[i]) + 1);
    sizes.push_back(out);
  }
  return sizes;
}

static TensorType convolved(const InferArgs& args, const TensorType& x, const TensorType& w) {
  LT_INFER_CHECK(args, x.shape.size() >= 3 && w.shape.size() == x.shape.size(),
                 "x and w differ in rank: ", to_string(x), " and ", to_string(w));
  const int64_t group = constant_attr(args, "group");
  LT_INFER_CHECK(args, group >= 1 && dims_agree(x.shape[1], w.shape[1] * Dim(group), args.ranges), "w ", to_string(w),
                 " in ", group, " groups does not fit the channels of ", to_string(x));
  LT_INFER_CHECK(args, !w.shape[0].is_constant() || w.shape[0].constant() % group == 0, group,
                 " groups do not divide the filters of ", to_string(w));
  TensorType y{x.dtype, {x.shape[0], w.shape[0]}};
  const Shape sizes = window_sizes(args, x, {w.shape.begin() + 2, w.shape.end()}, false);
  y.shape.insert(y.shape.end(), sizes.begin(), sizes.end());
  return y;
}

// y[n, m] = bias[m] + sum over channels c of the group of x[n, c] * w[m, c] (cross-correlation)
std::vector<TensorType> infer_conv(const InferArgs& args) {
  check_float(args, 0);
  check_same_dtype(args, 0, 1);
  const TensorType y = convolved(args, args.in(0), args.in(1));
  check_like_first(args, 2, "bias", {args.in(1).shape[0]});
  return {y};
}

std::vector<TensorType> infer_conv_grad(const InferArgs& args) {
  check_float(args, 0);
  check_same_dtype(args, 0, 1);
  check_same_dtype(args, 0, 2);
  check_shape(args, 0, "dy", convolved(args, args.in(1), args.in(2)).shape);
  return {args.in(1), args.in(2), {args.in(2).dtype, {args.in(2).shape[0]}}};
}

static TensorType pooled(const InferArgs& args) {
  const TensorType& x = args.in(0);
  check_rank_at_least(args, 0, 3);
  TensorType y{x.dtype, {x.shape[0], x.shape[1]}};
  const std::vector<int64_t> kernel = per_dim(args, "kernel_shape", x.shape.size() - 2, 1);
  const Shape sizes = window_sizes(args, x, dims(kernel), args.attrs.b("ceil_mode"));
  y.shape.insert(y.shape.end(), sizes.begin(), sizes.end());
  return y;
}

// Windows of an image, whose places a u8 can number.
static void check_places_in_window(const InferArgs& args, size_t rank) {
  LT_INFER_CHECK(args, rank == 4, "places in windows are those of images, not of rank ", rank);
  const std::vector<int64_t> kernel = per_dim(args, "kernel_shape", 2, 1);
  LT_INFER_CHECK(args, kernel[0] <= 256 && kernel[1] <= 256 && kernel[0] * kernel[1] <= 256, "a window of ", kernel[0],
                 " x ", kernel[1], " has more places than a u8 can number");
}

std::vector<TensorType> infer_max_pool_grad(const InferArgs& args) {
  const TensorType dx = infer_like_shape(args)[0];
  const DType indices = args.in(1).dtype;
  if (!args.attrs.has("kernel_shape")) {
    LT_INFER_CHECK(args, indices == DType::kI64, "indices must be i64, are ", name(indices));
    return {dx};
  }
  for (const char* each : {"strides", "pads", "dilations"})
    LT_INFER_CHECK(args, args.attrs.has(each), "a window needs ", each);
  check_places_in_window(args, dx.shape.size());
  for (const char* each : {"strides", "dilations"}) per_dim(args, each, 2, 1);
  per_dim(args, "pads", 4, 0);
  LT_INFER_CHECK(args, indices == DType::kU8, "places in windows must be u8, are ", name(indices));
  return {dx};
}

std::vector<TensorType> infer_max_pool(const InferArgs& args) {
  const TensorType y = pooled(args);
  if (!args.attrs.b("offsets", false)) return {y, {DType::kI64, y.shape}};
  check_places_in_window(args, y.shape.size());
  return {y, {DType::kU8, y.shape}};
}

std::vector<TensorType> infer_average_pool(const InferArgs& args) {
  check_float(args, 0);
  return {pooled(args)};
}

// x with other sizes of the last two dims.
static TensorType resized(const InferArgs& args) {
  TensorType y = args.in(0);
  check_float(args, 0);
  check_rank_at_least(args, 0, 3);
  const std::vector<Dim>& sizes = args.attrs.ints("sizes");
  LT_INFER_CHECK(args, sizes.size() == 2, "sizes has ", sizes.size(), " entries, expected those of the last two dims");
  y.shape.end()[-2] = sizes[0];
  y.shape.end()[-1] = sizes[1];
  return y;
}

std::vector<TensorType> infer_resize(const InferArgs& args) {
  check_word(args, "mode", "bilinear, nearest");
  return {resized(args)};
}

std::vector<TensorType> infer_adaptive_average_pool(const InferArgs& args) { return {resized(args)}; }

// The type of x's windows.
static TensorType windows_of(const InferArgs& args, const TensorType& x) {
  check_float(args, 0);
  LT_INFER_CHECK(args, x.shape.size() == 4, "x must be [N, C, H, W], is ", to_string(x));
  const std::vector<Dim> kernel = dims(per_dim(args, "kernel_shape", 2, 1));
  const Shape sizes = window_sizes(args, x, kernel, false);
  return {x.dtype, {x.shape[0], x.shape[1], kernel[0], kernel[1], sizes[0], sizes[1]}};
}

std::vector<TensorType> infer_im2col(const InferArgs& args) { return {windows_of(args, args.in(0))}; }

std::vector<TensorType> infer_col2im(const InferArgs& args) {
  const TensorType x{args.in(0).dtype, args.attrs.ints("shape")};
  check_shape(args, 0, "windows", windows_of(args, x).shape);
  return {x};
}

void grad_conv(GradContext& c) {
  if (!c.wants(0) && !c.wants(1)) {
    std::vector<int64_t> axes{0};
    for (int64_t i = 2; i < c.b().rank(c.dy()); ++i) axes.push_back(i);
    return c.set(2, c.b().reduce(Op::kReduceSum, c.dy(), axes, false));
  }
  // Only dw reads x; else a repeated zero, which has no bytes, gives its shape, and x is not kept.
  const TensorType x = c.type(c.in(0));
  const ValueId shown = c.wants(1) ? c.in(0) : c.b().expand(c.b().scalar(0, x.dtype), x.shape);
  const NodeId grad =
      c.b().node(Op::kConvGrad, {c.dy(), shown, c.in(1)}, c.attrs(), {c.wants(0), c.wants(1), c.wants(2)});
  for (size_t i = 0; i < 3; ++i)
    if (c.wants(i)) c.set(i, c.graph().node(grad).outputs[i]);
}

// dx is linear in dy and in w: its gradients are the convolution itself, and dw of the gradient in the place of x.
void grad_conv_grad(GradContext& c) {
  LT_CHECK(!c.dy(1).valid() && !c.dy(2).valid(), "a gradient of ConvGrad flows through dw or dbias");
  if (c.wants(0)) c.set(0, c.b().op(Op::kConv, {c.dy(), c.in(2)}, c.attrs()));
  if (!c.wants(2)) return;
  const NodeId grad = c.b().node(Op::kConvGrad, {c.in(0), c.dy(), c.in(2)}, c.attrs(), {false, true, false});
  c.set(2, c.graph().node(grad).outputs[1]);
}

void grad_max_pool(GradContext& c) {
  Attrs attrs{{"shape", c.type(c.in(0)).shape}};
  if (c.attrs().b("offsets", false))
    for (const char* each : {"kernel_shape", "strides", "pads", "dilations"}) attrs.set(each, c.attrs().ints(each));
  c.set(0, c.b().op(Op::kMaxPoolGrad, {c.dy(), c.out(1)}, attrs));
}

// By an op that is told the shape of what it makes.
static void set_gradient_of_shape(GradContext& c, Op op, Attrs attrs) {
  attrs.set("shape", c.type(c.in(0)).shape);
  c.set(0, c.b().op(op, {c.dy()}, std::move(attrs)));
}

void grad_average_pool(GradContext& c) { set_gradient_of_shape(c, Op::kAveragePoolGrad, c.attrs()); }

static Attrs without_sizes(Attrs attrs) {
  attrs.erase("sizes");
  return attrs;
}
void grad_resize(GradContext& c) { set_gradient_of_shape(c, Op::kResizeGrad, without_sizes(c.attrs())); }
void grad_adaptive_average_pool(GradContext& c) {
  set_gradient_of_shape(c, Op::kAdaptiveAveragePoolGrad, without_sizes(c.attrs()));
}

void grad_im2col(GradContext& c) { set_gradient_of_shape(c, Op::kCol2Im, c.attrs()); }

void grad_col2im(GradContext& c) {
  Attrs attrs = c.attrs();
  attrs.erase("shape");
  c.set(0, c.b().op(Op::kIm2Col, {c.dy()}, std::move(attrs)));
}

}  // namespace lowtide
