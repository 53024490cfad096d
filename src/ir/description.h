// What describe() of print.h says of a node, taken apart again: a Program's steps carry that text and no graph.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace lowtide {

struct Description {
  std::string what;  // the op, or what a call calls
  Origin origin;     // without its note
  friend bool operator==(const Description&, const Description&) = default;
};

// Of "MatMul, gradient of: (model.fc2, train.py:41)". A text of another form is `what` as a whole.
Description read_description(std::string_view text);

}  // namespace lowtide
