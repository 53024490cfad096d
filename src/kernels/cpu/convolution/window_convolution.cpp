#include "kernels/cpu/convolution/window_convolution.h"

#include <algorithm>

#include "kernels/cpu/convolution/bias_sums.h"
#include "kernels/cpu/convolution/convolution_call.h"
#include "kernels/cpu/convolution/window_runs.h"
#include "kernels/cpu/convolution/winograd.h"
#include "kernels/cpu/gemm/blocks.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

constexpr int64_t kFloat = sizeof(float);
// Fewer channels: a tap would be read for a few numbers.
constexpr int64_t kFewestChannels = 16;
// With AVX-512 the library has kernels as fast as these. It copies windows several times, here in parts that keep its
// bytes few, and that is what takes time from so many numbers on.
constexpr int64_t kFewestNumbers = int64_t{1} << 17;
// Of a block of a product, whose windows are packed once.
constexpr int64_t kMostRows = 1152;

const char* supports(const KernelQuery& query, const OperandInfo& w) {
  for (const OperandInfo& operand : query.inputs)
    if (operand.present && operand.dtype != DType::kF32) return "not f32";
  if (query.inputs[0].rank != 4) return "not two spatial dims";
  if (!query.attrs->has("pads")) return "symbolic pads";
  if (isa() == Isa::kBaseline) return "PyTorch's library has wider vectors";
  for (int dim = 0; dim < 4; ++dim)
    if (w.sizes[dim] == kUnknownSize) return "windows of unknown size";
  const int64_t taps = w.sizes[2] * w.sizes[3];
  if (taps > kMostTaps) return "windows of many places";
  if (isa() >= Isa::kAvx512 && w.sizes[0] * w.sizes[1] * taps < kFewestNumbers &&
      !are_for_winograd(*query.attrs, w.sizes.data()))
    return "PyTorch's library is as fast with vectors of this width, unless windows fill megabytes";
  const bool is_wide = w.sizes[1] >= kFewestChannels && w.sizes[0] / query.attrs->i("group") >= kFewestChannels;
  return is_wide ? nullptr : "few channels";
}

int64_t taps_of(const ConvolutionSizes& sizes) { return sizes.window_height * sizes.window_width; }

int64_t places_of(const WindowConvolution& sizes) { return sizes.images * sizes.y_height * sizes.y_width; }

// y at all its places.
WindowProduct product_of_y(const WindowConvolution& at) {
  WindowProduct product{};
  product.grid = {at.images, at.y_height, at.y_width, at.y_height, at.y_width, 0,       0,       1,
                  1,         at.x_height, at.x_width, -at.top,     -at.left,   at.down, at.right};
  for (int64_t i = 0; i < taps_of(at); ++i)
    product.taps[i] = {i / at.window_width * at.dilation_down, i % at.window_width * at.dilation_right, i};
  product.tap_count = product.window = taps_of(at);
  product.depth = at.channels / at.groups;
  product.cols = at.outputs / at.groups;
  product.from_stride = at.channels;
  product.to_stride = at.outputs;
  product.w_depth = taps_of(at);
  product.w_col = product.depth * taps_of(at);
  return product;
}

int64_t modulo(int64_t a, int64_t b) { return (a % b + b) % b; }

// dx at every down-th place from `top` and every right-th from `left`: the taps that meet places of dy are those that
// stand at one of their strides, none perhaps.
WindowProduct product_of_dx(const WindowConvolution& at, int64_t top, int64_t left) {
  WindowProduct product{};
  const auto steps = [](int64_t size, int64_t first, int64_t step) { return (size - first + step - 1) / step; };
  product.grid = {at.images,
                  steps(at.x_height, top, at.down),
                  steps(at.x_width, left, at.right),
                  at.x_height,
                  at.x_width,
                  top,
                  left,
                  at.down,
                  at.right,
                  at.y_height,
                  at.y_width,
                  0,
                  0,
                  1,
                  1};
  for (int64_t i = 0; i < taps_of(at); ++i) {
    const int64_t down = top + at.top - i / at.window_width * at.dilation_down,
                  right = left + at.left - i % at.window_width * at.dilation_right;
    if (modulo(down, at.down) == 0 && modulo(right, at.right) == 0)
      product.taps[product.tap_count++] = {down / at.down, right / at.right, i};
  }
  product.window = taps_of(at);
  product.depth = at.outputs / at.groups;
  product.cols = at.channels / at.groups;
  product.from_stride = at.outputs;
  product.to_stride = at.channels;
  product.w_depth = product.cols * taps_of(at);
  product.w_col = taps_of(at);
  return product;
}

// body(product) for each part of dx.
template <class Body>
void for_parts_of_dx(const WindowConvolution& at, Body body) {
  for (int64_t top = 0; top < std::min(at.down, at.x_height); ++top)
    for (int64_t left = 0; left < std::min(at.right, at.x_width); ++left) body(product_of_dx(at, top, left));
}

WindowSums sums_of_dw(const WindowConvolution& at) {
  const WindowProduct y = product_of_y(at);
  WindowSums sums{};
  sums.grid = y.grid;
  std::copy_n(y.taps, y.tap_count, sums.taps);
  sums.tap_count = y.tap_count;
  sums.depth = y.depth;
  sums.dy_stride = at.outputs;
  sums.x_stride = at.channels;
  return sums;
}

int64_t floats_of_sums(const WindowConvolution& at) {
  const WindowTable& table = window_table();
  return table.sums_floats(sums_of_dw(at), std::min(at.outputs / at.groups, table.most_rows),
                           std::min(at.channels / at.groups, table.most_depth));
}

void run(const WindowConvolution& at, const WindowSums& sums, void* scratch, int64_t scratch_bytes) {
  const WindowTable& table = window_table();
  const int64_t of_group = at.outputs / at.groups;
  int64_t rows = std::min(of_group, table.most_rows), depth = std::min(sums.depth, table.most_depth);
  const auto blocks = [](int64_t size, int64_t each) { return (size + each - 1) / each; };
  const auto is_few = [&] {
    return at.groups * blocks(of_group, rows) * blocks(sums.depth, depth) < 2 * parallel_threads();
  };
  if (is_few() && depth > table.tile_cols) depth = table.tile_cols;
  while (is_few() && rows > 4 * table.tile_rows) rows = rounded_up((rows + 1) / 2, table.tile_rows);
  const int64_t down = blocks(of_group, rows), right = blocks(sums.depth, depth);
  run_tasks(at.groups * down * right, floats_of_sums(at), scratch, scratch_bytes, false, [&](int64_t task, float* own) {
    const int64_t row = task % down * rows, first = task / down % right * depth, group = task / (down * right);
    WindowSums one = sums;
    one.dy += group * of_group;
    one.x += group * sums.depth;
    one.dw += group * of_group * sums.depth * sums.tap_count;
    table.sums(one, row, std::min(rows, of_group - row), first, std::min(depth, sums.depth - first), own);
  });
}

}  // namespace

void run_windows(const WindowProduct& product, int64_t groups, void* scratch, int64_t scratch_bytes) {
  const WindowTable& table = window_table();
  const int64_t rows = product.grid.rows();
  const Blocks blocks(
      rows, product.cols, groups, parallel_threads(),
      {table.product_rows, table.product_cols, rounded_up(kMostRows, table.product_rows), table.most_cols});
  const int64_t floats = std::max<int64_t>(1, table.product_floats(product));
  run_tasks(groups * blocks.down * blocks.right, floats, scratch, scratch_bytes, false, [&](int64_t task, float* own) {
    const int64_t row = task % blocks.down * blocks.rows, col = task / blocks.down % blocks.right * blocks.cols,
                  group = task / (blocks.down * blocks.right);
    WindowProduct one = product;
    one.from += group * product.depth;
    one.to += group * product.cols;
    one.w += group * product.depth * product.cols * product.window;
    if (one.bias != nullptr) one.bias += group * product.cols;
    table.product(one, row, std::min(blocks.rows, rows - row), col, std::min(blocks.cols, product.cols - col), own);
  });
}

WindowConvolution::WindowConvolution(const BoundCall& call, const TensorRef& x, const TensorRef& w, const TensorRef& y)
    : ConvolutionSizes(sizes_of(*call.attrs, x, w, y)), groups(call.attrs->i("group")), outputs(y.sizes[1]) {}

const char* supports_windows(const KernelQuery& query) { return supports(query, query.inputs[1]); }
const char* supports_windows_grad(const KernelQuery& query) { return supports(query, query.inputs[2]); }

int64_t window_conv_scratch(const BoundCall& call) {
  const WindowForward forward(call);
  if (call.outputs[0].numel() == 0) return 0;
  const WinogradConvolution winograd(forward);
  return kFloat * parallel_threads() *
         (winograd.is_faster_for_y() ? winograd.y_floats() : window_table().product_floats(product_of_y(forward)));
}

KernelStatus window_conv(const KernelCall& call, const WindowForward& forward) {
  const TensorRef* bias = input(call, 2);
  if (call.outputs[0].numel() == 0) return nullptr;
  const WinogradConvolution winograd(forward);
  if (winograd.is_faster_for_y()) {
    winograd.y(call.inputs[0].as<float>(), call.inputs[1].as<float>(), bias == nullptr ? nullptr : bias->as<float>(),
               call.outputs[0].as<float>(), {call.scratch, call.scratch_bytes});
    return nullptr;
  }
  WindowProduct product = product_of_y(forward);
  product.from = call.inputs[0].as<float>();
  product.w = call.inputs[1].as<float>();
  product.to = call.outputs[0].as<float>();
  product.bias = bias == nullptr ? nullptr : bias->as<float>();
  run_windows(product, forward.groups, call.scratch, call.scratch_bytes);
  return nullptr;
}

int64_t window_conv_grad_scratch(const BoundCall& call) {
  if (call.inputs[0].numel() == 0 || call.inputs[2].numel() == 0) return 0;
  const WindowBackward backward(call);
  const WinogradConvolution winograd(backward);
  int64_t floats = 0;
  if (output(call, 0) != nullptr) {
    if (winograd.is_faster_for_dx()) {
      floats = winograd.dx_floats();
    } else {
      for_parts_of_dx(backward, [&](const WindowProduct& part) {
        floats = std::max({floats, int64_t{1}, window_table().product_floats(part)});
      });
    }
  }
  if (output(call, 1) != nullptr)
    floats = std::max(floats, winograd.is_faster_for_y() ? winograd.dw_floats() : floats_of_sums(backward));
  const int64_t bytes = floats * kFloat * parallel_threads();
  return output(call, 2) == nullptr ? bytes : std::max(bytes, bias_sums_bytes(places_of(backward), backward.outputs));
}

KernelStatus window_conv_grad(const KernelCall& call, const WindowBackward& backward) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  const TensorRef *dx = output(call, 0), *dw = output(call, 1), *db = output(call, 2);
  if (are_zeros(call, dy, w)) return nullptr;
  const WinogradConvolution winograd(backward);
  const Scratch scratch = {call.scratch, call.scratch_bytes};
  if (dw != nullptr && winograd.is_faster_for_y()) {
    winograd.dw(dy.as<float>(), x.as<float>(), dw->as<float>(), scratch);
  } else if (dw != nullptr) {
    WindowSums sums = sums_of_dw(backward);
    sums.dy = dy.as<float>();
    sums.x = x.as<float>();
    sums.dw = dw->as<float>();
    run(backward, sums, call.scratch, call.scratch_bytes);
  }
  if (db != nullptr) sum_bias(dy, places_of(backward), *db, static_cast<char*>(call.scratch));
  if (dx == nullptr) return nullptr;
  if (winograd.is_faster_for_dx()) {
    winograd.dx(dy.as<float>(), w.as<float>(), dx->as<float>(), scratch);
    return nullptr;
  }
  for_parts_of_dx(backward, [&](WindowProduct part) {
    part.from = dy.as<float>();
    part.w = w.as<float>();
    part.to = dx->as<float>();
    run_windows(part, backward.groups, call.scratch, call.scratch_bytes);
  });
  return nullptr;
}

}  // namespace lowtide::cpu
