// What integer and bool tensors made of ranges and constants hold at each index, symbolically: masks are such tensors.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "ops/view.h"

namespace lowtide {

// x[i_0, i_1, ..] = offset + Σ strides[k]*i_k. A dim of size 1 has stride 0.
struct IndexForm : Strided {
  bool is_constant() const;
};

// A bool tensor: the same everywhere, or true exactly where `form <= 0`.
struct Truth {
  enum Kind { kFalse, kTrue, kWhereNotPositive } kind;
  IndexForm form;
  bool is_constant() const { return kind != kWhereNotPositive; }
};

// Answers for values of one graph, remembered; edits that keep the values' meaning keep the answers. The rules of ops
// are LT_INDEX and LT_TRUTH of ops.def; views show the form of what they view (view.h).
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

  const Graph& graph_;
  std::unordered_map<ValueId, std::optional<IndexForm>> forms_;
  std::unordered_map<ValueId, std::optional<Truth>> truths_;
};

}  // namespace lowtide
