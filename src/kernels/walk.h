// Walking over the elements of several strided tensors at once.
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
inline Strides broadcast_strides(const TensorRef& operand, const TensorRef& shape) {
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
};

// All positions of `shape`; tensor t is walked with strides[t].
template <size_t N>
Grid<N> grid_over(const TensorRef& shape, const std::array<Strides, N>& strides) {
  Grid<N> grid;
  for (int i = 0; i < shape.rank; ++i) {
    typename Grid<N>::Offsets stride;
    for (size_t t = 0; t < N; ++t) stride[t] = strides[t].at[i];
    grid.add_dim(shape.sizes[i], stride);
  }
  return grid;
}

// All positions of `shape` but along `axis`: one per row.
template <size_t N>
Grid<N> rows_over(const TensorRef& shape, int64_t axis, const std::array<Strides, N>& strides) {
  Grid<N> grid;
  for (int i = 0; i < shape.rank; ++i) {
    if (i == axis) continue;
    typename Grid<N>::Offsets stride;
    for (size_t t = 0; t < N; ++t) stride[t] = strides[t].at[i];
    grid.add_dim(shape.sizes[i], stride);
  }
  return grid;
}

// Calls body(first, offsets, steps, n) for runs of at most `longest` positions, all on threads: the run's i-th position
// is first + i in the grid's order, and tensor t's element there is offsets[t] + i * steps[t].
template <size_t N, class Body>
void for_each_run(Grid<N> grid, int64_t longest, Body&& body) {
  if (grid.numel() == 0) return;
  int64_t length = 1;
  typename Grid<N>::Offsets steps{};
  if (grid.rank > 0) {
    --grid.rank;
    length = grid.sizes[grid.rank];
    steps = grid.strides[grid.rank];
  }
  const int64_t pieces = (length + longest - 1) / longest;
  const int64_t grain = std::max<int64_t>(1, 16384 / std::min(length, longest));
  parallel_for(grid.numel() * pieces, grain, [&](int64_t begin, int64_t end) {
    const int64_t first_row = begin / pieces, last_row = (end - 1) / pieces;
    grid.for_each(first_row, last_row + 1, [&](int64_t row, const typename Grid<N>::Offsets& offsets) {
      const int64_t from = row == first_row ? begin - row * pieces : 0;
      const int64_t to = row == last_row ? end - row * pieces : pieces;
      for (int64_t piece = from; piece < to; ++piece) {
        const int64_t start = piece * longest;
        typename Grid<N>::Offsets shifted;
        for (size_t t = 0; t < N; ++t) shifted[t] = offsets[t] + start * steps[t];
        body(row * length + start, shifted, steps, std::min(longest, length - start));
      }
    });
  });
}

// The same over all positions of `shape` in row-major order.
template <size_t N, class Body>
void for_each_run(const TensorRef& shape, const std::array<Strides, N>& strides, int64_t longest, Body&& body) {
  Grid<N> grid = grid_over<N>(shape, strides);
  grid.collapse();
  for_each_run(grid, longest, body);
}

}  // namespace lowtide
