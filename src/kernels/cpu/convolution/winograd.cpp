#include "kernels/cpu/convolution/winograd.h"

#include <algorithm>

#include "kernels/cpu/convolution/winograd_table.h"
#include "kernels/cpu/gemm/blocks.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

// Of a group: fewer take longer to be turned than to be multiplied.
constexpr int64_t kFewestChannels = 32;
// Fewer tiles: windows take longer to be turned than the places save.
constexpr int64_t kFewestTiles = 32;
constexpr int64_t kMostTiles = 1568;  // of a block

WinogradProduct product_of_y(const WindowConvolution& at) {
  WinogradProduct product{};
  product.grid = {at.images, at.y_height, at.y_width, at.x_height, at.x_width, -at.top, -at.left};
  product.depth = at.channels / at.groups;
  product.cols = at.outputs / at.groups;
  product.from_stride = at.channels;
  product.to_stride = at.outputs;
  product.w_depth = kWinogradTaps;
  product.w_col = product.depth * kWinogradTaps;
  return product;
}

// dx[place] is of dy[place + pad - tap]: the window from its last tap to its first.
WinogradProduct product_of_dx(const WindowConvolution& at) {
  WinogradProduct product{};
  product.grid = {at.images, at.x_height, at.x_width, at.y_height, at.y_width, at.top - 2, at.left - 2};
  product.depth = at.outputs / at.groups;
  product.cols = at.channels / at.groups;
  product.from_stride = at.outputs;
  product.to_stride = at.channels;
  product.w_depth = product.cols * kWinogradTaps;
  product.w_col = kWinogradTaps;
  product.is_turned = true;
  return product;
}

WinogradSums sums_of_dw(const WindowConvolution& at) {
  WinogradSums sums{};
  sums.grid = product_of_y(at).grid;
  sums.depth = at.channels / at.groups;
  sums.dy_stride = at.outputs;
  sums.x_stride = at.channels;
  return sums;
}

// The same product of each group.
void run(const WinogradProduct& product, int64_t groups, Scratch scratch) {
  const WinogradTable& table = winograd_table();
  const int64_t tiles = product.grid.tiles();
  const Blocks blocks(tiles, product.cols, groups, parallel_threads(),
                      {2 * table.tile_rows, table.tile_cols, rounded_up(kMostTiles, 2 * table.tile_rows),
                       table.most_cols(product.depth)});
  run_tasks(groups * blocks.down * blocks.right, table.product_floats(product), scratch.data, scratch.bytes, false,
            [&](int64_t task, float* own) {
              const int64_t tile = task % blocks.down * blocks.rows,
                            col = task / blocks.down % blocks.right * blocks.cols,
                            group = task / (blocks.down * blocks.right);
              WinogradProduct one = product;
              one.from += group * product.depth;
              one.to += group * product.cols;
              one.w += group * product.depth * product.cols * kWinogradTaps;
              if (one.bias != nullptr) one.bias += group * product.cols;
              table.product(one, tile, std::min(blocks.rows, tiles - tile), col,
                            std::min(blocks.cols, product.cols - col), own);
            });
}

bool are_for_winograd(int64_t channels, int64_t outputs, int64_t height, int64_t width) {
  return height == 3 && width == 3 && std::min(channels, outputs) >= kFewestChannels;
}

}  // namespace

bool are_for_winograd(const BoundAttrs& attrs, const int64_t* window) {
  const std::span<const int64_t> strides = attrs.ints("strides"), dilations = attrs.ints("dilations");
  return strides[0] * strides[1] * dilations[0] * dilations[1] == 1 &&
         are_for_winograd(window[1], window[0] / attrs.i("group"), window[2], window[3]);
}

// 16 numbers of a tile are multiplied where 9 of each place would be, and turning them takes a fourth of that.
bool WinogradConvolution::is_faster(int64_t height, int64_t width) const {
  const int64_t tiles = at_.images * ((height + 1) / 2) * ((width + 1) / 2);
  return at_.down * at_.right * at_.dilation_down * at_.dilation_right == 1 &&
         are_for_winograd(at_.channels / at_.groups, at_.outputs / at_.groups, at_.window_height, at_.window_width) &&
         tiles >= kFewestTiles && 20 * tiles < 9 * at_.images * height * width;
}

int64_t WinogradConvolution::y_floats() const { return winograd_table().product_floats(product_of_y(at_)); }
int64_t WinogradConvolution::dx_floats() const { return winograd_table().product_floats(product_of_dx(at_)); }
int64_t WinogradConvolution::dw_floats() const {
  const WinogradTable& table = winograd_table();
  return table.sums_floats(sums_of_dw(at_), std::min(at_.outputs / at_.groups, table.most_rows),
                           std::min(at_.channels / at_.groups, table.most_depth));
}

void WinogradConvolution::y(const float* x, const float* w, const float* bias, float* y, Scratch scratch) const {
  WinogradProduct product = product_of_y(at_);
  product.from = x;
  product.w = w;
  product.bias = bias;
  product.to = y;
  run(product, at_.groups, scratch);
}

void WinogradConvolution::dx(const float* dy, const float* w, float* dx, Scratch scratch) const {
  WinogradProduct product = product_of_dx(at_);
  product.from = dy;
  product.w = w;
  product.to = dx;
  run(product, at_.groups, scratch);
}

void WinogradConvolution::dw(const float* dy, const float* x, float* dw, Scratch scratch) const {
  const WinogradTable& table = winograd_table();
  WinogradSums sums = sums_of_dw(at_);
  sums.dy = dy;
  sums.x = x;
  sums.dw = dw;
  const int64_t of_group = at_.outputs / at_.groups;
  const Blocks blocks(of_group, sums.depth, at_.groups, parallel_threads(),
                      {table.tile_rows, table.tile_cols, table.most_rows, table.most_depth});
  run_tasks(at_.groups * blocks.down * blocks.right, dw_floats(), scratch.data, scratch.bytes, false,
            [&](int64_t task, float* own) {
              const int64_t row = task % blocks.down * blocks.rows,
                            first = task / blocks.down % blocks.right * blocks.cols,
                            group = task / (blocks.down * blocks.right);
              WinogradSums one = sums;
              one.dy += group * of_group;
              one.x += group * sums.depth;
              one.dw += group * of_group * sums.depth * kWinogradTaps;
              table.sums(one, row, std::min(blocks.rows, of_group - row), first,
                         std::min(blocks.cols, sums.depth - first), own);
            });
}

}  // namespace lowtide::cpu
