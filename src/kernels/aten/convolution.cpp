// Convolutions of the library that the process has loaded (base/libraries.h: PyTorch's, which is oneDNN for f32).
#include "base/libraries.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

namespace {

constexpr OperandRules kConvolution =
    with_output_layout({.inputs = {Accept::kChannelsLast, Accept::kAny, Accept::kAny}}, OutputLayout::kChannelsLast);
// PyTorch's convolutions work on channels-last tensors, those in f64 on contiguous ones.
constexpr OperandRules kContiguous;
constexpr OperandRules kConvolutionGrad = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kChannelsLast, Accept::kAny}}, OutputLayout::kFollowsInput);

LibraryTensor library_tensor(const TensorRef& tensor) {
  return {tensor.data, tensor.rank, tensor.sizes, tensor.strides, tensor.dtype};
}

struct Window {
  explicit Window(const BoundCall& call) : groups(call.attrs->i("group")) {
    const std::vector<int64_t>& steps = call.attrs->ints("strides");
    spatial = static_cast<int>(steps.size());
    std::copy(steps.begin(), steps.end(), strides);
    std::copy_n(call.attrs->ints("pads").begin(), spatial, pads);
    std::copy_n(call.attrs->ints("dilations").begin(), spatial, dilations);
  }
  operator ConvolutionWindow() const { return {spatial, strides, pads, dilations, groups}; }

  int spatial;
  int64_t strides[kMaxRank], pads[kMaxRank], dilations[kMaxRank], groups;
};

template <DType dtype>
const char* refuses(const KernelQuery& query) {
  for (const OperandInfo& operand : query.inputs) {
    if (operand.present && operand.dtype != dtype) return "takes one dtype only";
  }
  const int rank = query.inputs[0].rank;
  if (rank < 3 || rank > 5) return "not 1 to 3 spatial dims";
  if (!query.attrs->has("pads")) return "symbolic pads";
  const auto& pads = query.attrs->ints("pads");
  for (int i = 0; i < rank - 2; ++i) {
    if (pads[i] != pads[i + rank - 2]) return "pads differ at the two ends";
    if (pads[i] < 0) return "negative pads";
  }
  return nullptr;
}

int64_t bytes_of(const TensorRef* tensor) { return tensor ? tensor->numel() * size_bytes(tensor->dtype) : 0; }

// In f64 PyTorch multiplies matrices whose rows are the windows of x, which it writes out unless they are single
// places.
int64_t written_out_bytes(const TensorRef& x, const TensorRef& w, const TensorRef& y) {
  if (x.dtype != DType::kF64) return 0;
  int64_t taps = 1, places = 1;
  for (int i = 2; i < w.rank; ++i) {
    taps *= w.sizes[i];
    places *= y.sizes[i];
  }
  return taps == 1 ? 0 : x.sizes[0] * x.sizes[1] * taps * places * size_bytes(x.dtype);
}

KernelStatus library_conv(const KernelCall& call, const Window& window) {
  const TensorRef* bias = input(call, 2);
  if (call.outputs[0].numel() == 0) return nullptr;
  LibraryTensor library_bias;
  if (bias) library_bias = library_tensor(*bias);
  return libraries().convolution(library_tensor(call.inputs[0]), library_tensor(call.inputs[1]),
                                 bias ? &library_bias : nullptr, window, library_tensor(call.outputs[0]));
}

template <DType dtype>
const char* supports_library_conv(const KernelQuery& query) {
  if (libraries().convolution == nullptr) return "no convolution library is loaded";
  return refuses<dtype>(query);
}

// In two dims of f32 the result is computed in place; else the library's own is copied.
int64_t library_conv_bytes(const BoundCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  if (x.rank == 4 && x.dtype == DType::kF32) return 0;
  return bytes_of(&y) + written_out_bytes(x, call.inputs[1], y);
}

KernelStatus library_conv_grad(const KernelCall& call, const Window& window) {
  LibraryTensor tensors[3];
  const LibraryTensor* wanted[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    const TensorRef* tensor = output(call, i);
    if (tensor == nullptr) continue;
    tensors[i] = library_tensor(*tensor);
    wanted[i] = &tensors[i];
  }
  // The gradient of x first, by itself, as the library does it inside too: it is given back before the others begin.
  const auto run = [&](const LibraryTensor* dx, const LibraryTensor* dw, const LibraryTensor* db) -> KernelStatus {
    if (dx == nullptr && dw == nullptr && db == nullptr) return nullptr;
    return libraries().convolution_backward(library_tensor(call.inputs[0]), library_tensor(call.inputs[1]),
                                            library_tensor(call.inputs[2]), window, dx, dw, db);
  };
  if (const KernelStatus status = run(wanted[0], nullptr, nullptr)) return status;
  return run(nullptr, wanted[1], wanted[2]);
}

template <DType dtype>
const char* supports_library_conv_grad(const KernelQuery& query) {
  if (libraries().convolution_backward == nullptr) return "no convolution library is loaded";
  return refuses<dtype>(query);
}

// What the library takes beside ours, as counted (for oneDNN; other channels than whole vectors of 16 are padded into
// copies): for the gradient of x its result and two copies of w; for that of w its result and three more of its size,
// sums of threads among them. Products of 16 bits read x and dy in other orders.
int64_t library_conv_grad_bytes(const BoundCall& call) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  const int64_t both = bytes_of(&dy) + bytes_of(&x), windows = written_out_bytes(x, w, dy);
  const bool is_f32 = x.dtype == DType::kF32, is_padded = dy.sizes[1] % 16 != 0 || x.sizes[1] % 16 != 0;
  const int64_t for_x = output(call, 0) == nullptr ? 0 : bytes_of(&x) + 2 * bytes_of(&w) + (is_padded ? both : 0);
  const bool wants_w = output(call, 1) != nullptr || output(call, 2) != nullptr;
  const int64_t for_w = !wants_w ? 0 : 4 * bytes_of(&w) + bytes_of(output(call, 2)) + (is_padded || !is_f32 ? both : 0);
  return std::max(for_x, for_w) + windows;
}

}  // namespace

std::span<const Kernel> aten_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/aten/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
