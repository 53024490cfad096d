#include "kernels/cpu/convolution/depthwise_table.h"
#include "kernels/cpu/half_vectors.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr int kTile = 12;  // places of a line whose sums stay in registers

LT_INLINE int64_t ceil_div(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }  // b > 0

// dx[t] for t in [0, places), `step` places apart, of one vector of channels. Window columns meet dy at first[k] + t.
// Every sum goes through the window in order, whichever way it is taken.
template <class Numbers>
struct Line {
  using Stored = typename Numbers::Number;

  const ConvolutionSizes& sizes;
  const Stored* dy;      // of the image, at the channels
  const float* windows;  // at the channels
  int64_t row;           // of dx, with the pad
  int64_t phase;         // the first place, with the pad

  // body(rows of dy, of the window)
  template <class Body>
  LT_INLINE_LAMBDA void for_rows(Body body) const {
    for (int64_t i = 0; i < sizes.window_height; ++i) {
      const int64_t at = row - i * sizes.dilation_down;
      if (at < 0 || at % sizes.down != 0 || at / sizes.down >= sizes.y_height) continue;
      body(dy + at / sizes.down * sizes.y_width * sizes.channels, windows + i * sizes.window_width * sizes.channels);
    }
  }
  // body(window column, column of dy that place 0 meets)
  template <class Body>
  LT_INLINE_LAMBDA void for_columns(Body body) const {
    for (int64_t j = 0; j < sizes.window_width; ++j) {
      const int64_t at = phase - j * sizes.dilation_right;
      const int64_t rest = at % sizes.right;
      if (rest != 0) continue;
      body(j, at / sizes.right);
    }
  }

  template <class Count>
  LT_INLINE_LAMBDA void inside(int64_t t, Stored* dx, int64_t step, Count count) const {
    const int64_t channels = sizes.channels;
    vf sum[kTile] = {};
    for_rows([&](const Stored* from, const float* window) LT_INLINE_LAMBDA {
      for_columns([&](int64_t j, int64_t first) LT_INLINE_LAMBDA {
        const vf w = load(window + j * channels, count);
        const Stored* at = from + (first + t) * channels;
#pragma GCC unroll 16
        for (int k = 0; k < kTile; ++k) sum[k] = fma(Numbers::load(at + k * channels, count), w, sum[k]);
      });
    });
#pragma GCC unroll 16
    for (int k = 0; k < kTile; ++k) Numbers::store(dx + (t + k) * step, sum[k], count);
  }

  template <class Count>
  LT_INLINE_LAMBDA void edge(int64_t t, int64_t places, Stored* dx, int64_t step, Count count) const {
    const int64_t channels = sizes.channels;
    vf sum[kTile] = {};
    for_rows([&](const Stored* from, const float* window) LT_INLINE_LAMBDA {
      for_columns([&](int64_t j, int64_t first) LT_INLINE_LAMBDA {
        const vf w = load(window + j * channels, count);
        const int64_t begin = max_of(0, -(first + t)), end = min_of(places, sizes.y_width - first - t);
        for (int64_t k = begin; k < end; ++k)
          sum[k] = fma(Numbers::load(from + (first + t + k) * channels, count), w, sum[k]);
      });
    });
    for (int64_t k = 0; k < places; ++k) Numbers::store(dx + (t + k) * step, sum[k], count);
  }

  template <class Count>
  LT_INLINE_LAMBDA void run(int64_t places, Stored* dx, int64_t step, Count count) const {
    int64_t low = 0, high = places;  // of places that meet dy with every column of the window
    for_columns([&](int64_t, int64_t first) LT_INLINE_LAMBDA {
      low = max_of(low, -first);
      high = min_of(high, sizes.y_width - first);
    });
    for (int64_t t = 0; t < places;) {
      if (t >= low && t + kTile <= high) {
        inside(t, dx, step, count);
        t += kTile;
        continue;
      }
      const int64_t until = t < low && low + kTile <= high ? low : places;
      const int64_t some = min_of(kTile, until - t);
      edge(t, some, dx, step, count);
      t += some;
    }
  }
};

template <class Numbers>
void lines(const ConvolutionSizes& sizes, const void* dy, const float* windows, void* dx, int64_t begin, int64_t end) {
  using Stored = typename Numbers::Number;
  const int64_t channels = sizes.channels;
  for (int64_t line = begin; line < end; ++line) {
    const int64_t image = line / sizes.x_height, row = line % sizes.x_height;
    const Stored* of_image = (const Stored*)dy + image * sizes.y_height * sizes.y_width * channels;
    Stored* to = (Stored*)dx + line * sizes.x_width * channels;
    for_vectors(channels, [&](int64_t c, auto count) LT_INLINE_LAMBDA {
      for (int64_t place = 0; place < min_of(sizes.right, sizes.x_width); ++place) {
        const Line<Numbers> one{sizes, of_image + c, windows + c, row + sizes.top, place + sizes.left};
        one.run(ceil_div(sizes.x_width - place, sizes.right), to + place * channels + c, sizes.right * channels, count);
      }
    });
  }
}

// Of one row of the window, kColumns of its columns from `column` on, and kVectors of channels: a line of dy at a time.
template <class Numbers, int kColumns, int kVectors>
struct WindowRow {
  using Stored = typename Numbers::Number;

  const ConvolutionSizes& sizes;
  int64_t column;

  template <class Count>
  LT_INLINE_LAMBDA void add(const Stored* dy, const Stored* x, float* sums, Count count) const {
    const int64_t channels = sizes.channels, right = sizes.right, apart = sizes.dilation_right;
    const int64_t before = sizes.left - column * apart;  // of place p column k meets p * right - before + k * apart
    const int64_t last = (kColumns - 1) * apart;
    const int64_t low = max_of(0, ceil_div(before, right));
    const int64_t high = min_of(sizes.y_width, ceil_div(sizes.x_width + before - last, right));
    vf sum[kColumns][kVectors] = {};
    const auto edge = [&](int64_t begin, int64_t end) LT_INLINE_LAMBDA {
      for (int64_t p = begin; p < end; ++p) {
        for (int k = 0; k < kColumns; ++k) {
          const int64_t at = p * right - before + k * apart;
          if (at < 0 || at >= sizes.x_width) continue;
          for (int v = 0; v < kVectors; ++v)
            sum[k][v] = fma(Numbers::load(dy + p * channels + v * kLanes, count),
                            Numbers::load(x + at * channels + v * kLanes, count), sum[k][v]);
        }
      }
    };
    edge(0, min_of(low, sizes.y_width));
    for (int64_t p = low; p < high; ++p) {
      const Stored *of_dy = dy + p * channels, *of_x = x + (p * right - before) * channels;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const vf d = Numbers::load(of_dy + v * kLanes, count);
#pragma GCC unroll 8
        for (int k = 0; k < kColumns; ++k)
          sum[k][v] = fma(d, Numbers::load(of_x + k * apart * channels + v * kLanes, count), sum[k][v]);
      }
    }
    edge(max_of(min_of(low, sizes.y_width), high), sizes.y_width);
    for (int k = 0; k < kColumns; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        float* to = sums + (column + k) * channels + v * kLanes;
        store(to, load(to, count) + sum[k][v], count);
      }
    }
  }
};

template <int kCount>
struct Columns {
  static constexpr int count = kCount;
};

template <class Numbers, int kVectors, class Count>
LT_INLINE void add_row(const ConvolutionSizes& sizes, const typename Numbers::Number* dy,
                       const typename Numbers::Number* x, float* sums, Count count) {
  int64_t column = 0;
  const auto take = [&](auto columns) LT_INLINE_LAMBDA {
    WindowRow<Numbers, decltype(columns)::count, kVectors>{sizes, column}.add(dy, x, sums, count);
    column += columns.count;
  };
  while (column < sizes.window_width) {
    const int64_t left = sizes.window_width - column;
    if (left == 1) take(Columns<1>{});
    if (left == 2) take(Columns<2>{});
    if (left == 3) take(Columns<3>{});
    if (left == 4) take(Columns<4>{});
    if (left == 5) take(Columns<5>{});
    if (left == 7) take(Columns<7>{});
    if (left == 6 || left > 7) take(Columns<6>{});
  }
}

template <class Numbers, int kVectors, class Count>
LT_INLINE void sum_window(const ConvolutionSizes& sizes, const typename Numbers::Number* dy,
                          const typename Numbers::Number* x, float* sums, int64_t begin, int64_t end, Count count) {
  const int64_t channels = sizes.channels, places = sizes.window_height * sizes.window_width;
  for (int64_t k = 0; k < places; ++k)
    for (int v = 0; v < kVectors; ++v) store(sums + k * channels + v * kLanes, vf{}, count);
  for (int64_t image = begin; image < end; ++image) {
    for (int64_t y = 0; y < sizes.y_height; ++y) {
      const auto* line = dy + (image * sizes.y_height + y) * sizes.y_width * channels;
      for (int64_t i = 0; i < sizes.window_height; ++i) {
        const int64_t row = y * sizes.down - sizes.top + i * sizes.dilation_down;
        if (row < 0 || row >= sizes.x_height) continue;
        add_row<Numbers, kVectors>(sizes, line, x + (image * sizes.x_height + row) * sizes.x_width * channels,
                                   sums + i * sizes.window_width * channels, count);
      }
    }
  }
}

template <class Numbers>
void sums(const ConvolutionSizes& sizes, const void* dy_at, const void* x_at, float* to, int64_t begin, int64_t end,
          int64_t first, int64_t count) {
  const auto *dy = (const typename Numbers::Number*)dy_at, *x = (const typename Numbers::Number*)x_at;
  const int64_t last = first + count;
  int64_t c = first;
  for (; c + 2 * kLanes <= last; c += 2 * kLanes)
    sum_window<Numbers, 2>(sizes, dy + c, x + c, to + c, begin, end, Full{});
  for (; c + kLanes <= last; c += kLanes) sum_window<Numbers, 1>(sizes, dy + c, x + c, to + c, begin, end, Full{});
  if (c < last) sum_window<Numbers, 1>(sizes, dy + c, x + c, to + c, begin, end, static_cast<int>(last - c));
}

template <class Numbers>
constexpr DepthwiseLoops kLoops = {lines<Numbers>, sums<Numbers>};

}  // namespace

constinit const DepthwiseTable depthwise_table = {2 * kLanes, kLoops<Floats>, kLoops<Halves<true>>,
                                                  kLoops<Halves<false>>};

}  // namespace lowtide::cpu::LT_ISA
