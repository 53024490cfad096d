// Which captured calls give views of their input, and how a view is written through.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace lowtide {

// How a captured call's output shares memory with its first operand.
enum class Aliasing {
  kNone,   // fresh memory
  kSame,   // the same elements in the same shape: alias, detach, a `to` that does nothing
  kView,   // a view
  kMaybe,  // reshape, contiguous: a view or a copy, as the strides happen to be
};
Aliasing aliasing(const Graph& captured, const Node& node);

// Whether PyTorch's tensors may share memory where `aliasing` knows nothing: views that only their kernels know of, and
// what is handed on where there is nothing to do.
bool may_share(const Node& node);

// Whether a view has all elements of its input in the same order.
bool keeps_all_in_order(const Node& view);

// "aten::add_.Tensor" → "aten::add.Tensor", for ops that write their first operand; empty for others.
std::string functional_target(std::string_view target);

// One captured call to be written: a target, its tensor operands by schema name, the other arguments.
struct CallSpec {
  std::string target;
  std::vector<std::pair<std::string, ValueId>> operands;
  Attrs attrs;
};

// Output `index` of a call with several views (split, unbind …) as a call of its own on `base`; a single view is
// repeated as it is.
CallSpec view_again(const Graph& captured, const Node& view, size_t index, ValueId base);

// The new value of `base` after `view`'s output took the value `written`; nothing where no inverse is known.
std::optional<CallSpec> write_through(const Graph& captured, const Node& view, size_t index, ValueId base,
                                      ValueId written);

}  // namespace lowtide
