// Runs golden files: text in → passes → text out.
//
//   // a comment
//   ==== name of the case [fold, dce]
//   graph @g(…) { … }
//   ---- expect
//   graph @g(…) { … }
//
// The passes stand in brackets; without them, the pass that the file is named after (fold_test.ir). A graph that stays
// as it is has the one word `unchanged` for its expectation. Input and output are verified, types too, and every pass
// must say rightly whether it changed the graph.
//   golden_runner [--update] FILE…      --update writes what the passes give into the files
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ops/rule.h"
#include "passes/pass.h"

namespace lowtide {
namespace {

constexpr std::string_view kCase = "==== ", kExpect = "---- expect\n";

struct Case {
  std::string title;  // with the passes in brackets
  std::string input, expect;
};

struct File {
  std::string preamble;
  std::vector<Case> cases;
};

File split(const std::string& text) {
  File file;
  size_t at = text.starts_with(kCase) ? 0 : text.find("\n==== ");
  LT_USER_CHECK(ErrorKind::kInvalidArgument, at != std::string::npos, "no line starts with '==== '");
  if (at != 0) ++at;
  file.preamble = text.substr(0, at);
  while (at < text.size()) {
    const size_t next = std::min(text.find("\n==== ", at), text.size() - 1) + 1;
    const std::string section = text.substr(at, next - at);
    const size_t line = section.find('\n'), expect = section.find(kExpect);
    Case item;
    item.title = section.substr(kCase.size(), line - kCase.size());
    item.input = section.substr(line + 1, expect == std::string::npos ? expect : expect - line - 1);
    if (expect != std::string::npos) item.expect = section.substr(expect + kExpect.size());
    file.cases.push_back(std::move(item));
    at = next;
  }
  return file;
}

std::vector<Pass> passes_of(const Case& item, const std::string& default_pass) {
  std::string names = default_pass;
  if (const size_t open = item.title.rfind('['); open != std::string::npos && item.title.ends_with(']'))
    names = item.title.substr(open + 1, item.title.size() - open - 2);
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

std::string result_of(const Case& item, const std::string& default_pass) {
  Graph graph = parse(item.input);
  verify_types(graph);
  const std::string before = print(graph);
  PassOptions options;
  options.verify_types = true;
  options.check_claims = true;
  const std::vector<Pass> passes = passes_of(item, default_pass);
  run_passes(graph, passes, options);
  const std::string after = print(graph);
  return after == before ? "unchanged\n" : after;
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// The number of cases that fail.
int run(const std::string& path, bool update) {
  std::ifstream in(path);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, in.good(), "cannot read ", path);
  const File file = split(std::string(std::istreambuf_iterator<char>(in), {}));
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string default_pass = name.substr(0, name.rfind("_test.ir"));
  int failed = 0;
  std::string written = file.preamble;
  for (const Case& item : file.cases) {
    std::string result;
    try {
      result = result_of(item, default_pass);
    } catch (const std::exception& error) {
      result = concat("error: ", error.what(), "\n");
    }
    written += concat(kCase, item.title, "\n", trimmed(item.input), "\n", kExpect, trimmed(result), "\n\n");
    if (trimmed(result) == trimmed(item.expect)) continue;
    if (update && !result.starts_with("error: ")) continue;
    ++failed;
    std::printf("%s: %s\n-- expected\n%s\n-- found\n%s\n", name.c_str(), item.title.c_str(),
                trimmed(item.expect).c_str(), trimmed(result).c_str());
  }
  std::printf("%s: %zu cases, %d failed\n", name.c_str(), file.cases.size(), failed);
  if (update && failed == 0) {
    written.pop_back();
    std::ofstream(path) << written;
  }
  return failed;
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) {
  bool update = false;
  int failed = 0, files = 0;
  try {
    for (int i = 1; i < count; ++i) {
      if (std::string_view(arguments[i]) == "--update") {
        update = true;
      } else {
        failed += lowtide::run(arguments[i], update);
        ++files;
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "golden_runner: %s\n", error.what());
    return 1;
  }
  if (files == 0) std::fprintf(stderr, "usage: golden_runner [--update] FILE...\n");
  return failed == 0 && files > 0 ? 0 : 1;
}
