// Tensors whose elements are all the same number.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace lowtide {

struct Uniform {
  DType dtype = DType::kF32;
  double value = 0;  // of floats, as written (not yet rounded to dtype)
  Dim integer;       // of integers and bool
  bool is(int64_t number) const { return is_float(dtype) ? value == static_cast<double>(number) : integer.is(number); }
};
// Seen through views, casts and copies of a constant; nullopt if it is none. A cast counts only if it keeps the number
// exactly or rounds it to f32.
std::optional<Uniform> uniform(const Graph& graph, ValueId value);
// The number of a uniform float tensor.
std::optional<double> uniform_float(const Graph& graph, ValueId value);

}  // namespace lowtide
