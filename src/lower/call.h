// One captured call while it is lowered: its arguments by their schema names, the types that the exporter gave, and the
// builder.
//
// A lowering is a function bool(Call&): it reads arguments, emits nodes, and hands every wanted output to result().
// Returning false means "these arguments have no lowering": the call stays Aten. It must do so before it emits anything
// that is read.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "lower/data_sizes.h"
#include "ops/builder.h"

namespace lowtide {

// A Python number among the arguments; sizes may be symbolic.
using Number = std::variant<bool, Dim, double>;
DType dtype_of(const Number& number);    // as PyTorch wraps it: bool, i64, f32
double to_double(const Number& number);  // Error(kUnsupported) for a size that depends on the inputs

class Call {
 public:
  Call(Builder& builder, const Graph& captured, NodeId node, std::vector<ValueId> operands, Op op, int64_t& next_stream,
       DataSizes& sizes)
      : b(builder),
        captured_(captured),
        id_(node),
        operands_(std::move(operands)),
        op_(op),
        next_stream_(next_stream),
        sizes_(sizes),
        results_(this->node().outputs.size()) {}

  Builder& b;

  const Node& node() const { return captured_.node(id_); }
  const DimRanges& ranges() const { return captured_.ranges(); }
  // The op of the table's row, for lowerings that serve several.
  Op op() const { return op_; }

  // ---- arguments; a missing one is Error(kInvalidGraph), an optional one that is None is absent
  bool has(std::string_view name) const { return is_tensor(name) || node().attrs.has(name); }
  bool is_tensor(std::string_view name) const { return optional(name).valid(); }
  ValueId tensor(std::string_view name) const;
  ValueId optional(std::string_view name) const;  // invalid if absent
  // A list of tensors; absent elements are invalid.
  std::vector<ValueId> tensors(std::string_view name) const;
  Number number(std::string_view name) const;
  double real(std::string_view name) const;
  double real(std::string_view name, double fallback) const { return has(name) ? real(name) : fallback; }
  bool flag(std::string_view name, bool fallback = false) const;
  std::string text(std::string_view name, std::string fallback = "") const { return node().attrs.s(name, fallback); }
  // A string argument, or empty if the argument is of another type ("same" among paddings).
  std::string text_or_empty(std::string_view name) const;
  Dim dim(std::string_view name) const;
  int64_t integer(std::string_view name) const { return known(name, dim(name)); }
  int64_t integer(std::string_view name, int64_t fallback) const { return has(name) ? integer(name) : fallback; }
  std::vector<Dim> dims(std::string_view name) const;  // a single integer is a list of one; empty if absent
  std::vector<double> reals(std::string_view name) const;
  // Per-window sizes: one integer serves all `rank` dims; `fallback` if absent or empty.
  std::vector<Dim> window(std::string_view name, size_t rank, Dim fallback) const;
  int64_t axis(std::string_view name, int64_t rank, int64_t fallback = 0) const;  // made non-negative
  // Ascending, non-negative; absent or empty: all.
  std::vector<int64_t> axes(std::string_view name, int64_t rank) const;

  // ---- operands
  // The argument as a tensor of `dtype`: a tensor is cast, a number becomes a 0-d constant.
  ValueId operand(std::string_view name, DType dtype) const;
  // `constant`: 0-d, not yet rounded to 16 bits (passes/exact_factors.h); `full`: as a tensor holds it.
  ValueId constant(const Number& number, DType dtype) const;
  ValueId full(const Shape& shape, const Number& number, DType dtype) const;
  // The dtype that PyTorch computes in: the promotion of the named arguments, at least as wide as a floating output.
  DType common_dtype(std::initializer_list<std::string_view> names) const;

  // ---- sizes from data
  // From here on the number `count` (i64[]) is this size: a symbol that nothing before it names, at most `high`, or a
  // size that is known, to which it is compared while the step runs.
  void set_size(const Dim& size, ValueId count, const Dim& high);
  // Two sizes that are known are equal in each step, or it fails.
  void check_equal(const Dim& a, const Dim& other) { sizes_.check(b, a - other, 0, 0); }
  // Whether it names a size that a node has made.
  bool is_from_data(const Dim& size) const { return sizes_.is_made(size); }
  ValueId count(ValueId condition) { return sizes_.count(b, condition); }
  // A symbol that nothing names yet.
  Dim fresh_size() { return sizes_.fresh(); }

  // ---- results
  size_t output_count() const { return node().outputs.size(); }
  bool wants(size_t output) const { return output < output_count() && node().outputs[output].valid(); }
  // The exporter's type of an output.
  const TensorType& type(size_t output = 0) const;
  const Shape& shape(size_t output = 0) const { return type(output).shape; }
  DType dtype(size_t output = 0) const { return type(output).dtype; }
  // Sets an output, cast to the exporter's dtype. Returns true, so that a lowering can end with it.
  bool result(ValueId value, size_t output = 0);
  const std::vector<ValueId>& results() const { return results_; }

  // A number for a random node of its own.
  Dim fresh_stream() const { return next_stream_++; }
  [[noreturn]] void unsupported(std::string_view reason) const;

 private:
  ValueId filler(const Shape& shape, const Number& number, DType dtype) const;
  // Of a size among the arguments that has to be a number; Error(kUnsupported) where it depends on the inputs.
  int64_t known(std::string_view name, const Dim& dim) const;

  const Graph& captured_;
  NodeId id_;
  std::vector<ValueId> operands_;
  Op op_;
  int64_t& next_stream_;
  DataSizes& sizes_;
  std::vector<ValueId> results_;
};

// The schema argument of each operand of a captured call.
const std::vector<std::string>& operand_names(const Node& node);

// "aten::nonzero.default (model.moe, m.py:3)": how messages name a captured call.
std::string describe_call(const Node& node);

}  // namespace lowtide
