#include "kernels/cpu/double_vectors.h"
#include "kernels/cpu/micro_kernel.h"
#include "kernels/cpu/recurrence/recurrence_table.h"
#include "kernels/cpu/vector_math.h"

namespace lowtide::cpu::LT_ISA {
namespace {

constexpr int64_t kDepth = 256;

// ---- products of floats: register tiles of fewer rows where a whole one would mostly multiply nothing

constexpr int kFewRows = LT_LANES == 16 ? 8 : kTileRows;

int64_t packed_floats(int64_t depth, int64_t cols) { return depth * round_up(cols, kTileCols); }

void pack_floats(const float* w, int64_t stride, bool transposed, int64_t depth, int64_t cols, float* panels) {
  for (int64_t first = 0; first < depth; first += kDepth) {
    const int64_t count = min_of(kDepth, depth - first);
    if (transposed) {
      pack_transposed(w + first, stride, count, cols, panels, count * kTileCols);
    } else {
      pack(w + first * stride, stride, count, cols, panels, count * kTileCols);
    }
    panels += packed_floats(count, cols);
  }
}

// One row by whole panels, several at a time: the sums of one alone would wait for each other. Bits of a tile's.
constexpr int kPanelsAtOnce = 4;
void multiply_row(int64_t depth, const float* a, const float* panels, float* c, bool adds) {
  vf sums[2 * kPanelsAtOnce] = {};
  for (int64_t k = 0; k < depth; ++k, panels += kTileCols) {
    const vf x = splat(a[k]);
#pragma GCC unroll 4
    for (int p = 0; p < kPanelsAtOnce; ++p) {
      sums[2 * p] = fma(x, load(panels + p * depth * kTileCols), sums[2 * p]);
      sums[2 * p + 1] = fma(x, load(panels + p * depth * kTileCols + kLanes), sums[2 * p + 1]);
    }
  }
  for (int p = 0; p < kPanelsAtOnce; ++p, c += kTileCols)
    store_sums(sums[2 * p], sums[2 * p + 1], c, adds ? c : nullptr, kTileCols);
}

void multiply_tiles(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row, const float* panel,
                    float* c, int64_t c_row, bool adds) {
  for (int64_t i = 0; i < rows;) {
    const int64_t left = rows - i;
    const bool takes_few = left <= kFewRows || (left > kTileRows && left <= 2 * kFewRows);
    const int height = static_cast<int>(min_of(takes_few ? kFewRows : kTileRows, left));
    (takes_few ? tile<Left::kRows, kFewRows> : tile<Left::kRows>)(depth, a + i * a_row, a_row, 1, height, panel,
                                                                  c + i * c_row, c_row, static_cast<int>(cols), adds);
    i += height;
  }
}

void multiply_floats(int64_t rows, int64_t cols, int64_t depth, const float* a, int64_t a_row, const float* panels,
                     float* c, bool adds) {
  constexpr int64_t kRowsByOne = 3, kColsAtOnce = kPanelsAtOnce * kTileCols;
  for (int64_t first = 0; first < depth; first += kDepth, adds = true) {
    const int64_t count = min_of(kDepth, depth - first);
    int64_t j = 0;
    for (; rows <= kRowsByOne && j + kColsAtOnce <= cols; j += kColsAtOnce)
      for (int64_t i = 0; i < rows; ++i)
        multiply_row(count, a + i * a_row + first, panels + j * count, c + i * cols + j, adds);
    for (; j < cols; j += kTileCols)
      multiply_tiles(rows, min_of(kTileCols, cols - j), count, a + first, a_row, panels + j * count, c + j, cols, adds);
    panels += packed_floats(count, cols);
  }
}

// ---- products of doubles

constexpr int64_t kDoubleRows = 4, kDoubleCols = 2 * kDoubles;

int64_t packed_doubles(int64_t depth, int64_t cols) { return depth * round_up(cols, kDoubleCols); }

// Panels of kDoubleCols columns, zeros behind the last.
void pack_doubles(const double* w, int64_t stride, bool transposed, int64_t depth, int64_t cols, double* panels) {
  for (int64_t j = 0; j < cols; j += kDoubleCols)
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t i = j; i < j + kDoubleCols; ++i)
        *panels++ = i >= cols ? 0 : transposed ? w[i * stride + k] : w[k * stride + i];
}

void multiply_doubles(int64_t rows, int64_t cols, int64_t depth, const double* a, int64_t a_row, const double* panels,
                      double* c, bool adds) {
  for (int64_t j = 0; j < cols; j += kDoubleCols, panels += depth * kDoubleCols) {
    for (int64_t i = 0; i < rows; i += kDoubleRows) {
      const double* row[kDoubleRows];
      vd sums[kDoubleRows][2] = {};
      for (int64_t r = 0; r < kDoubleRows; ++r) row[r] = a + (i + r < rows ? i + r : i) * a_row;
      for (int64_t k = 0; k < depth; ++k) {
        const vd b0 = load_doubles(panels + k * kDoubleCols), b1 = load_doubles(panels + k * kDoubleCols + kDoubles);
#pragma GCC unroll 4
        for (int64_t r = 0; r < kDoubleRows; ++r) {
          sums[r][0] += row[r][k] * b0;
          sums[r][1] += row[r][k] * b1;
        }
      }
      for (int64_t r = 0; r < kDoubleRows && i + r < rows; ++r) {
        double* to = c + (i + r) * cols + j;
        double line[kDoubleCols];
        store_doubles(line, sums[r][0]);
        store_doubles(line + kDoubles, sums[r][1]);
        for (int64_t n = 0; n < min_of(kDoubleCols, cols - j); ++n) to[n] = adds ? to[n] + line[n] : line[n];
      }
    }
  }
}

// ---- one row of a step: the same formulas on vectors of either

LT_INLINE vf sigmoid_of(vf x) { return sigmoid(x); }
LT_INLINE vf tanh_of(vf x) { return tanh(x); }
LT_INLINE vd sigmoid_of(vd x) { return sigmoid_of_doubles(x); }
LT_INLINE vd tanh_of(vd x) { return tanh_of_doubles(x); }

// Numbers [i, i + count) of a row; zeros of a row that is not there.
template <class Count>
LT_INLINE vf read(const float* row, int64_t i, Count count) {
  return row == nullptr ? vf{} : load(row + i, count);
}
template <class Count>
LT_INLINE vd read(const double* row, int64_t i, Count count) {
  return row == nullptr ? vd{} : load_doubles(row + i, count);
}
template <class Count>
LT_INLINE void write(float* row, int64_t i, vf x, Count count) {
  if (row != nullptr) store(row + i, x, count);
}
template <class Count>
LT_INLINE void write(double* row, int64_t i, vd x, Count count) {
  if (row != nullptr) store_doubles(row + i, x, count);
}
template <class Body>
LT_INLINE void for_units(const float*, int64_t n, Body body) {
  for_vectors(n, body);
}
template <class Body>
LT_INLINE void for_units(const double*, int64_t n, Body body) {
  for_doubles(n, body);
}

template <class Number>
void lstm(const StepRow<Number>& row, int64_t units) {
  for_units(row.gates, units, [&](int64_t u, auto count) LT_INLINE_LAMBDA {
    const auto gate = [&](int64_t index) LT_INLINE_LAMBDA {
      return read(row.gates, index * units + u, count) + read(row.of_state, index * units + u, count);
    };
    const auto in = sigmoid_of(gate(0)), forget = sigmoid_of(gate(1)), fresh = tanh_of(gate(2)),
               out = sigmoid_of(gate(3));
    const auto memory = forget * read(row.memory, u, count) + in * fresh;
    const auto state = out * tanh_of(memory);
    write(row.activated, u, in, count);
    write(row.activated, units + u, forget, count);
    write(row.activated, 2 * units + u, fresh, count);
    write(row.activated, 3 * units + u, out, count);
    write(row.memory, u, memory, count);
    write(row.memories, u, memory, count);
    write(row.state, u, state, count);
    write(row.y, u, state, count);
  });
}

template <class Number>
void gru(const StepRow<Number>& row, int64_t units) {
  for_units(row.gates, units, [&](int64_t u, auto count) LT_INLINE_LAMBDA {
    const auto of_input = [&](int64_t index) LT_INLINE_LAMBDA { return read(row.gates, index * units + u, count); };
    const auto of_state = [&](int64_t index) LT_INLINE_LAMBDA {
      return read(row.of_state, index * units + u, count) + read(row.bias, index * units + u, count);
    };
    const auto reset = sigmoid_of(of_input(0) + of_state(0)), update = sigmoid_of(of_input(1) + of_state(1));
    const auto given = of_state(2), fresh = tanh_of(of_input(2) + reset * given);
    const auto state = fresh + update * (read(row.state, u, count) - fresh);
    write(row.activated, u, reset, count);
    write(row.activated, units + u, update, count);
    write(row.activated, 2 * units + u, fresh, count);
    write(row.activated, 3 * units + u, given, count);
    write(row.state, u, state, count);
    write(row.y, u, state, count);
  });
}

template <bool is_relu, class Number>
void plain(const StepRow<Number>& row, int64_t units) {
  for_units(row.gates, units, [&](int64_t u, auto count) LT_INLINE_LAMBDA {
    const auto x = read(row.gates, u, count) + read(row.of_state, u, count);
    auto state = x;
    if constexpr (is_relu) {
      state = x <= x - x ? x - x : x;  // a NaN stays one
    } else {
      state = tanh_of(x);
    }
    write(row.state, u, state, count);
    write(row.y, u, state, count);
  });
}

template <class Number>
void lstm_grad(const StepRowGrad<Number>& row, int64_t units) {
  for_units(row.dgates, units, [&](int64_t u, auto count) LT_INLINE_LAMBDA {
    const auto gate = [&](int64_t index) LT_INLINE_LAMBDA { return read(row.activated, index * units + u, count); };
    const auto in = gate(0), forget = gate(1), fresh = gate(2), out = gate(3);
    const auto shown = tanh_of(read(row.memories, u, count));
    const auto dstate = read(row.dstate, u, count) + read(row.dy, u, count);
    const auto dmemory = read(row.dmemory, u, count) + dstate * out * (Number(1) - shown * shown);
    write(row.dgates, u, dmemory * fresh * in * (Number(1) - in), count);
    write(row.dgates, units + u, dmemory * read(row.memory, u, count) * forget * (Number(1) - forget), count);
    write(row.dgates, 2 * units + u, dmemory * in * (Number(1) - fresh * fresh), count);
    write(row.dgates, 3 * units + u, dstate * shown * out * (Number(1) - out), count);
    write(row.dmemory, u, dmemory * forget, count);
    write(row.dstate, u, in - in, count);
  });
}

template <class Number>
void gru_grad(const StepRowGrad<Number>& row, int64_t units) {
  for_units(row.of_state, units, [&](int64_t u, auto count) LT_INLINE_LAMBDA {
    const auto kept = [&](int64_t index) LT_INLINE_LAMBDA { return read(row.activated, index * units + u, count); };
    const auto reset = kept(0), update = kept(1), fresh = kept(2), given = kept(3);
    const auto dstate = read(row.dstate, u, count) + read(row.dy, u, count);
    const auto dfresh = dstate * (Number(1) - update) * (Number(1) - fresh * fresh);
    const auto dreset = dfresh * given * reset * (Number(1) - reset);
    const auto dupdate = dstate * (read(row.state, u, count) - fresh) * update * (Number(1) - update);
    write(row.dgates, u, dreset, count);
    write(row.dgates, units + u, dupdate, count);
    write(row.dgates, 2 * units + u, dfresh, count);
    write(row.of_state, u, dreset, count);
    write(row.of_state, units + u, dupdate, count);
    write(row.of_state, 2 * units + u, dfresh * reset, count);
    write(row.dstate, u, dstate * update, count);
  });
}

template <bool is_relu, class Number>
void plain_grad(const StepRowGrad<Number>& row, int64_t units) {
  for_units(row.dgates, units, [&](int64_t u, auto count) LT_INLINE_LAMBDA {
    const auto y = read(row.y, u, count), dstate = read(row.dstate, u, count) + read(row.dy, u, count);
    auto slope = dstate;
    if constexpr (is_relu) {
      slope = y > Number(0) ? dstate : dstate - dstate;
    } else {
      slope = dstate * (Number(1) - y * y);
    }
    write(row.dgates, u, slope, count);
    write(row.dstate, u, y - y, count);
  });
}

}  // namespace

constinit const RecurrenceTable recurrence_table = {
    {kFewRows,
     packed_floats,
     pack_floats,
     multiply_floats,
     {lstm<float>, gru<float>, plain<false, float>, plain<true, float>},
     {lstm_grad<float>, gru_grad<float>, plain_grad<false, float>, plain_grad<true, float>}},
    {kDoubleRows,
     packed_doubles,
     pack_doubles,
     multiply_doubles,
     {lstm<double>, gru<double>, plain<false, double>, plain<true, double>},
     {lstm_grad<double>, gru_grad<double>, plain_grad<false, double>, plain_grad<true, double>}}};

}  // namespace lowtide::cpu::LT_ISA
