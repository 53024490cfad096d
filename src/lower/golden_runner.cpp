// Runs golden files of captured graphs: text in → functionalise, lower → text out.
//
//   ==== name of the case [functionalise]
//   graph @g(…) { … aten:: nodes … }
//   ---- expect
//   graph @g(…) { … }
//
// Before the graph stand the bugs of the report, `bug: …`.
// In brackets: functionalise or lower alone; without them, both. An expectation `error KIND: message` is that of the
// Error thrown. Every result is verified, types too.
//   lower_golden_runner [--update] FILE…      --update writes what comes out into the files
#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "lower/lower.h"
#include "lower/split_complex.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

constexpr std::string_view kCase = "==== ", kExpect = "---- expect\n";

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string result_of(const std::string& title, const std::string& input) {
  try {
    Graph graph = parse(input);
    if (!title.ends_with("[lower]")) {
      functionalise(graph);
      split_complex(graph);
    }
    LoweringReport report;
    if (!title.ends_with("[functionalise]")) graph = lower(graph, &report);
    verify(graph);
    verify_types(graph);
    std::string bugs;  // without the place in our source
    for (const std::string& bug : report.bugs) bugs += concat("bug: ", bug.substr(0, bug.rfind(" [")), "\n");
    return bugs + print(graph);
  } catch (const Error& error) {
    const std::string_view kind = error.kind() == ErrorKind::kUnsupported ? "unsupported" : "invalid";
    return concat("error ", kind, ": ", error.what());
  }
}

// The number of cases that fail.
int run(const std::string& path, bool update) {
  std::ifstream in(path);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, in.good(), "cannot read ", path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  size_t at = text.starts_with(kCase) ? 0 : std::min(text.find("\n==== "), text.size() - 1) + 1;
  std::string written = text.substr(0, at);
  int cases = 0, failed = 0;
  while (at < text.size()) {
    const size_t next = std::min(text.find("\n==== ", at), text.size() - 1) + 1;
    const std::string section = text.substr(at, next - at);
    at = next;
    const size_t line = section.find('\n'), expect = std::min(section.find(kExpect), section.size());
    const std::string title = section.substr(kCase.size(), line - kCase.size());
    const std::string input = trimmed(section.substr(line + 1, expect - line - 1));
    const std::string expected = expect < section.size() ? trimmed(section.substr(expect + kExpect.size())) : "";
    const std::string found = trimmed(result_of(title, input));
    ++cases;
    written += concat(kCase, title, "\n", input, "\n", kExpect, found, "\n\n");
    if (found == expected || update) continue;
    ++failed;
    std::printf("%s: %s\n-- expected\n%s\n-- found\n%s\n", path.c_str(), title.c_str(), expected.c_str(),
                found.c_str());
  }
  std::printf("%s: %d cases, %d failed\n", path.c_str(), cases, failed);
  if (update) {
    written.pop_back();
    std::ofstream(path) << written;
  }
  return failed + (cases == 0);
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) {
  bool update = false;
  int failed = count < 2;
  try {
    for (int i = 1; i < count; ++i) {
      if (std::string_view(arguments[i]) == "--update")
        update = true;
      else
        failed += lowtide::run(arguments[i], update);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lower_golden_runner: %s\n", error.what());
    return 1;
  }
  return failed == 0 ? 0 : 1;
}
