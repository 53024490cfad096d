#include "kernels/cpu/convolution/winograd_table.h"
#include "kernels/cpu/micro_kernel.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr int64_t kNumbers = 16;  // that a tile or a window becomes
constexpr int kTaps = kWinogradTaps;
// Tiles and channels of a product at a time: what becomes of them stays in L2.
constexpr int64_t kTiles = 2 * kTileRows;
constexpr int64_t kDepth = LT_LANES == 16 ? 256 : 128;
// Rows of one length meet in the same sets of L1, and 16 of them at once.
constexpr int64_t kApart = 16;
// Of sums over tiles: at a time, and the largest blocks.
constexpr int64_t kTilesOfSums = 64;
constexpr int64_t kMostRows = LT_LANES == 16 ? 98 : 48;
constexpr int64_t kMostChannels = LT_LANES == 16 ? 64 : 48;

// What lies beyond an image.
alignas(64) const float zeros[kDepth] = {};
static_assert(kDepth >= kMostChannels);

struct Tile {
  Tile(const WinogradGrid& grid, int64_t tile) {
    const int64_t line = tile / grid.right();
    right = 2 * (tile - line * grid.right());
    image = line / grid.down();
    down = 2 * (line - image * grid.down());
  }
  int64_t image, down, right;  // its first place
};

// Where the tile's places of the result lie; null: beyond the image.
template <class Number>
void find_results(const WinogradGrid& grid, const Tile& tile, Number* image, int64_t stride, Number** places) {
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t y = tile.down + i / 2, x = tile.right + i % 2;
    places[i] = y < grid.height && x < grid.width ? image + ((tile.image * grid.height + y) * grid.width + x) * stride
                                                  : nullptr;
  }
}

// Where the 4 x 4 places lie that it is made of.
void find_places(const WinogradGrid& grid, const Tile& tile, const float* image, int64_t stride, const float** places) {
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t y = grid.top + tile.down + i / 4, x = grid.left + tile.right + i % 4;
    const bool is_inside = static_cast<uint64_t>(y) < static_cast<uint64_t>(grid.from_height) &&
                           static_cast<uint64_t>(x) < static_cast<uint64_t>(grid.from_width);
    places[i] = is_inside ? image + ((tile.image * grid.from_height + y) * grid.from_width + x) * stride : zeros;
  }
}

// ---- what places, results and windows become, a vector of channels at a time: turn(line), for lines, then for columns

// 4 x 4 places.
constexpr auto turn_places = [](const vf (&x)[4], vf (&to)[4]) LT_INLINE_LAMBDA {
  to[0] = x[0] - x[2];
  to[1] = x[1] + x[2];
  to[2] = x[2] - x[1];
  to[3] = x[1] - x[3];
};
// A window.
constexpr auto turn_window = [](const vf (&w)[3], vf (&to)[4]) LT_INLINE_LAMBDA {
  const vf ends = w[0] + w[2];
  to[0] = w[0];
  to[1] = (ends + w[1]) * 0.5f;
  to[2] = (ends - w[1]) * 0.5f;
  to[3] = w[2];
};
// Products, to results.
constexpr auto turn_products = [](const vf (&m)[4], vf (&to)[2]) LT_INLINE_LAMBDA {
  to[0] = m[0] + m[1] + m[2];
  to[1] = m[1] - m[2] - m[3];
};
// Gradients of results, to those of products.
constexpr auto turn_result_grads = [](const vf (&dy)[2], vf (&to)[4]) LT_INLINE_LAMBDA {
  to[0] = dy[0];
  to[1] = dy[0] + dy[1];
  to[2] = dy[0] - dy[1];
  to[3] = -dy[1];
};
// Gradients of what a window became, to that of the window.
constexpr auto turn_window_grads = [](const vf (&u)[4], vf (&to)[3]) LT_INLINE_LAMBDA {
  const vf sum = (u[1] + u[2]) * 0.5f;
  to[0] = u[0] + sum;
  to[1] = (u[1] - u[2]) * 0.5f;
  to[2] = sum + u[3];
};

// to(r, c, what from(r, c) becomes), of rows x rows numbers.
template <int rows, int to_rows, class From, class Turn, class To>
LT_INLINE void turn_both(From from, Turn turn, To to) {
  vf half[to_rows][rows];
#pragma GCC unroll 4
  for (int c = 0; c < rows; ++c) {
    vf column[rows], turned[to_rows];
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) column[r] = from(r, c);
    turn(column, turned);
#pragma GCC unroll 4
    for (int r = 0; r < to_rows; ++r) half[r][c] = turned[r];
  }
#pragma GCC unroll 4
  for (int r = 0; r < to_rows; ++r) {
    vf turned[to_rows];
    turn(half[r], turned);
#pragma GCC unroll 4
    for (int c = 0; c < to_rows; ++c) to(r, c, turned[c]);
  }
}

// ---- a product

// How many k go at once.
int64_t depth_at_once(int64_t depth) {
  const int64_t parts = max_of(1, (depth + kDepth - 1) / kDepth);
  return round_up((depth + parts - 1) / parts, kLanes);
}

// Of fewer columns tiles are turned more often; of more, windows do not stay in L2.
int64_t most_cols(int64_t depth) { return (depth > 128 ? 2 : 4) * (LT_LANES == 16 ? 32 : 16); }

struct ProductRoom {
  ProductRoom(const WinogradProduct& call, int64_t cols)
      : places_row(min_of(depth_at_once(call.depth), kDepth) + kApart),
        sums_row(round_up(cols, kTileCols) + kApart),
        windows(kNumbers * call.depth * round_up(cols, kTileCols)),
        places(kNumbers * kTiles * places_row),
        sums(kNumbers * kTiles * sums_row) {}
  int64_t floats() const { return windows + places + sums; }

  int64_t places_row, sums_row;
  int64_t windows, places, sums;
};

int64_t product_floats(const WinogradProduct& call) {
  return ProductRoom(call, min_of(call.cols, most_cols(call.depth))).floats();
}

// panels[number][col / kTileCols][k][col % kTileCols], 0 beyond the last column.
void turn_windows(const WinogradProduct& call, int64_t col, int64_t cols, float* panels) {
  const int64_t apart = call.depth * round_up(cols, kTileCols);
  for (int64_t j = 0; j < round_up(cols, kTileCols); j += kLanes) {
    float* panel = panels + j / kTileCols * call.depth * kTileCols + j % kTileCols;
    const int64_t height = min_of(kLanes, cols - j);
    for (int64_t k = 0; k < call.depth; ++k) {
      const float* w = call.w + (col + j) * call.w_col + k * call.w_depth;
      vf taps[kTaps];
      for (int first = 0; first < kTaps; first += kLanes) {
        const int count = static_cast<int>(min_of(kLanes, int64_t{kTaps} - first));
        vf rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i)
          rows[i] = i >= height       ? vf{}
                    : count == kLanes ? load(w + i * call.w_col + first)
                                      : load(w + i * call.w_col + first, count);
        transpose(rows);
        for (int t = 0; t < count; ++t) taps[call.is_turned ? kTaps - 1 - first - t : first + t] = rows[t];
      }
      turn_both<3, 4>([&](int r, int c) LT_INLINE_LAMBDA { return taps[r * 3 + c]; }, turn_window,
                      [&](int r, int c, vf x)
                          LT_INLINE_LAMBDA { store(panel + (r * 4 + c) * apart + k * kTileCols, x); });
    }
  }
}

// The tile's rows of A: to[number * apart + k] of k in [first, first + depth).
void turn_tile(const WinogradProduct& call, int64_t tile, int64_t first, int64_t depth, float* to, int64_t apart) {
  const float* places[16];
  find_places(call.grid, Tile(call.grid, tile), call.from, call.from_stride, places);
  for (auto& place : places)
    if (place != zeros) place += first;
  for_vectors(depth, [&](int64_t k, auto count) LT_INLINE_LAMBDA {
    turn_both<4, 4>([&](int r, int c) LT_INLINE_LAMBDA { return load(places[r * 4 + c] + k, count); }, turn_places,
                    [&](int r, int c, vf x) LT_INLINE_LAMBDA { store(to + (r * 4 + c) * apart + k, x, count); });
  });
}

void write_tile(const WinogradProduct& call, int64_t tile, int64_t col, int64_t cols, const float* sums,
                int64_t apart) {
  float* to[4];
  find_results(call.grid, Tile(call.grid, tile), call.to + col, call.to_stride, to);
  for_vectors(cols, [&](int64_t j, auto count) LT_INLINE_LAMBDA {
    const vf bias = call.bias == nullptr ? vf{} : load(call.bias + col + j, count);
    turn_both<4, 2>([&](int r, int c) LT_INLINE_LAMBDA { return load(sums + (r * 4 + c) * apart + j); }, turn_products,
                    [&](int r, int c, vf x) LT_INLINE_LAMBDA {
                      if (to[r * 2 + c] != nullptr) store(to[r * 2 + c] + j, x + bias, count);
                    });
  });
}

void product(const WinogradProduct& call, int64_t tile, int64_t tiles, int64_t col, int64_t cols, float* scratch) {
  const ProductRoom room(call, cols);
  const int64_t at_once = depth_at_once(call.depth), panels = round_up(cols, kTileCols);
  float *windows = scratch, *places = windows + room.windows, *sums = places + room.places;
  turn_windows(call, col, cols, windows);
  for (int64_t top = 0; top < tiles; top += kTiles) {
    const int64_t count = min_of(kTiles, tiles - top);
    for (int64_t first = 0; first < call.depth; first += at_once) {
      const int64_t depth = min_of(at_once, call.depth - first);
      for (int64_t i = 0; i < count; ++i)
        turn_tile(call, tile + top + i, first, depth, places + i * room.places_row, kTiles * room.places_row);
      for (int64_t number = 0; number < kNumbers; ++number) {
        const float* a = places + number * kTiles * room.places_row;
        const float* b = windows + number * call.depth * panels + first * kTileCols;
        float* c = sums + number * kTiles * room.sums_row;
        for (int64_t i = 0; i < count; i += kTileRows) {
          const int height = static_cast<int>(min_of(kTileRows, count - i));
          const auto multiply =
              kTileRows == 14 && height == kTileRows ? LT_ISA::tile<Left::kWholeRows> : LT_ISA::tile<Left::kRows>;
          for (int64_t j = 0; j < panels; j += kTileCols)
            multiply(depth, a + i * room.places_row, room.places_row, 1, height, b + j * call.depth,
                     c + i * room.sums_row + j, room.sums_row, kTileCols, first > 0);
        }
      }
    }
    for (int64_t i = 0; i < count; ++i)
      write_tile(call, tile + top + i, col, cols, sums + i * room.sums_row, kTiles * room.sums_row);
  }
}

// ---- sums over tiles

struct SumsRoom {
  SumsRoom(const WinogradSums& call, int64_t rows, int64_t depth)
      : tiles(min_of(kTilesOfSums, call.grid.tiles())),
        panels(round_up(depth, kTileCols)),
        grads(kNumbers * round_up(rows, kTileRows) * tiles + 16),
        places(kNumbers * panels * tiles),
        sums(kNumbers * round_up(rows, kTileRows) * panels) {}
  int64_t floats() const { return round_up(grads, 16) + places + sums; }

  int64_t tiles, panels;  // at a time; columns
  int64_t grads, places, sums;
};

int64_t sums_floats(const WinogradSums& call, int64_t rows, int64_t depth) {
  return SumsRoom(call, rows, depth).floats();
}

// The tile's column of A, which lies in tiles of kTileRows rows: number * apart further each.
void turn_grads(const WinogradSums& call, int64_t tile, int64_t n, int64_t count, int64_t row, int64_t rows, float* to,
                int64_t apart) {
  const float* dy[4];
  find_results(call.grid, Tile(call.grid, tile), call.dy + row, call.dy_stride, dy);
  for (int64_t t = 0; t < rows; t += kTileRows) {
    for (int64_t i = 0; i < kTileRows; i += kLanes) {
      const int64_t read = min_of(min_of(kLanes, kTileRows - i), rows - t - i);
      turn_both<2, 4>(
          [&](int r, int c) LT_INLINE_LAMBDA {
            const float* from = dy[r * 2 + c];
            return read > 0 && from != nullptr ? load(from + t + i, static_cast<int>(read)) : vf{};
          },
          turn_result_grads,
          [&](int r, int c, vf x) LT_INLINE_LAMBDA {
            store_column(to + (r * 4 + c) * apart + t * count + n * kTileRows, x, i, n + 1 == count);
          });
    }
  }
}

// The tile's row of B, in panels of kTileCols columns.
void turn_row(const WinogradSums& call, int64_t tile, int64_t n, int64_t count, int64_t first, int64_t depth, float* to,
              int64_t apart) {
  const float* places[16];
  find_places(call.grid, Tile(call.grid, tile), call.x, call.x_stride, places);
  for (auto& place : places)
    if (place != zeros) place += first;
  for (int64_t k = 0; k < round_up(depth, kTileCols); k += kLanes) {
    const int64_t read = min_of(kLanes, depth - k);
    float* panel = to + k / kTileCols * kTileCols * count + n * kTileCols + k % kTileCols;
    const auto turn = [&](auto count_of) LT_INLINE_LAMBDA {
      turn_both<4, 4>([&](int r, int c) LT_INLINE_LAMBDA { return load(places[r * 4 + c] + k, count_of); }, turn_places,
                      [&](int r, int c, vf x) LT_INLINE_LAMBDA { store(panel + (r * 4 + c) * apart, x); });
    };
    if (read == kLanes) {
      turn(Full{});
    } else if (read > 0) {
      turn(static_cast<int>(read));
    } else {
      for (int64_t number = 0; number < kNumbers; ++number) store(panel + number * apart, vf{});
    }
  }
}

void sums(const WinogradSums& call, int64_t row, int64_t rows, int64_t first, int64_t depth, float* scratch) {
  const SumsRoom room(call, rows, depth);
  float *grads = scratch, *places = grads + round_up(room.grads, 16), *sums = places + room.places;
  const int64_t tiles = call.grid.tiles(), of_grads = round_up(rows, kTileRows) * room.tiles,
                of_places = room.panels * room.tiles, of_sums = round_up(rows, kTileRows) * room.panels;
  for (int64_t tile = 0; tile < tiles; tile += kTilesOfSums) {
    const int64_t count = min_of(kTilesOfSums, tiles - tile);
    for (int64_t n = 0; n < count; ++n) {
      turn_grads(call, tile + n, n, count, row, rows, grads, of_grads);
      turn_row(call, tile + n, n, count, first, depth, places, of_places);
    }
    for (int64_t number = 0; number < kNumbers; ++number) {
      for (int64_t j = 0; j < room.panels; j += kTileCols) {
        for (int64_t i = 0; i < rows; i += kTileRows)
          LT_ISA::tile<Left::kTile>(count, grads + number * of_grads + i * count, 1, kTileRows, kTileRows,
                                    places + number * of_places + j * count,
                                    sums + number * of_sums + i * room.panels + j, room.panels, kTileCols, tile > 0);
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k < depth; k += kLanes) {
      vf taps[kTaps];
      turn_both<4, 3>([&](int r, int c)
                          LT_INLINE_LAMBDA { return load(sums + (r * 4 + c) * of_sums + i * room.panels + k); },
                      turn_window_grads, [&](int r, int c, vf x) LT_INLINE_LAMBDA { taps[r * 3 + c] = x; });
      float* to = call.dw + ((row + i) * call.depth + first + k) * kTaps;
      for (int64_t lane = 0; lane < min_of(kLanes, depth - k); ++lane)
        for (int t = 0; t < kTaps; ++t) *to++ = taps[t][lane];
    }
  }
}

}  // namespace

constinit const WinogradTable winograd_table = {
    kTileRows, kTileCols, most_cols, product_floats, product, kMostRows, kMostChannels, sums_floats, sums};

}  // namespace lowtide::cpu::LT_ISA
