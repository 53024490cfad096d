#include "kernels/cpu/convolution/depthwise_convolution.h"

#include <algorithm>

#include "base/half.h"
#include "kernels/cpu/convolution/bias_sums.h"
#include "kernels/cpu/convolution/convolution_call.h"
#include "kernels/cpu/dense.h"

namespace lowtide::cpu {

namespace {

constexpr int64_t kTaskFlops = int64_t{1} << 18;

const DepthwiseLoops& loops_of(DType dtype) {
  const DepthwiseTable& table = depthwise_table();
  return dtype == DType::kF32 ? table.f32 : dtype == DType::kBF16 ? table.bf16 : table.f16;
}

// body(offset in w of some numbers of one channel's window, their place among the windows of all channels, how many)
template <class Body>
void for_windows(const DepthwiseGrad& grad, Body body) {
  for (int64_t c = 0; c < grad.channels; ++c)
    for (int64_t k = 0; k < grad.window(); k += kRun)
      body(c * grad.window() + k, k * grad.channels + c, std::min(kRun, grad.window() - k));
}

void sum_windows(const DepthwiseGrad& grad, const TensorRef& dy, const TensorRef& x, const TensorRef& dw, float* room) {
  const int64_t parts = grad.parts(), size = grad.window() * grad.channels;
  const int64_t at_once = depthwise_table().channels_at_once, blocks = (grad.channels + at_once - 1) / at_once;
  parallel_for(parts * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task / blocks, first = task % blocks * at_once;
      loops_of(grad.dtype)
          .sums(grad, dy.data, x.data, room + part * size, grad.images * part / parts, grad.images * (part + 1) / parts,
                first, std::min(at_once, grad.channels - first));
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < size; ++i) room[i] += room[part * size + i];
  for_windows(grad, [&](int64_t offset, int64_t place, int64_t n) {
    float window[kRun];
    for (int64_t i = 0; i < n; ++i) window[i] = room[place + i * grad.channels];
    write(dw, offset, 1, n, window);
  });
}

}  // namespace

DepthwiseGrad::DepthwiseGrad(const BoundCall& call)
    : ConvolutionSizes(sizes_of(*call.attrs, call.inputs[1], call.inputs[2], call.inputs[0])),
      dtype(call.inputs[1].dtype) {}

const char* supports_depthwise_grad(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  for (const OperandInfo& operand : query.inputs)
    if (operand.present && operand.dtype != dtype) return "mixed dtypes";
  if (query.inputs[0].rank != 4) return "not two spatial dims";
  const int64_t groups = query.attrs->i("group");
  const OperandInfo& w = query.inputs[2];
  return groups > 1 && w.sizes[0] == groups && w.sizes[1] == 1 ? nullptr : "channels do not have a window each";
}

int64_t depthwise_grad_scratch(const BoundCall& call) {
  if (call.inputs[0].numel() == 0 || call.inputs[2].numel() == 0) return 0;
  const DepthwiseGrad grad(call);
  int64_t most = 0;
  if (output(call, 0) != nullptr) most = std::max(most, grad.window_bytes());
  if (output(call, 1) != nullptr) most = std::max(most, grad.parts() * grad.window_bytes());
  if (output(call, 2) != nullptr)
    most = std::max(most, bias_sums_bytes(grad.images * grad.y_height * grad.y_width, grad.channels));
  return most;
}

KernelStatus depthwise_grad(const KernelCall& call, const DepthwiseGrad& grad) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  const TensorRef *dx = output(call, 0), *dw = output(call, 1), *db = output(call, 2);
  if (are_zeros(call, dy, w)) return nullptr;
  float* room = static_cast<float*>(call.scratch);
  if (dw != nullptr) sum_windows(grad, dy, x, *dw, room);
  if (db != nullptr) sum_bias(dy, grad.images * grad.y_height * grad.y_width, *db, static_cast<char*>(call.scratch));
  if (dx == nullptr) return nullptr;
  for_windows(grad, [&](int64_t offset, int64_t place, int64_t n) {
    float buffer[kRun];
    const float* window = read(w, offset, 1, n, buffer);
    for (int64_t i = 0; i < n; ++i) room[place + i * grad.channels] = window[i];
  });
  const int64_t line_flops = std::max<int64_t>(1, 2 * grad.x_width * grad.channels * grad.window());
  parallel_for(
      grad.images * grad.x_height, std::max<int64_t>(1, kTaskFlops / line_flops),
      [&](int64_t begin, int64_t end) { loops_of(grad.dtype).lines(grad, dy.data, room, dx->data, begin, end); });
  return nullptr;
}

}  // namespace lowtide::cpu
