// What integer and bool tensors made of ranges and constants hold at each index, symbolically: masks are such tensors.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// x[i_0, i_1, ..] = offset + Σ strides[k]*i_k. A dim of size 1 has stride 0.
struct IndexForm {
  Dim offset;
  std::vector<Dim> strides;
  bool is_constant() const;
  friend bool operator==(const IndexForm&, const IndexForm&) = default;
};

// A bool tensor: the same everywhere, or true exactly where `form <= 0`.
struct Truth {
  enum Kind { kFalse, kTrue, kWhereNotPositive } kind;
  IndexForm form;
};

// Answers for values of one graph, remembered; edits that keep the values' meaning keep the answers.
class IndexForms {
 public:
  explicit IndexForms(const Graph& graph) : graph_(graph) {}

  // nullptr: not of that form, or not known to be.
  const IndexForm* form(ValueId value);
  const Truth* truth(ValueId value);
  bool is_all(ValueId value, bool expected);

 private:
  std::optional<IndexForm> find_form(ValueId value);
  std::optional<Truth> find_truth(ValueId value);
  std::optional<IndexForm> concat(const Node& node);
  Truth where_not_positive(IndexForm form, const Shape& shape) const;

  const Graph& graph_;
  std::unordered_map<ValueId, std::optional<IndexForm>> forms_;
  std::unordered_map<ValueId, std::optional<Truth>> truths_;
};

}  // namespace lowtide
