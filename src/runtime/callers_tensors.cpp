#include "runtime/callers_tensors.h"

#include <algorithm>

#include "base/check.h"
#include "bind/binding.h"
#include "bind/planned_sizes.h"
#include "kernels/prepared.h"
#include "runtime/block_pool.h"

namespace lowtide {

static std::string shape_text(const TensorRef& tensor) {
  return concat(name(tensor.dtype), "[", join(std::span(tensor.sizes, static_cast<size_t>(tensor.rank)), ", "), "]");
}

// Elements other than `without`. Requires: an i64 tensor.
static int64_t count_others(const TensorRef& tensor, int64_t without) {
  const int64_t numel = tensor.numel(), inner = tensor.rank > 0 ? tensor.sizes[tensor.rank - 1] : 1;
  const int64_t step = tensor.rank > 0 ? tensor.strides[tensor.rank - 1] : 0;
  int64_t count = 0;
  for (int64_t first = 0; first < numel; first += inner) {
    int64_t offset = 0, row = first / inner;
    for (int dim = tensor.rank - 2; dim >= 0; row /= tensor.sizes[dim--])
      offset += row % tensor.sizes[dim] * tensor.strides[dim];
    const int64_t* at = tensor.as<const int64_t>() + offset;
    for (int64_t i = 0; i < inner; ++i) count += at[i * step] != without ? 1 : 0;
  }
  return count;
}

static void append_counts(const Program& program, std::span<const TensorRef> inputs, std::vector<int64_t>& values) {
  for (const CountedSize& counted : counted_sizes(program)) {
    const TensorRef& tensor = inputs[static_cast<size_t>(counted.input)];
    const int64_t numel = tensor.numel(), step = std::max<int64_t>(1, (numel + 15) / 16);
    const bool is_readable = tensor.dtype == DType::kI64 && tensor.data != nullptr;
    values.push_back(is_readable ? (count_others(tensor, counted.without) + step - 1) / step * step : numel);
  }
}

std::vector<int64_t> read_symbols(const Program& program, std::span<const TensorRef> inputs) {
  std::vector<int64_t> values;
  for (size_t i = 0; i < program.symbols.size(); ++i) {
    const SymbolSource& source = program.symbols[i];
    const TensorRef& tensor = inputs[static_cast<size_t>(source.input)];
    if (source.dim == SymbolSource::kNumber)
      LT_USER_CHECK(ErrorKind::kInvalidArgument,
                    tensor.rank == 0 && tensor.dtype == DType::kI64 && tensor.data != nullptr, source.name,
                    " is the number in ", program.inputs[static_cast<size_t>(source.input)].name,
                    ", expected an i64 of one element, found ", shape_text(tensor));
    LT_USER_CHECK(ErrorKind::kInvalidArgument, source.dim < tensor.rank,
                  program.inputs[static_cast<size_t>(source.input)].name, " has rank ", tensor.rank,
                  ", expected more than ", source.dim);
    const int64_t value = source.dim == SymbolSource::kNumber ? *tensor.as<const int64_t>() : tensor.sizes[source.dim];
    LT_USER_CHECK(ErrorKind::kInvalidArgument, value >= program.symbol_low[i] && value <= program.symbol_high[i],
                  source.name, " is ", value, ", planned for ", program.symbol_low[i], " to ", program.symbol_high[i]);
    values.push_back(value);
  }
  append_counts(program, inputs, values);
  return values;
}

void copy_tensor(const TensorRef& from, const TensorRef& to) {
  const BoundCall call{{{&from, 1}, {&to, 1}}};
  run_once(kernels_of(Op::kCopy).front(), call);
}

char* bind_input(const ProgramInput& input, const TensorRef& expected, const TensorRef& found, const char* what,
                 std::vector<std::shared_ptr<Block>>& copies) {
  bool same_strides = true, same_sizes = expected.rank == found.rank && expected.dtype == found.dtype;
  for (int i = 0; same_sizes && i < expected.rank; ++i) {
    same_sizes = expected.sizes[i] == found.sizes[i];
    same_strides = same_strides && (expected.sizes[i] <= 1 || expected.strides[i] == found.strides[i]);
  }
  LT_USER_CHECK(ErrorKind::kInvalidArgument, same_sizes, what, " ", input.name, ": expected ", shape_text(expected),
                ", found ", shape_text(found));
  if (same_strides || found.numel() == 0) return static_cast<char*>(found.data);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, input.flexible, what, " ", input.name,
                " has other strides than the planned ones");
  auto block = process_pool().acquire(extent(expected) * size_bytes(expected.dtype));
  TensorRef to = expected;
  to.data = block->data;
  copy_tensor(found, to);
  copies.push_back(std::move(block));
  return copies.back()->data;
}

}  // namespace lowtide
