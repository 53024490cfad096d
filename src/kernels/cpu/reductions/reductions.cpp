// Reductions of dense f32 tensors whose reduced dims, in the order of memory, lie together (rows, columns, or columns
// of several planes) or at both ends (the sum over a batch of images, per channel).
#include <cmath>

#include "kernels/cpu/dense.h"
#include "kernels/cpu/reductions/cumulation.h"
#include "kernels/cpu/summed_rows.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/reference/reference.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {

namespace {

static_assert(kSumBlockRows % kRowsPerBlock == 0);

// How a reduction is computed, by which dims are reduced: the last ones, those between others, the first and the last.
enum class Shape : uint8_t { kRows, kColumns, kPlanes, kOther };

// The dims of x along its memory, neighbours of one kind merged: alternately kept and reduced.
struct Pattern {
  bool dense = true;  // x has no gaps, and y lists the kept dims in the order of x's memory, without gaps
  int parts = 0;
  bool reduced[kMaxRank];
  int64_t sizes[kMaxRank];
  int64_t count = 1;  // elements per sum
  Shape shape = Shape::kOther;
  int64_t size[3] = {};  // of the parts that the shape has
  int64_t outputs = 0;   // elements of y
  reference::Reduction fallback;

  explicit Pattern(const BoundCall& call);
  // Sizes of the parts if the kinds are `kinds`, where a kind of size 1 may be missing.
  bool is(std::initializer_list<bool> kinds, int64_t* found) const {
    int next = 0;
    for (bool kind : kinds) {
      const bool here = next < parts && reduced[next] == kind;
      *found++ = here ? sizes[next] : 1;
      next += here;
    }
    return next == parts;
  }
};

Pattern::Pattern(const BoundCall& call) : fallback(call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const bool keepdims = call.attrs->b("keepdims");
  bool is_axis[kMaxRank] = {};
  for (int64_t axis : call.attrs->ints("axes")) is_axis[axis] = true;
  // Offsets: x, y, and 1 for a reduced dim.
  Grid<3> dims;
  for (int i = 0, out = 0; i < x.rank; ++i) {
    const bool gone = is_axis[i] && !keepdims;
    if (x.sizes[i] != 1) dims.add_dim(x.sizes[i], {x.strides[i], is_axis[i] ? 0 : y.strides[out], is_axis[i]});
    out += !gone;
  }
  dims.sort_by(0);
  int64_t x_expected = 1, y_expected = 1;
  for (int i = dims.rank - 1; i >= 0; --i) {
    dense &= dims.strides[i][0] == x_expected;
    x_expected *= dims.sizes[i];
    if (dims.strides[i][2]) {
      count *= dims.sizes[i];
      continue;
    }
    dense &= dims.strides[i][1] == y_expected;
    y_expected *= dims.sizes[i];
  }
  for (int i = 0; i < dims.rank; ++i) {
    const bool is_reduced = dims.strides[i][2] != 0;
    if (parts > 0 && reduced[parts - 1] == is_reduced) {
      sizes[parts - 1] *= dims.sizes[i];
    } else {
      reduced[parts] = is_reduced;
      sizes[parts++] = dims.sizes[i];
    }
  }
  outputs = y.numel();
  if (!dense || x.numel() == 0) return;
  shape = is({false, true}, size)          ? Shape::kRows
          : is({false, true, false}, size) ? Shape::kColumns
          : is({true, false, true}, size)  ? Shape::kPlanes
                                           : Shape::kOther;
}

void reduce_rows(RowReduce op, const float* x, float* out, int64_t rows, int64_t cols) {
  for_row_chunks(rows, cols, 0.2, [&](int64_t r, int64_t n) {
    reductions_table().rows[static_cast<int>(op)](x + r * cols, out + r, n, cols);
  });
}

// body(the first row of up to `most` columns, their number, where their results go) for the columns of planes
// [rows, cols].
template <class Body>
void for_panels(const float* x, float* out, int64_t planes, int64_t rows, int64_t cols, int64_t most, Body body) {
  const int64_t panels = (cols + most - 1) / most;
  for_row_chunks(planes * panels, rows * std::min(cols, most), 0.3, [&](int64_t first, int64_t count) {
    for (int64_t task = first; task < first + count; ++task) {
      const int64_t plane = task / panels, column = task % panels * most;
      body(x + plane * rows * cols + column, std::min(most, cols - column), out + plane * cols + column);
    }
  });
}

// Maxima, minima or products of columns, row after row.
template <RowReduce op>
void fold_columns(const float* x, float* out, int64_t planes, int64_t rows, int64_t cols) {
  constexpr int64_t kPanel = 256;
  for_panels(x, out, planes, rows, cols, kPanel, [&](const float* from, int64_t width, float* to) {
    float folded[kPanel];
    std::copy_n(from, width, folded);
    for (int64_t r = 1; r < rows; ++r) {
      from += cols;
      for (int64_t c = 0; c < width; ++c) {
        const float value = from[c], old = folded[c];
        if constexpr (op == RowReduce::kProd) {
          folded[c] = old * value;
        } else {
          const bool better = (op == RowReduce::kMax ? value > old : value < old) | (value != value);
          folded[c] = better ? value : old;
        }
      }
    }
    std::copy_n(folded, width, to);
  });
}

// Few columns have many rows where a weight is scaled to a length: panels are narrow, so that there are some.
void lengths_of_columns(const float* x, float* out, int64_t planes, int64_t rows, int64_t cols) {
  constexpr int64_t kPanel = 32;
  for_panels(x, out, planes, rows, cols, kPanel, [&](const float* from, int64_t width, float* to) {
    double squares[kPanel] = {};
    for (int64_t r = 0; r < rows; ++r, from += cols)
      for (int64_t c = 0; c < width; ++c) squares[c] += double{from[c]} * from[c];
    for (int64_t c = 0; c < width; ++c) to[c] = static_cast<float>(std::sqrt(squares[c]));
  });
}

using Fallback = KernelStatus (*)(const KernelCall&, const reference::Reduction&);

KernelStatus run(const KernelCall& call, const Pattern& pattern, RowReduce op, Fallback fallback) {
  const float* from = call.inputs[0].as<float>();
  float* to = call.outputs[0].as<float>();
  const int64_t* size = pattern.size;
  const bool sum = op == RowReduce::kSum || op == RowReduce::kMean;
  if (pattern.shape == Shape::kRows) {
    reduce_rows(op, from, to, size[0], size[1]);
    return nullptr;
  }
  const bool folds = op == RowReduce::kMax || op == RowReduce::kMin || op == RowReduce::kProd;
  if (folds && pattern.shape == Shape::kColumns) {
    const auto fold = op == RowReduce::kMax   ? fold_columns<RowReduce::kMax>
                      : op == RowReduce::kMin ? fold_columns<RowReduce::kMin>
                                              : fold_columns<RowReduce::kProd>;
    fold(from, to, size[0], size[1], size[2]);
    return nullptr;
  }
  if (op == RowReduce::kL2 && pattern.shape == Shape::kColumns) {
    lengths_of_columns(from, to, size[0], size[1], size[2]);
    return nullptr;
  }
  if (!sum || pattern.shape == Shape::kOther) return fallback(call, pattern.fallback);
  if (pattern.shape == Shape::kColumns) {
    for (int64_t i = 0; i < size[0]; ++i) {
      sum_columns({call.inputs[0], i * size[1] * size[2], size[1], size[2]}, to + i * size[2], call.scratch);
    }
  } else {
    float* rows = static_cast<float*>(call.scratch);
    reduce_rows(RowReduce::kSum, from, rows, size[0] * size[1], size[2]);
    TensorRef sums = call.inputs[0];
    sums.data = rows;
    sum_columns({sums, 0, size[0], size[1]}, to, static_cast<char*>(call.scratch) + aligned(size[0] * size[1] * 4));
  }
  if (op == RowReduce::kMean) {
    const float count = static_cast<float>(pattern.count);
    for (int64_t i = 0; i < pattern.outputs; ++i) to[i] /= count;
  }
  return nullptr;
}

int64_t reduce_scratch(const BoundCall& call) {
  const Pattern pattern(call);
  const int64_t* size = pattern.size;
  switch (pattern.shape) {
    case Shape::kColumns: return sum_columns_scratch_bytes(size[1], size[2]);
    case Shape::kPlanes: return aligned(size[0] * size[1] * 4) + sum_columns_scratch_bytes(size[0], size[1]);
    default: return 0;
  }
}

KernelStatus reduce_sum(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kSum, reference::reduce_sum);
}
// A loop over blocks of rows starts from 0 and adds to the sum in each: the bits of one sum over all rows.
KernelStatus reduce_sum_onto(const KernelCall& call, const Pattern& pattern) {
  if (!pattern.dense || pattern.outputs == 0) return "a sum over rows whose columns do not lie together";
  SummedRows{call.inputs[0], 0, pattern.count, pattern.outputs}.add_columns(call.outputs[0].as<float>());
  return nullptr;
}
KernelStatus reduce_mean(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kMean, reference::reduce_mean);
}
KernelStatus reduce_max(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kMax, reference::reduce_max);
}
KernelStatus reduce_min(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kMin, reference::reduce_min);
}
KernelStatus reduce_prod(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kProd, reference::reduce_prod);
}
KernelStatus reduce_l2(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kL2, reference::reduce_l2);
}
KernelStatus reduce_log_sum_exp(const KernelCall& call, const Pattern& pattern) {
  return run(call, pattern, RowReduce::kLogSumExp, reference::reduce_log_sum_exp);
}

// ---- bf16 and f16: sums over the first dims, as gradients of biases are, without an f32 copy of x

struct HalfColumns {
  explicit HalfColumns(const BoundCall& call)
      : rows(product_of_sizes(call.inputs[0], 0, static_cast<int64_t>(call.attrs->ints("axes").size()))),
        cols(call.outputs[0].numel()),
        computes(computed_dtype(*call.attrs, call.inputs[0].dtype)) {}
  int64_t rows, cols;
  DType computes;
};

KernelStatus sum_half_columns(const KernelCall& call, const HalfColumns& size) {
  float* sums = static_cast<float*>(call.scratch);
  sum_columns({call.inputs[0], 0, size.rows, size.cols}, sums, sums + aligned(size.cols * kFloatBytes) / kFloatBytes);
  const TensorRef& y = call.outputs[0];
  parallel_for(size.cols, kRun, [&](int64_t begin, int64_t end) {
    if (y.dtype != size.computes)
      for (int64_t i = begin; i < end; i += kRun) round_run(size.computes, sums + i, std::min(kRun, end - i));
    write(y, begin, 1, end - begin, sums + begin);
  });
  return nullptr;
}

int64_t half_columns_scratch(const BoundCall& call) {
  const HalfColumns size(call);
  return aligned(size.cols * kFloatBytes) + sum_columns_scratch_bytes(size.rows, size.cols);
}

const char* supports_half_columns(const KernelQuery& query) {
  if (!is_half(query.inputs[0].dtype)) return "neither bf16 nor f16";
  const std::span<const int64_t> axes = query.attrs->ints("axes");
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != static_cast<int64_t>(i)) return "not over the first dims";
  return axes.size() < static_cast<size_t>(query.inputs[0].rank) ? nullptr : "over all dims";
}

// Only the loops that planning makes have one.
const char* supports_onto(const KernelQuery& query) {
  if (query.attrs->has("computes")) return "converts as it writes";
  return query.inputs.size() == 2 ? supports_f32(query) : "no sum to add to";
}

}  // namespace

std::span<const Kernel> reductions_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/reductions/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
