// What an attention's operands are computed of, token by token.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// Between an attention and the products its queries, keys and values come from: nodes that compute each token's
// elements from the same token's, and are read by nobody else.
struct TokenRegion {
  struct Product {
    ValueId value;
    int64_t lead = 0;    // dims [0, lead) are the tokens: 1, or 2
    size_t readers = 0;  // operands of the region's nodes
  };
  ValueId mask;  // of the attention: bool, true where a query looks at a key
  Dim batch, length;
  std::vector<Product> products;
};

// The region of an attention whose keys are tokens of its queries' sequences and are chosen by a mask of the caller;
// or none. Where the mask has no true element for a key, its token may hold any finite number.
std::optional<TokenRegion> token_region(const Graph& graph, NodeId attention);

}  // namespace lowtide
