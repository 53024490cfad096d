#include "kernels/cpu/convolution/window_table.h"
#include "kernels/cpu/micro_kernel.h"

namespace lowtide::cpu::LT_ISA {
namespace {

// Of a sum at a time, about: a panel of B and six rows of A stay in L1.
constexpr int64_t kDepth = LT_LANES == 16 ? 576 : 288;
constexpr int64_t kMostCols = 256;
// Of sums over places: at a time, and the largest blocks.
constexpr int64_t kPlaces = LT_LANES == 16 ? 128 : 256;
constexpr int64_t kMostRows = LT_LANES == 16 ? 196 : 192;
constexpr int64_t kMostChannels = LT_LANES == 16 ? 64 : 32;

// A tile of C whose rows of A lie anywhere: few rows, for their pointers stay in registers beside the sums.
constexpr int kRows = 6;
constexpr int kVectors = LT_LANES == 16 ? 4 : 2;
constexpr int kCols = kVectors * kLanes;

// What a tap meets beyond an image.
alignas(64) const float zeros[kDepth] = {};
static_assert(kDepth / kMostTaps >= 8);

// A register tile where A's rows are made of pieces of `depth` numbers that lie anywhere, at places[piece * kRows + i],
// and C's rows lie at c[i] + col. They are added to what is there (add), else to the addend, one row for all; null: to
// none.
template <int vectors>
__attribute__((noinline)) void tile_of_pieces(int64_t pieces, int64_t depth, const float* const* places,
                                              const float* panel, float* const* c, int64_t col, int rows, int cols,
                                              const float* addend, bool add) {
  vf sums[kRows][vectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) sums[i][v] = vf{};
    __builtin_prefetch(c[i < rows ? i : 0] + col, 1);
  }
  for (int64_t piece = 0; piece < pieces; ++piece, places += kRows) {
    const float* row[kRows];
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) row[i] = places[i];
    for (int64_t k = 0; k < depth; ++k) {
      vf b[vectors];
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) b[v] = load(panel + v * kLanes);
      panel += kCols;
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const vf x = splat(row[i][k]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) sums[i][v] = fma(x, b[v], sums[i][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
    if (i >= rows) continue;
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v += 2) {
      if (v * kLanes >= cols) continue;
      float* to = c[i] + col + v * kLanes;
      store_sums(sums[i][v], sums[i][v + 1], to,
                 add                 ? to
                 : addend == nullptr ? nullptr
                                     : addend + v * kLanes,
                 static_cast<int>(min_of(int64_t{kTileCols}, cols - v * kLanes)));
    }
  }
}

// Where a row is read and written.
struct Row {
  Row() = default;
  Row(const WindowGrid& grid, int64_t row) {
    const int64_t line = row / grid.width, right = row - line * grid.width;
    image = line / grid.height;
    const int64_t down = line - image * grid.height;
    top = grid.from_top + down * grid.from_down;
    left = grid.from_left + right * grid.from_right;
    to = (image * grid.to_height + grid.to_top + down * grid.to_down) * grid.to_width + grid.to_left +
         right * grid.to_right;
  }
  // The number of the place that a tap meets, or -1.
  int64_t meets(const WindowGrid& grid, const WindowTap& tap) const {
    const int64_t y = top + tap.down, x = left + tap.right;
    const bool is_inside = static_cast<uint64_t>(y) < static_cast<uint64_t>(grid.from_height) &&
                           static_cast<uint64_t>(x) < static_cast<uint64_t>(grid.from_width);
    return is_inside ? (image * grid.from_height + y) * grid.from_width + x : -1;
  }

  // The number of the place that taps are counted from.
  int64_t from(const WindowGrid& grid) const { return (image * grid.from_height + top) * grid.from_width + left; }

  int64_t image, top, left, to;
};

// In places, of what is padded.
int64_t offset_of(const WindowGrid& grid, const WindowTap& tap) {
  return (tap.deep * grid.from_height + tap.down) * grid.from_width + tap.right;
}

// How many k go at once: all taps of them.
int64_t depth_at_once(const WindowProduct& call) {
  const int64_t most = max_of(8, kDepth / max_of(1, call.tap_count) / 8 * 8);
  const int64_t parts = max_of(1, (call.depth + most - 1) / most);
  return max_of(8, round_up((call.depth + parts - 1) / parts, 8));
}

// panel[(tap * depth + k) * kCols + j] = w[col + j, first + k, tap], 0 beyond the last column.
// Windows of one column and some k lie side by side: they are read as they lie.
void pack_windows(const WindowProduct& call, int64_t col, int64_t cols, int64_t first, int64_t depth, float* panel) {
  int64_t place[kMostTaps];  // of a number of the window, among the taps; -1: not one of them
  for (int64_t t = 0; t < call.window; ++t) place[t] = -1;
  for (int64_t t = 0; t < call.tap_count; ++t) place[call.taps[t].at] = t;
  const float* w = call.w + col * call.w_col + first * call.w_depth;
  const bool has_runs = call.w_depth == call.window;  // along k, else along columns
  const int64_t length = has_runs ? depth * call.window : call.window;
  const int64_t runs = has_runs ? 1 : depth;
  for (int64_t run = 0; run < runs; ++run) {
    const float* source = w + run * call.w_depth;
    for (int64_t j = 0; j < kCols; j += kLanes) {
      int64_t k = run, t = 0;
      for (int64_t i = 0; i < length; i += kLanes) {
        const int64_t count = min_of(kLanes, length - i);
        vf rows[kLanes];
        for (int r = 0; r < kLanes; ++r) {
          const float* from = source + (j + r) * call.w_col + i;
          rows[r] = j + r >= cols ? vf{} : count == kLanes ? load(from) : load(from, static_cast<int>(count));
        }
        transpose(rows);
        for (int r = 0; r < count; ++r) {
          if (place[t] >= 0) store(panel + (place[t] * depth + k) * kCols + j, rows[r]);
          if (++t == call.window) {
            t = 0;
            ++k;
          }
        }
      }
    }
  }
}

int64_t product_floats(const WindowProduct& call) {
  return call.tap_count * depth_at_once(call) * round_up(min_of(call.cols, kMostCols), kCols);
}

void product(const WindowProduct& call, int64_t row, int64_t rows, int64_t col, int64_t cols, float* panels) {
  const int64_t at_once = depth_at_once(call);
  int64_t offsets[kMostTaps];
  for (int64_t t = 0; t < call.tap_count; ++t) offsets[t] = offset_of(call.grid, call.taps[t]);
  for (int64_t first = 0; first < call.depth; first += at_once) {
    const int64_t depth = min_of(at_once, call.depth - first);
    for (int64_t j = 0; j < cols; j += kCols)
      pack_windows(call, col + j, min_of(kCols, cols - j), first, depth, panels + j * call.tap_count * depth);
    for (int64_t top = 0; top < rows; top += kRows) {
      const int64_t height = min_of(kRows, rows - top);
      const float* places[kMostTaps * kRows];
      float* to[kRows];
      for (int64_t i = 0; i < kRows; ++i) {
        const Row at(call.grid, row + top + min_of(i, height - 1));
        to[i] = call.to + at.to * call.to_stride;
        const int64_t from = at.from(call.grid);
        for (int64_t t = 0; t < call.tap_count; ++t) {
          const int64_t place = call.grid.is_padded ? from + offsets[t] : at.meets(call.grid, call.taps[t]);
          places[t * kRows + i] = place < 0 ? zeros : call.from + place * call.from_stride + first;
        }
      }
      for (int64_t j = 0; j < cols; j += kCols) {
        const auto tile = cols - j <= kTileCols ? tile_of_pieces<2> : tile_of_pieces<kVectors>;
        tile(call.tap_count, depth, places, panels + j * call.tap_count * depth, to, col + j, static_cast<int>(height),
             static_cast<int>(min_of(kCols, cols - j)), call.bias == nullptr ? nullptr : call.bias + col + j,
             first > 0);
      }
    }
  }
}

struct SumsRoom {
  SumsRoom(const WindowSums& call, int64_t rows, int64_t depth)
      : cols(call.tap_count * round_up(depth, kTileCols)), places(min_of(kPlaces, call.grid.rows())) {
    sums = round_up(rows * cols, 16);
    tiles = round_up(round_up(rows, kTileRows) * places, 16);
  }
  int64_t floats() const { return sums + tiles + cols * places; }

  int64_t cols, places;  // of the sums; at a time
  int64_t sums, tiles;   // floats
};

int64_t sums_floats(const WindowSums& call, int64_t rows, int64_t depth) {
  return SumsRoom(call, rows, depth).floats();
}

// Panels of x at the taps of `count` places from `place` on.
void pack_places(const WindowSums& call, int64_t place, int64_t count, int64_t first, int64_t depth, float* panels) {
  Row rows[kPlaces];
  for (int64_t k = 0; k < count; ++k) rows[k] = Row(call.grid, place + k);
  for (int64_t t = 0; t < call.tap_count; ++t) {
    for (int64_t k = 0; k < count; ++k) {
      const int64_t met = call.grid.is_padded ? rows[k].from(call.grid) + offset_of(call.grid, call.taps[t])
                                              : rows[k].meets(call.grid, call.taps[t]);
      const float* from = met < 0 ? zeros : call.x + met * call.x_stride + first;
      float* to = panels + k * kTileCols;
      for (int64_t j = 0; j < depth; j += kTileCols, to += count * kTileCols) {
        if (depth - j >= kTileCols) {
          store(to, load(from + j));
          store(to + kLanes, load(from + j + kLanes));
        } else {
          for (int64_t i = 0; i < kTileCols; ++i) to[i] = j + i < depth ? from[j + i] : 0.0f;
        }
      }
    }
    panels += round_up(depth, kTileCols) * count;
  }
}

void sums(const WindowSums& call, int64_t row, int64_t rows, int64_t first, int64_t depth, float* scratch) {
  const SumsRoom room(call, rows, depth);
  float *sums = scratch, *tiles = sums + room.sums, *panels = tiles + room.tiles;
  const int64_t places = call.grid.rows(), cols = room.cols;
  for (int64_t place = 0; place < places; place += kPlaces) {
    const int64_t count = min_of(kPlaces, places - place);
    pack_a_columns(call.dy + place * call.dy_stride + row, call.dy_stride, splat(1), rows, count, tiles);
    pack_places(call, place, count, first, depth, panels);
    for (int64_t j = 0; j < cols; j += kTileCols) {
      for (int64_t i = 0; i < rows; i += kTileRows) {
        tile<Left::kTile>(count, tiles + i * count, 1, kTileRows, static_cast<int>(min_of(kTileRows, rows - i)),
                          panels + j * count, sums + i * cols + j, cols, kTileCols, place > 0);
      }
    }
  }
  const int64_t of_tap = cols / call.tap_count;
  for (int64_t i = 0; i < rows; ++i) {
    float* to = call.dw + ((row + i) * call.depth + first) * call.tap_count;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t t = 0; t < call.tap_count; ++t, ++to)
        *to = (call.adds ? *to : 0.0f) + sums[i * cols + t * of_tap + k];
  }
}

}  // namespace

constinit const WindowTable window_table = {kRows,         kCols,          kMostCols, kTileRows,   kTileCols, kMostRows,
                                            kMostChannels, product_floats, product,   sums_floats, sums};

}  // namespace lowtide::cpu::LT_ISA
