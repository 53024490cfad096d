// Runs the golden files of passes (golden.h): text in → passes → text out.
//
// The passes stand in brackets behind a case's title; without them, the pass that the file is named after
// (fold_test.ir). A graph that stays as it is has the one word `unchanged` for its expectation. Input and output are
// verified, types too, and every pass must say rightly whether it changed the graph.
#include "base/check.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ops/rule.h"
#include "passes/golden.h"
#include "passes/pass.h"

namespace lowtide {
namespace {

std::vector<Pass> passes_of(const std::string& names) {
  std::vector<Pass> passes;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    std::string name = names.substr(at, end - at);
    name.erase(0, name.find_first_not_of(' '));
    const Pass* pass = find_pass(name);
    LT_USER_CHECK(ErrorKind::kInvalidArgument, pass, "no pass is called '", name, "'");
    passes.push_back(*pass);
    at = end + 1;
  }
  return passes;
}

std::string result_of(const std::string& input, const std::string& names, const std::string& file) {
  Graph graph = parse(input);
  verify_types(graph);
  const std::string before = print(graph);
  PassOptions options;
  options.verify_types = true;
  options.label_sparsity = options.padding_sparsity = true;
  options.check_claims = true;
  const std::vector<Pass> passes = passes_of(names.empty() ? file.substr(0, file.rfind("_test.ir")) : names);
  run_passes(graph, passes, options);
  const std::string after = print(graph);
  return after == before ? "unchanged\n" : after;
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) { return lowtide::run_goldens(count, arguments, lowtide::result_of); }
