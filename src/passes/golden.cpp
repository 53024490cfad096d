#include "passes/golden.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace lowtide {
namespace {

constexpr std::string_view kCase = "==== ", kExpect = "---- expect\n";

struct Case {
  std::string title;  // with the options in brackets
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

std::string options_of(const std::string& title) {
  const size_t open = title.rfind('[');
  return open == std::string::npos || !title.ends_with(']') ? "" : title.substr(open + 1, title.size() - open - 2);
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// The number of cases that fail.
int run(const std::string& path, bool update, const GoldenStage& stage) {
  std::ifstream in(path);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, in.good(), "cannot read ", path);
  const File file = split(std::string(std::istreambuf_iterator<char>(in), {}));
  const std::string name = path.substr(path.rfind('/') + 1);
  int failed = 0;
  std::string written = file.preamble;
  for (const Case& item : file.cases) {
    std::string result;
    try {
      result = stage(item.input, options_of(item.title), name);
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

int run_goldens(int count, char** arguments, const GoldenStage& stage) {
  bool update = false;
  int failed = 0, files = 0;
  try {
    for (int i = 1; i < count; ++i) {
      if (std::string_view(arguments[i]) == "--update") {
        update = true;
      } else {
        failed += run(arguments[i], update, stage);
        ++files;
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[0], error.what());
    return 1;
  }
  if (files == 0) std::fprintf(stderr, "usage: %s [--update] FILE...\n", arguments[0]);
  return failed == 0 && files > 0 ? 0 : 1;
}

}  // namespace lowtide
