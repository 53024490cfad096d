// What the fusions of a bias share: finding x + bias below a function, and taking the bias out of a product.
#pragma once

#include <optional>

#include "passes/pattern.h"

namespace lowtide {

struct BiasSum {
  ValueId x;     // of the sum's type; the sum itself where `product` adds the bias
  ValueId bias;  // one number per column
  NodeId product;
};

// `sum` as x + bias with a bias of one dim:
//   Add %x, %bias                                   x is the other operand
//   Reshape* (Gemm(beta=1) %a, %b, %bias)           x is `sum` itself
// The nodes on the way become part of the pattern, so that its closedness says whether the sum has other readers.
std::optional<BiasSum> match_bias_sum(const Graph& graph, Pattern& pattern, ValueId sum);

// What is to be added to: `sum.x`; where a product gave it, what a product without bias gives, which takes over the
// name. The one with the bias stays, unread once the match is replaced.
ValueId without_bias(Graph& graph, const BiasSum& sum);

// The origin of the op that replaces the match: the place of the last of `nodes`; the note lists what the op absorbs,
// which is the sum ("Add"), not the product or the views that stay, and then `nodes`, each as what it had absorbed.
Origin bias_origin(const Graph& graph, std::initializer_list<NodeId> nodes);

}  // namespace lowtide
