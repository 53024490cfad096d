// Rows gathered by index, and gradients scattered back.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/indices/elements.h"
#include "kernels/cpu/indices/slices.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

// Whether every index is in [-rows, rows); a negative one counts from the end.
bool in_range(const int64_t* indices, int64_t n, int64_t rows) {
  return std::all_of(indices, indices + n, [&](int64_t index) { return index >= -rows && index < rows; });
}
int64_t row_at(int64_t index, int64_t rows) { return index < 0 ? index + rows : index; }

// ---- Gather along an axis, as runs of bytes

const char* supports_gather(const KernelQuery& query) {
  return query.inputs[1].dtype == DType::kI64 ? nullptr : "indices are not i64";
}

// `outer` parts of `rows` rows each, of which every index picks one.
struct Picked {
  explicit Picked(const BoundCall& call) {
    const TensorRef& data = call.inputs[0];
    const int64_t axis = call.attrs->i("axis");
    outer = product_of_sizes(data, 0, axis);
    rows = data.sizes[axis];
    bytes = product_of_sizes(data, axis + 1, data.rank) * size_bytes(data.dtype);
    indices = call.inputs[1].numel();
  }
  int64_t outer, rows, bytes, indices;
};

// Row i of `to` is the one of `from` that indices[i] picks, for i in [first, end).
template <class Copy>
void pick(const Picked& picked, const int64_t* indices, const char* from, char* to, int64_t first, int64_t end,
          Copy copy) {
  for (int64_t i = first; i < end; ++i)
    copy(to + i * picked.bytes, from + row_at(indices[i], picked.rows) * picked.bytes);
}
template <class Word>
void copy_word(char* to, const char* from) {
  std::memcpy(to, from, sizeof(Word));
}

KernelStatus gather(const KernelCall& call, const Picked& picked) {
  const int64_t rows = picked.rows, bytes = picked.bytes, n = picked.indices;
  const int64_t* indices = call.inputs[1].as<int64_t>();
  if (!in_range(indices, n, rows)) return "Gather: an index is out of range";
  for_row_chunks(picked.outer * n, bytes, 0.05, [&](int64_t begin, int64_t count) {
    for (int64_t at = begin; at < begin + count;) {
      const int64_t part = at / n, first = at % n, end = std::min(n, first + begin + count - at);
      const char* from = call.inputs[0].as<char>() + part * rows * bytes;
      char* to = call.outputs[0].as<char>() + part * n * bytes;
      switch (bytes) {
        case 2: pick(picked, indices, from, to, first, end, copy_word<uint16_t>); break;
        case 4: pick(picked, indices, from, to, first, end, copy_word<uint32_t>); break;
        case 8: pick(picked, indices, from, to, first, end, copy_word<uint64_t>); break;
        default:
          pick(picked, indices, from, to, first, end,
               [bytes](char* to_row, const char* from_row) { std::memcpy(to_row, from_row, bytes); });
      }
      at += end - first;
    }
  });
  return nullptr;
}

// ---- its gradient, of each part: dx[v] is the sum of dy[i] over all i with indices[i] = v, in ascending i, by blocks
// of kRowsPerBlock occurrences, then the blocks in order (rows of one number: one after another); added onto what a
// third operand holds.

constexpr int64_t kPanel = 256;     // columns that one thread sums at a time
constexpr int64_t kFewColumns = 4;  // fewer are not worth a call of vector loops

// positions[starts[v], starts[v + 1]) are the occurrences of row v in ascending order (a counting sort).
struct Occurrences {
  int32_t* starts;  // rows + 2: starts[v + 1] is the cursor of v while sorting
  int32_t* positions;
};

Occurrences sort_by_row(const int64_t* indices, int64_t n, int64_t rows, void* scratch) {
  int32_t* counts = static_cast<int32_t*>(scratch);
  const Occurrences sorted{counts, counts + rows + 2};
  std::memset(counts, 0, sizeof(int32_t) * (rows + 2));
  for (int64_t i = 0; i < n; ++i) ++counts[row_at(indices[i], rows) + 2];
  for (int64_t v = 2; v < rows + 2; ++v) counts[v] += counts[v - 1];
  for (int64_t i = 0; i < n; ++i) {
    sorted.positions[counts[row_at(indices[i], rows) + 1]++] = static_cast<int32_t>(i);
  }
  return sorted;
}

const char* supports_gather_grad(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  if (query.inputs[1].dtype != DType::kI64) return "indices are not i64";
  return nullptr;
}

int64_t gather_grad_scratch(const BoundCall& call) {
  return (call.outputs[0].sizes[call.attrs->i("axis")] + 2 + call.inputs[1].numel()) *
         static_cast<int64_t>(sizeof(int32_t));
}

struct Rebuilt {
  explicit Rebuilt(const BoundCall& call) : indices(call.inputs[1].numel()) {
    const TensorRef& dx = call.outputs[0];
    const int64_t axis = call.attrs->i("axis");
    outer = product_of_sizes(dx, 0, axis);
    rows = dx.sizes[axis];
    cols = product_of_sizes(dx, axis + 1, dx.rank);
    skipped = call.attrs->has("padding_idx") ? row_at(call.attrs->i("padding_idx"), rows) : -1;
  }
  int64_t outer, rows, cols, indices;
  int64_t skipped;  // the row whose gradient stays 0, or -1
};

// out[c] = or += the sum of dy's rows at positions[0, n), of `width` columns from `first` on in dy's memory; bf16 and
// f16 rows are widened side by side.
void sum_rows_at(const TensorRef& dy, int64_t cols, int64_t first, int64_t width, const int32_t* positions, int64_t n,
                 float* out, bool add) {
  const ReductionsTable& table = reductions_table();
  if (dy.dtype == DType::kF32) {
    const float* from = dy.as<float>() + first;
    if (width >= kFewColumns) return table.gather_sum(from, cols, positions, n, out, width, add);
    for (int64_t c = 0; c < width; ++c) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += from[positions[i] * cols + c];
      out[c] = add ? out[c] + sum : sum;
    }
    return;
  }
  float rows[kRowsPerBlock * kPanel];
  for (int64_t i = 0; i < n; ++i) read(dy, positions[i] * cols + first, 1, width, rows + i * width);
  table.sum_rows[kStoredF32](rows, width, out, n, width, add);
}

// Of rows of one number: sorting would take longer than the sums, whose order is that of the indices.
void sum_numbers(const float* dy, const int64_t* indices, const Rebuilt& table, bool onto, float* dx) {
  for_row_chunks(table.outer, table.indices + table.rows, 1, [&](int64_t first, int64_t count) {
    for (int64_t part = first; part < first + count; ++part) {
      float* sums = dx + part * table.rows;
      const float* from = dy + part * table.indices;
      if (!onto) std::memset(sums, 0, table.rows * kFloatBytes);
      for (int64_t i = 0; i < table.indices; ++i) {
        const int64_t row = row_at(indices[i], table.rows);
        if (row != table.skipped) sums[row] += from[i];
      }
    }
  });
}

KernelStatus gather_grad(const KernelCall& call, const Rebuilt& table) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  const int64_t rows = table.rows, cols = table.cols, n = table.indices, skipped = table.skipped;
  const int64_t* indices = call.inputs[1].as<int64_t>();
  if (!in_range(indices, n, rows)) return "GatherGrad: an index is out of range";
  const TensorRef* onto = input(call, 2);
  const int64_t bytes = size_bytes(dx.dtype);
  if (onto && onto->data != dx.data) std::memcpy(dx.data, onto->data, table.outer * rows * cols * bytes);
  if (cols == 1 && dx.dtype == DType::kF32) {
    sum_numbers(dy.as<float>(), indices, table, onto != nullptr, dx.as<float>());
    return nullptr;
  }
  const Occurrences sorted = sort_by_row(indices, n, rows, call.scratch);
  const int64_t panels = (cols + kPanel - 1) / kPanel;
  // Tasks are rows times panels, so that a table of two rows is shared too.
  const double average = 1 + static_cast<double>(n) / static_cast<double>(std::max<int64_t>(rows, 1));
  for_row_chunks(table.outer * rows * panels, std::min(cols, kPanel), 0.2 * average, [&](int64_t first, int64_t count) {
    for (int64_t task = first; task < first + count; ++task) {
      const int64_t row = task / panels, c = task % panels * kPanel, width = std::min(kPanel, cols - c);
      const int64_t part = row / rows, index = row % rows, place = row * cols + c;
      const int32_t begin = sorted.starts[index], end = index == skipped ? begin : sorted.starts[index + 1];
      if (begin == end) {
        if (!onto) std::memset(dx.as<char>() + place * bytes, 0, width * bytes);
        continue;
      }
      float sums[kPanel];
      float* out = target(dx, place, 1, width, sums);
      if (onto && out == sums) read(dx, place, 1, width, sums);
      for (int32_t at = begin; at < end; at += kRowsPerBlock) {
        sum_rows_at(dy, cols, part * n * cols + c, width, sorted.positions + at,
                    std::min<int64_t>(kRowsPerBlock, end - at), out, onto || at > begin);
      }
      write(dx, place, 1, width, out);
    }
  });
  return nullptr;
}

// ---- rows that a condition chooses

constexpr KernelStatus kOtherCount = "the condition is true in other places than were counted";

int64_t count_of(const int8_t* condition, int64_t n) {
  return std::count_if(condition, condition + n, [](int8_t value) { return value != 0; });
}

KernelStatus count_true(const KernelCall& call) {
  *call.outputs[0].as<int64_t>() = count_of(call.inputs[0].as<int8_t>(), call.inputs[0].numel());
  return nullptr;
}

struct ChosenRows {
  ChosenRows(const TensorRef& all, const TensorRef& chosen)
      : rows(all.sizes[0]),
        bytes(product_of_sizes(all, 1, all.rank) * size_bytes(all.dtype)),
        chosen_rows(chosen.sizes[0]) {}
  int64_t rows, bytes, chosen_rows;

  // body(row, which of the chosen ones it is)
  template <class Body>
  KernelStatus for_each(const int8_t* condition, Body body) const {
    if (count_of(condition, rows) != chosen_rows) return kOtherCount;
    int64_t found = 0;
    for (int64_t i = 0; i < rows; ++i)
      if (condition[i] != 0) body(i, found++);
    return nullptr;
  }
};
struct Compressed : ChosenRows {
  explicit Compressed(const BoundCall& call) : ChosenRows(call.inputs[0], call.outputs[0]) {}
};
struct Scattered : ChosenRows {
  explicit Scattered(const BoundCall& call) : ChosenRows(call.outputs[0], call.inputs[2]) {}
};

KernelStatus compress(const KernelCall& call, const Compressed& chosen) {
  const char* from = call.inputs[0].as<char>();
  char* to = call.outputs[0].as<char>();
  return chosen.for_each(call.inputs[1].as<int8_t>(), [&](int64_t row, int64_t found) {
    std::memcpy(to + found * chosen.bytes, from + row * chosen.bytes, chosen.bytes);
  });
}

KernelStatus masked_scatter(const KernelCall& call, const Scattered& chosen) {
  const TensorRef &data = call.inputs[0], &y = call.outputs[0];
  if (data.data != y.data) std::memcpy(y.data, data.data, chosen.rows * chosen.bytes);
  const char* from = call.inputs[2].as<char>();
  char* to = y.as<char>();
  return chosen.for_each(call.inputs[1].as<int8_t>(), [&](int64_t row, int64_t found) {
    std::memcpy(to + row * chosen.bytes, from + found * chosen.bytes, chosen.bytes);
  });
}

constexpr OperandRules kOntoThird = every_input(Accept::kRowMajor, {.takes = 2});

}  // namespace

std::span<const Kernel> indices_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/indices/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
