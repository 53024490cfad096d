// Writes nodes into a graph with inferred types. Lowering, passes and gradient rules all use it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}

  Graph& graph() { return graph_; }
  // Nodes are inserted before this one; none: appended.
  void insert_before(NodeId node) { before_ = node; }
  void set_origin(Origin origin) { origin_ = std::move(origin); }
  const Origin& origin() const { return origin_; }
  // The base name of the next node's first output (then forgotten).
  Builder& named(std::string name) {
    name_ = std::move(name);
    return *this;
  }

  // One node with inferred types. `wanted[i] == false`: output i is not made.
  NodeId node(Op op, std::vector<ValueId> inputs, Attrs attrs = {}, std::vector<bool> wanted = {});
  // The first output of one node.
  ValueId op(Op op, std::vector<ValueId> inputs, Attrs attrs = {});

  const TensorType& type(ValueId value) const { return graph_.type(value); }
  const Shape& shape(ValueId value) const { return graph_.type(value).shape; }
  DType dtype(ValueId value) const { return graph_.type(value).dtype; }
  int64_t rank(ValueId value) const { return static_cast<int64_t>(shape(value).size()); }

  // ---- constants
  ValueId scalar(double value, DType dtype);          // 0-d
  ValueId scalar_dim(const Dim& value, DType dtype);  // 0-d integer, or cast to a float dtype
  ValueId full(const Shape& shape, double value, DType dtype);
  ValueId scalar_like(double value, ValueId like) { return scalar(value, dtype(like)); }

  // ---- short forms; no node where nothing would change
  ValueId add(ValueId a, ValueId b) { return op(Op::kAdd, {a, b}); }
  ValueId sub(ValueId a, ValueId b) { return op(Op::kSub, {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return op(Op::kMul, {a, b}); }
  ValueId div(ValueId a, ValueId b) { return op(Op::kDiv, {a, b}); }
  ValueId mul(ValueId a, double b) { return op(Op::kMul, {a, scalar_like(b, a)}); }
  ValueId add(ValueId a, double b) { return op(Op::kAdd, {a, scalar_like(b, a)}); }
  ValueId neg(ValueId a) { return op(Op::kNeg, {a}); }
  ValueId cast(ValueId x, DType to);
  ValueId reshape(ValueId x, Shape shape);
  ValueId transpose(ValueId x, std::vector<int64_t> perm);
  ValueId swap_axes(ValueId x, int64_t a, int64_t b);
  ValueId expand(ValueId x, Shape shape);
  ValueId unsqueeze(ValueId x, std::vector<int64_t> axes);
  ValueId squeeze(ValueId x, std::vector<int64_t> axes);
  ValueId slice(ValueId x, int64_t axis, Dim start, Dim end, Dim step = 1);
  ValueId reduce(Op op, ValueId x, std::vector<int64_t> axes, bool keepdims);
  // Zeros before and after x on one axis.
  ValueId pad_axis(ValueId x, int64_t axis, Dim before, Dim after);
  // Sums x down to `shape`: the adjoint of broadcasting.
  ValueId reduce_to(ValueId x, const Shape& shape);

 private:
  Graph& graph_;
  NodeId before_;
  Origin origin_;
  std::string name_;
};

// A builder that writes before `node` with its origin.
Builder before(Graph& graph, NodeId node);

std::vector<Dim> dims(const std::vector<int64_t>& values);

}  // namespace lowtide
