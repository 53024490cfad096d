// Convolutions whose window is one place are products of matrices: channels-last, the places of x are rows, its
// channels columns. With strides, the places that are met are copied side by side.
#include <cstring>

#include "kernels/cpu/convolution/bias_sums.h"
#include "kernels/cpu/convolution/convolution_call.h"
#include "kernels/cpu/convolution/depthwise_convolution.h"
#include "kernels/cpu/convolution/volume_convolution.h"
#include "kernels/cpu/convolution/window_convolution.h"
#include "kernels/cpu/gemm/multiply.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

namespace {

constexpr OperandRules kPlaces = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kDense, Accept::kRowMajor}}, OutputLayout::kChannelsLast);
constexpr OperandRules kPlacesGrad = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kChannelsLast, Accept::kDense}}, OutputLayout::kFollowsInput);

constexpr OperandRules kWindows = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kRowMajor, Accept::kRowMajor}}, OutputLayout::kChannelsLast);
constexpr OperandRules kWindowsGrad = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kChannelsLast, Accept::kRowMajor}}, OutputLayout::kFollowsInput);

bool are_all(const BoundAttrs& attrs, std::string_view name, int64_t value) {
  if (!attrs.has(name)) return false;
  const std::span<const int64_t> numbers = attrs.ints(name);
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t each) { return each == value; });
}

template <DType dtype>
const char* supports_pointwise(const KernelQuery& query) {
  for (const OperandInfo& operand : query.inputs)
    if (operand.present && operand.dtype != dtype) return "takes one dtype only";
  if (query.inputs[0].rank != 4) return "not two spatial dims";
  if (!are_all(*query.attrs, "kernel_shape", 1)) return "a window of more places than one";
  if (!are_all(*query.attrs, "pads", 0)) return "pads";
  return query.attrs->i("group") == 1 ? nullptr : "groups";
}

// Of x that y or dy meets: [images, height, width], steps apart.
struct Places {
  Places(const BoundCall& call, const TensorRef& x, const TensorRef& y)
      : images(y.sizes[0]),
        height(y.sizes[2]),
        width(y.sizes[3]),
        x_height(x.sizes[2]),
        x_width(x.sizes[3]),
        down(call.attrs->ints("strides")[0]),
        right(call.attrs->ints("strides")[1]),
        in(x.sizes[1]),
        out(y.sizes[1]),
        dtype(x.dtype) {}

  int64_t rows() const { return images * height * width; }
  bool are_all() const { return height == x_height && width == x_width; }
  int64_t row_bytes() const { return in * size_bytes(dtype); }
  int64_t copied_bytes() const { return are_all() ? 0 : aligned(rows() * row_bytes()); }

  // body(a line of `width` places in x, their number among the rows)
  template <class Body>
  void for_lines(const TensorRef& x, Body body) const {
    const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 17) / std::max<int64_t>(1, width * row_bytes()));
    parallel_for(images * height, grain, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t place = (line / height * x_height + line % height * down) * x_width;
        body(x.as<char>() + place * row_bytes(), line * width);
      }
    });
  }

  // x's rows as they lie, or copied to `room`.
  const void* gather(const TensorRef& x, char* room) const {
    if (are_all()) return x.data;
    for_lines(x, [&](const char* from, int64_t row) {
      for (int64_t i = 0; i < width; ++i)
        std::memcpy(room + (row + i) * row_bytes(), from + i * right * row_bytes(), row_bytes());
    });
    return room;
  }
  // From rows side by side to their places in x, which is zero elsewhere.
  void scatter(const char* rows, const TensorRef& x) const {
    const int64_t lines = x.sizes[0] * x_height, line_bytes = x_width * row_bytes();
    parallel_for(lines, std::max<int64_t>(1, (int64_t{1} << 18) / std::max<int64_t>(1, line_bytes)),
                 [&](int64_t begin, int64_t end) {
                   std::memset(x.as<char>() + begin * line_bytes, 0, (end - begin) * line_bytes);
                 });
    for_lines(x, [&](char* to, int64_t row) {
      for (int64_t i = 0; i < width; ++i)
        std::memcpy(to + i * right * row_bytes(), rows + (row + i) * row_bytes(), row_bytes());
    });
  }

  int64_t images, height, width, x_height, x_width, down, right, in, out;
  DType dtype;
};

// Products of rows of x and of y, of Call, a Gemm of Numbers; the caller adds the addresses.
template <class Call, class Number>
struct Products : Places {
  using Places::Places;

  Call make(int64_t m, int64_t n, int64_t k) const {
    Call gemm;
    gemm.m = m;
    gemm.n = gemm.c_stride = n;
    gemm.k = k;
    if constexpr (std::is_same_v<Call, HalfGemm>) gemm.dtype = dtype;
    return gemm;
  }
  Call y() const {
    Call gemm = make(rows(), out, in);
    gemm.a_stride = gemm.b_stride = in;
    gemm.transpose_b = true;
    return gemm;
  }
  Call dx() const {
    Call gemm = make(rows(), in, out);
    gemm.a_stride = out;
    gemm.b_stride = in;
    return gemm;
  }
  Call dw() const {
    Call gemm = make(out, in, rows());
    gemm.a_stride = out;
    gemm.b_stride = in;
    gemm.transpose_a = true;
    return gemm;
  }
};

template <class Call, class Number>
struct Forward : Products<Call, Number> {
  explicit Forward(const BoundCall& call) : Products<Call, Number>(call, call.inputs[0], call.outputs[0]) {}
};

template <class Call, class Number>
KernelStatus convolve(const KernelCall& call, const Forward<Call, Number>& forward) {
  const TensorRef &y = call.outputs[0], *bias = input(call, 2);
  if (y.numel() == 0) return nullptr;
  char* room = static_cast<char*>(call.scratch);
  Call gemm = forward.y();
  gemm.a = static_cast<const Number*>(forward.gather(call.inputs[0], room));
  gemm.b = call.inputs[1].as<Number>();
  gemm.c = y.as<Number>();
  if (bias != nullptr) gemm.bias = bias->as<Number>();
  multiply(gemm, room + forward.copied_bytes(), call.scratch_bytes - forward.copied_bytes());
  return nullptr;
}

template <class Call, class Number>
int64_t convolve_scratch(const BoundCall& call) {
  const Forward<Call, Number> forward(call);
  return call.outputs[0].numel() == 0 ? 0 : forward.copied_bytes() + multiply_scratch(forward.y());
}

// Inputs: dy, x, w. Outputs: dx, dw, db.
template <class Call, class Number>
struct Backward : Products<Call, Number> {
  explicit Backward(const BoundCall& call) : Products<Call, Number>(call, call.inputs[1], call.inputs[0]) {}
};

template <class Call, class Number>
KernelStatus convolve_grad(const KernelCall& call, const Backward<Call, Number>& backward) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  const TensorRef *dx = output(call, 0), *dw = output(call, 1), *db = output(call, 2);
  if (are_zeros(call, dy, w)) return nullptr;
  char *room = static_cast<char*>(call.scratch), *rest = room + backward.copied_bytes();
  const int64_t rest_bytes = call.scratch_bytes - backward.copied_bytes();
  if (dw != nullptr) {
    Call gemm = backward.dw();
    gemm.a = dy.as<Number>();
    gemm.b = static_cast<const Number*>(backward.gather(x, room));
    gemm.c = dw->as<Number>();
    multiply(gemm, rest, rest_bytes);
  }
  if (db != nullptr) sum_bias(dy, backward.rows(), *db, rest);
  if (dx == nullptr) return nullptr;
  Call gemm = backward.dx();
  gemm.a = dy.as<Number>();
  gemm.b = w.as<Number>();
  gemm.c = backward.are_all() ? dx->as<Number>() : reinterpret_cast<Number*>(room);
  multiply(gemm, rest, rest_bytes);
  if (!backward.are_all()) backward.scatter(room, *dx);
  return nullptr;
}

template <class Call, class Number>
int64_t convolve_grad_scratch(const BoundCall& call) {
  const Backward<Call, Number> backward(call);
  if (call.inputs[0].numel() == 0 || call.inputs[2].numel() == 0) return 0;
  int64_t most = 0;
  if (output(call, 0) != nullptr) most = std::max(most, multiply_scratch(backward.dx()));
  if (output(call, 1) != nullptr) most = std::max(most, multiply_scratch(backward.dw()));
  if (output(call, 2) != nullptr) most = std::max(most, bias_sums_bytes(backward.rows(), backward.out));
  return backward.copied_bytes() + most;
}

constexpr auto float_conv = convolve<Gemm, float>;
constexpr auto half_conv = convolve<HalfGemm, uint16_t>;
constexpr auto float_conv_grad = convolve_grad<Gemm, float>;
constexpr auto half_conv_grad = convolve_grad<HalfGemm, uint16_t>;
constexpr auto float_conv_scratch = convolve_scratch<Gemm, float>;
constexpr auto half_conv_scratch = convolve_scratch<HalfGemm, uint16_t>;
constexpr auto float_conv_grad_scratch = convolve_grad_scratch<Gemm, float>;
constexpr auto half_conv_grad_scratch = convolve_grad_scratch<HalfGemm, uint16_t>;

}  // namespace

std::span<const Kernel> convolution_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/convolution/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
