// Runs the golden files of src/schedule (passes/golden.h): a graph in, the order that schedule_order gives it out.
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/rule.h"
#include "passes/golden.h"
#include "schedule/order.h"

namespace lowtide {
namespace {

std::string result_of(const std::string& input, const std::string&, const std::string&) {
  Graph graph = parse(input);
  verify(graph);
  verify_types(graph);
  const bool changed = schedule_order(graph);
  verify(graph);
  return changed ? print(graph) : "unchanged\n";
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) { return lowtide::run_goldens(count, arguments, lowtide::result_of); }
