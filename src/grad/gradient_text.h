// For tests: training graphs as text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grad/gradient.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/rule.h"

namespace lowtide {

// The training graph's text; the graph is checked on the way.
inline std::string gradient_of(std::string_view forward, std::vector<bool> output_needs_grad = {}) {
  const Graph graph = parse(forward);
  verify_types(graph);
  const Graph training = build_gradient(graph, std::move(output_needs_grad));
  verify(training);
  verify_types(training);
  return print(training);
}

// The text from YieldOp on, after a line break.
inline std::string backward_of(std::string_view forward, std::vector<bool> output_needs_grad = {}) {
  const std::string text = gradient_of(forward, std::move(output_needs_grad));
  return text.substr(text.rfind('\n', text.find("YieldOp")));
}

}  // namespace lowtide
