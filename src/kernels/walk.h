// Walking over the elements of several strided tensors at once. How they are walked is made of a bound call, and walked
// at each run: what makes it asks for the bound call, which a run does not have.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/parallel.h"
#include "kernels/kernel.h"

namespace lowtide {

struct Strides {
  int64_t at[kMaxRank] = {};
};

inline Strides strides_of(const TensorRef& tensor) {
  Strides result;
  std::copy_n(tensor.strides, kMaxRank, result.at);
  return result;
}

// Strides of `operand` as if it had the shape of `shape`: numpy's broadcasting, missing dims in front.
inline Strides broadcast_strides(const BoundCall&, const TensorRef& operand, const TensorRef& shape) {
  Strides result;
  const int missing = shape.rank - operand.rank;
  for (int i = 0; i < operand.rank; ++i) result.at[missing + i] = operand.sizes[i] == 1 ? 0 : operand.strides[i];
  return result;
}

// A rectangle of positions with an offset into each of N tensors; row-major order of positions.
template <size_t N>
struct Grid {
  using Offsets = std::array<int64_t, N>;

  int rank = 0;
  int64_t sizes[kMaxRank] = {};
  Offsets strides[kMaxRank] = {};

  void add_dim(int64_t size, Offsets stride) {
    sizes[rank] = size;
    strides[rank] = stride;
    ++rank;
  }
  void remove_dim(int at) {
    std::copy(sizes + at + 1, sizes + rank, sizes + at);
    std::copy(strides + at + 1, strides + rank, strides + at);
    --rank;
  }
  int64_t numel() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= sizes[i];
    return product;
  }
  // Drops dims of size 1 and merges neighbours that every tensor walks as one. Keeps the order of positions.
  void collapse() {
    int kept = 0;
    for (int i = 0; i < rank; ++i) {
      if (sizes[i] == 1) continue;
      bool merge = kept > 0;
      for (size_t t = 0; merge && t < N; ++t) merge = strides[kept - 1][t] == strides[i][t] * sizes[i];
      if (merge) {
        sizes[kept - 1] *= sizes[i];
        strides[kept - 1] = strides[i];
      } else {
        sizes[kept] = sizes[i];
        strides[kept] = strides[i];
        ++kept;
      }
    }
    rank = kept;
  }
  // Orders dims by falling stride of one tensor, so that it is walked along its memory. Changes the order of positions.
  void sort_by(size_t tensor) {
    for (int i = 1; i < rank; ++i) {
      for (int j = i; j > 0 && strides[j - 1][tensor] < strides[j][tensor]; --j) {
        std::swap(sizes[j - 1], sizes[j]);
        std::swap(strides[j - 1], strides[j]);
      }
    }
  }
  // Calls body(position, offsets) for positions [begin, end).
  template <class Body>
  void for_each(int64_t begin, int64_t end, Body&& body) const {
    if (begin >= end) return;
    int64_t index[kMaxRank];
    Offsets offsets{};
    int64_t rest = begin;
    for (int i = rank - 1; i >= 0; --i) {
      index[i] = rest % sizes[i];
      rest /= sizes[i];
      for (size_t t = 0; t < N; ++t) offsets[t] += index[i] * strides[i][t];
    }
    for (int64_t position = begin;;) {
      body(position, offsets);
      if (++position == end) return;
      for (int i = rank - 1; i >= 0; --i) {
        for (size_t t = 0; t < N; ++t) offsets[t] += strides[i][t];
        if (++index[i] < sizes[i]) break;
        index[i] = 0;
        for (size_t t = 0; t < N; ++t) offsets[t] -= sizes[i] * strides[i][t];
      }
    }
  }
  template <class Body>
  void for_each(Body&& body) const {
    for_each(0, numel(), body);
  }
  // Calls body(offsets) for each position, all of them in order, its last dim's in a plain loop.
  template <class Body>
  void for_each_in_rows(Body&& body) const {
    if (rank == 0) return body(Offsets{});
    Grid rows = *this;
    rows.remove_dim(rank - 1);
    const int64_t size = sizes[rank - 1];
    const Offsets step = strides[rank - 1];
    rows.for_each([&](int64_t, const Offsets& first) {
      Offsets at = first;
      for (int64_t i = 0; i < size; ++i) {
        body(at);
        for (size_t t = 0; t < N; ++t) at[t] += step[t];
      }
    });
  }
};

// All positions of `shape`; tensor t is walked with strides[t].
template <size_t N>
Grid<N> grid_over(const BoundCall&, const TensorRef& shape, const std::array<Strides, N>& strides) {
  Grid<N> grid;
  for (int i = 0; i < shape.rank; ++i) {
    typename Grid<N>::Offsets stride;
    for (size_t t = 0; t < N; ++t) stride[t] = strides[t].at[i];
    grid.add_dim(shape.sizes[i], stride);
  }
  return grid;
}

// All positions of y in row-major order. Offsets: each tensor (broadcast to y), then y.
template <size_t N>
Grid<N + 1> row_major_order(const BoundCall& call, const TensorRef& y, const std::array<const TensorRef*, N>& tensors) {
  std::array<Strides, N + 1> strides;
  for (size_t t = 0; t < N; ++t) strides[t] = broadcast_strides(call, *tensors[t], y);
  strides[N] = strides_of(y);
  return grid_over<N + 1>(call, y, strides);
}

// The same in the order of y's memory.
template <size_t N>
Grid<N + 1> memory_order(const BoundCall& call, const TensorRef& y, const std::array<const TensorRef*, N>& tensors) {
  Grid<N + 1> grid = row_major_order<N>(call, y, tensors);
  grid.sort_by(N);
  return grid;
}

// The positions of a grid as runs of at most `longest`.
template <size_t N>
struct Runs {
  using Offsets = typename Grid<N>::Offsets;

  Runs() = default;
  Runs(Grid<N> grid, int64_t longest_run) : longest(longest_run) {
    grid.collapse();
    const int64_t numel = grid.numel();
    if (grid.rank > 0) {
      --grid.rank;
      length = grid.sizes[grid.rank];
      steps = grid.strides[grid.rank];
    }
    rows = grid;
    if (numel == 0) return;
    pieces = (length + longest - 1) / longest;
    count = rows.numel() * pieces;
    grain = std::max<int64_t>(1, 16384 / std::min(length, longest));
  }

  // Calls body(first, offsets, steps, n), all on threads: the run's i-th position is first + i in the grid's order, and
  // tensor t's element there is offsets[t] + i * steps[t].
  template <class Body>
  void for_each(Body&& body) const {
    if (count == 0) return;
    parallel_for(count, grain, [&](int64_t begin, int64_t end) {
      const int64_t first_row = begin / pieces, last_row = (end - 1) / pieces;
      rows.for_each(first_row, last_row + 1, [&](int64_t row, const Offsets& offsets) {
        const int64_t from = row == first_row ? begin - row * pieces : 0;
        const int64_t to = row == last_row ? end - row * pieces : pieces;
        for (int64_t piece = from; piece < to; ++piece) {
          const int64_t start = piece * longest;
          Offsets shifted;
          for (size_t t = 0; t < N; ++t) shifted[t] = offsets[t] + start * steps[t];
          body(row * length + start, shifted, steps, std::min(longest, length - start));
        }
      });
    });
  }

  int64_t length = 1, longest = 1, pieces = 1;
  int64_t count = 0, grain = 1;  // of runs
  Offsets steps{};
  Grid<N> rows;
};

// The rows of `shape` along an axis; the tensors are broadcast to it.
template <size_t N>
struct RowWalk {
  RowWalk(const BoundCall& call, const TensorRef& shape, int64_t axis, const std::array<const TensorRef*, N>& tensors) {
    std::array<Strides, N> strides;
    for (size_t t = 0; t < N; ++t) strides[t] = broadcast_strides(call, *tensors[t], shape);
    for (int i = 0; i < shape.rank; ++i) {
      typename Grid<N>::Offsets stride;
      for (size_t t = 0; t < N; ++t) stride[t] = strides[t].at[i];
      if (i == axis) {
        size = shape.sizes[i];
        steps = stride;
      } else {
        rows.add_dim(shape.sizes[i], stride);
      }
    }
    count = rows.numel();
  }

  // body(offsets) for each row, all on threads.
  template <class Body>
  void for_each(int64_t grain, Body&& body) const {
    parallel_for(count, std::max<int64_t>(1, grain), [&](int64_t begin, int64_t end) {
      rows.for_each(begin, end, [&](int64_t, const auto& offsets) { body(offsets); });
    });
  }

  int64_t size = 1, count = 1;
  typename Grid<N>::Offsets steps{};  // along the axis
  Grid<N> rows;
};

}  // namespace lowtide
