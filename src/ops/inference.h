// What inference functions share: checks whose messages start with the op's name, and reading of attributes that must
// be plain numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "ops/rules.h"

#define LT_INFER_CHECK(args, condition, ...) \
  LT_USER_CHECK(::lowtide::ErrorKind::kInvalidGraph, condition, ::lowtide::name((args).op), ": ", __VA_ARGS__)

namespace lowtide {

inline int64_t rank(const TensorType& type) { return static_cast<int64_t>(type.shape.size()); }
std::string to_string(const Shape& shape);  // "[batch, 768]"

// Marks an output that the node cannot have (new running statistics without old ones): Builder leaves it invalid.
inline TensorType no_output() { return {DType::kContext, {}}; }
inline bool is_no_output(const TensorType& type) { return type.dtype == DType::kContext; }

// Whether two sizes may be taken as equal. Different symbols never are; sizes that hold a floordiv, mod, min or max are
// believed unless their ranges exclude it, because such forms have no unique canonical text and capture has guarded
// them.
bool dims_agree(const Dim& a, const Dim& b, const DimRanges& ranges);
bool shapes_agree(const Shape& a, const Shape& b, const DimRanges& ranges);
// The broadcast of two sizes into `result`; false if they do not fit.
bool broadcast_dim(const Dim& a, const Dim& b, const DimRanges& ranges, Dim& result);
Shape broadcast(const InferArgs& args, const Shape& a, const Shape& b);
// Whether `shape` broadcasts to exactly `target`.
bool broadcasts_to(const Shape& shape, const Shape& target, const DimRanges& ranges);

// ---- attributes
int64_t constant_attr(const InferArgs& args, std::string_view name);
std::vector<int64_t> constants_attr(const InferArgs& args, std::string_view name);
// An axis in [0, rank).
int64_t axis_attr(const InferArgs& args, std::string_view name, int64_t rank);
// Axes in [0, rank), ascending.
std::vector<int64_t> axes_attr(const InferArgs& args, std::string_view name, int64_t rank);
// One of the words, which are listed as "mean, sum, none".
void check_word(const InferArgs& args, std::string_view name, std::string_view words);

// ---- operands
void check_rank_at_least(const InferArgs& args, size_t input, int64_t least);
void check_same_dtype(const InferArgs& args, size_t a, size_t b);
void check_float(const InferArgs& args, size_t input);
void check_index_dtype(const InferArgs& args, size_t input);  // i64 or i32
// Operand `input`, called `what` in the message, has this shape (and dtype of operand 0).
void check_shape(const InferArgs& args, size_t input, std::string_view what, const Shape& expected);
void check_like_first(const InferArgs& args, size_t input, std::string_view what, const Shape& expected);

// The dtype of row statistics: f64 for f64, else f32.
inline DType statistics_dtype(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// Size of shape[axis] after Slice with the attributes start, end, step, which are checked.
Dim sliced_size(const InferArgs& args, const TensorType& x, int64_t axis);

}  // namespace lowtide
