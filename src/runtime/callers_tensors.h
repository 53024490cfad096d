// The caller's tensors at the door of a run: the sizes that they tell, and their bytes where a program may read them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/kernel.h"
#include "program/program.h"

namespace lowtide {

struct Block;

// The values of program.symbols: a dim of an input's, or the number in one; then a bound for each of counted_sizes
// (bind/planned_sizes.h): what is counted, rounded up to a sixteenth of the elements, so that few plans are bound.
// Error(kInvalidArgument) where an input has no such dim or number, or the value is out of the range that the program
// was planned for.
std::vector<int64_t> read_symbols(const Program& program, std::span<const TensorRef> inputs);

// The address of a caller's tensor that should be as `expected`; of a copy, added to `copies`, where its strides are
// others and the input is flexible. Error(kInvalidArgument) for another dtype or shape, and for other strides of an
// input that is not. `what` begins the message: "input", "gradient of".
char* bind_input(const ProgramInput& input, const TensorRef& expected, const TensorRef& found, const char* what,
                 std::vector<std::shared_ptr<Block>>& copies);

// Of equal dtypes and sizes, any strides.
void copy_tensor(const TensorRef& from, const TensorRef& to);

}  // namespace lowtide
