#include "report/string_list.h"

#include <cstdint>

#include "base/check.h"

namespace lowtide {
namespace {

class Reader {
 public:
  Reader(std::string_view json, std::string_view file) : json_(json), file_(file) {}

  std::vector<std::string> list() {
    std::vector<std::string> strings;
    skip_space();
    if (!accept('[')) fail("a JSON array of strings");
    skip_space();
    if (!accept(']')) {
      while (true) {
        skip_space();
        strings.push_back(string());
        skip_space();
        if (accept(']')) break;
        if (!accept(',')) fail("',' or ']'");
      }
    }
    skip_space();
    if (at_ < json_.size()) fail("the end of the file");
    return strings;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    const std::string found =
        at_ >= json_.size() ? "the end" : concat("'", json_.substr(at_, std::min<size_t>(json_.size() - at_, 12)), "'");
    LT_USER_FAIL(ErrorKind::kInvalidArgument, file_, ", character ", at_, ": expected ", expected, ", found ", found,
                 ". Example of a whole file: [\"FastGelu+:1:12\", \"Cast+:2:-1\"]");
  }

  void skip_space() {
    while (at_ < json_.size() && std::string_view(" \t\r\n").find(json_[at_]) != std::string_view::npos) ++at_;
  }

  bool accept(char wanted) {
    if (at_ >= json_.size() || json_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::string string() {
    if (!accept('"')) fail("a string in double quotes");
    std::string text;
    while (!accept('"')) {
      if (at_ >= json_.size()) fail("'\"'");
      if (static_cast<unsigned char>(json_[at_]) < 0x20) fail("'\"' on the same line (control characters are escaped)");
      if (accept('\\')) {
        escape(text);
      } else {
        text += json_[at_++];
      }
    }
    return text;
  }

  void escape(std::string& text) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (accept('u')) {
      append_utf8(text, code_point());
      return;
    }
    const size_t index = at_ < json_.size() ? kNames.find(json_[at_]) : std::string_view::npos;
    if (index == std::string_view::npos) fail("one of \" \\ / b f n r t u after a backslash");
    text += kMeanings[index];
    ++at_;
  }

  uint32_t code_point() {
    const uint32_t first = hex_digits();
    if (first >= 0xDC00 && first < 0xE000) fail("the first half of a surrogate pair before its second");
    if (first < 0xD800 || first >= 0xE000) return first;
    if (!accept('\\') || !accept('u')) fail("\\u and the second half of a surrogate pair");
    const uint32_t second = hex_digits();
    if (second < 0xDC00 || second >= 0xE000) fail("the second half of a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  uint32_t hex_digits() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char digit = at_ < json_.size() ? json_[at_] : '\0';
      const bool decimal = digit >= '0' && digit <= '9';
      const char letter = static_cast<char>(digit | 0x20);
      if (!decimal && !(letter >= 'a' && letter <= 'f')) fail("four hexadecimal digits after \\u");
      value = value * 16 + static_cast<uint32_t>(decimal ? digit - '0' : letter - 'a' + 10);
    }
    return value;
  }

  static void append_utf8(std::string& text, uint32_t point) {
    if (point < 0x80) {
      text += static_cast<char>(point);
      return;
    }
    const int rest = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;  // bytes after the first
    constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
    text += static_cast<char>(kLead[rest] | (point >> (6 * rest)));
    for (int i = rest; i-- > 0;) text += static_cast<char>(0x80 | ((point >> (6 * i)) & 0x3F));
  }

  std::string_view json_, file_;
  size_t at_ = 0;
};

}  // namespace

std::vector<std::string> parse_string_list(std::string_view json, std::string_view file) {
  return Reader(json, file).list();
}

}  // namespace lowtide
