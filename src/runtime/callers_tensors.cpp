#include "runtime/callers_tensors.h"

#include "base/check.h"
#include "bind/binding.h"
#include "kernels/prepared.h"
#include "runtime/block_pool.h"

namespace lowtide {

static std::string shape_text(const TensorRef& tensor) {
  return concat(name(tensor.dtype), "[", join(std::span(tensor.sizes, static_cast<size_t>(tensor.rank)), ", "), "]");
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
  return values;
}

void copy_tensor(const TensorRef& from, const TensorRef& to) {
  const BoundCall call{{{&from, 1}, {&to, 1}}};
  for (const Kernel& kernel : kernels_of(Op::kCopy))
    if (kernel.provider == std::string_view("reference")) run_once(kernel, call);
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
