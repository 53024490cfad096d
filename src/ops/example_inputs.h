// How the lists of examples are written.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ops/builder.h"
#include "ops/example_graphs.h"

namespace lowtide::examples {

using Sizes = std::vector<int64_t>;
using Kind = ExampleInput::Kind;

inline ExampleInput real(Sizes shape, double low = -1, double high = 1) {
  return {Kind::kTensor, DType::kF32, std::move(shape), true, low, high, false, {}};
}
// A real operand that requires no gradient.
inline ExampleInput fixed(Sizes shape, double low = -1, double high = 1) {
  return {Kind::kTensor, DType::kF32, std::move(shape), false, low, high, false, {}};
}
inline ExampleInput statistic(Sizes shape, double low = -1, double high = 1) {
  ExampleInput input = fixed(std::move(shape), low, high);
  input.is_statistic = true;
  return input;
}
inline ExampleInput smooth_but_at(std::vector<double> kinks, Sizes shape, double low = -2, double high = 2) {
  return {Kind::kTensor, DType::kF32, std::move(shape), true, low, high, false, std::move(kinks)};
}
inline ExampleInput distinct(Sizes shape, double low = -2, double high = 2) {
  return {Kind::kTensor, DType::kF32, std::move(shape), true, low, high, true, {}};
}
inline ExampleInput integers(Sizes shape, int64_t low, int64_t high, DType dtype = DType::kI64) {
  return {Kind::kTensor, dtype, std::move(shape), false, static_cast<double>(low), static_cast<double>(high),
          false,         {}};
}
// Indices into an axis of this size, none twice.
inline ExampleInput unique_indices(Sizes shape, int64_t size) {
  ExampleInput indices = integers(std::move(shape), 0, size - 1);
  indices.distinct = true;
  return indices;
}
inline ExampleInput flags(Sizes shape, double probability = 0.5) {
  return {Kind::kTensor, DType::kBool, std::move(shape), false, 0, probability, false, {}};
}
inline ExampleInput number(double value) { return {Kind::kNumber, DType::kF32, {}, false, value, value, false, {}}; }
inline ExampleInput absent() { return {Kind::kAbsent, DType::kF32, {}, false, 0, 0, false, {}}; }

class List {
 public:
  // `note` tells the cases of one op apart.
  void add(Op op, const std::string& note, std::vector<ExampleInput> inputs, Attrs attrs = {}) {
    examples_.push_back({std::string(name(op)) + " " + note, op, std::move(inputs), std::move(attrs)});
  }
  std::vector<Example> take() { return std::move(examples_); }

 private:
  std::vector<Example> examples_;
};

void add_pointwise(List& list);
void add_views_and_reductions(List& list);
void add_rows_and_products(List& list);
void add_indices(List& list);
void add_packing(List& list);
void add_windows(List& list);

}  // namespace lowtide::examples
