#include "base/scanner.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace lowtide {

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return is_letter(c) || is_digit(c); }

void Scanner::skip_blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
}

bool Scanner::comment_follows() const {
  const std::string_view next = text_.substr(at_);
  return next.starts_with("//") && (next.size() == 2 || next[2] == ' ' || next[2] == '\n' || next[2] == '\r');
}

void Scanner::skip_space() {
  while (true) {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    } else if (comment_follows()) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else {
      return;
    }
  }
}

bool Scanner::at_end() {
  skip_space();
  return at_ == text_.size();
}

char Scanner::peek() { return at_end() ? '\0' : text_[at_]; }

char Scanner::peek_on_line() {
  skip_blanks();
  return at_ < text_.size() ? text_[at_] : '\n';
}

bool Scanner::follows(std::string_view token) {
  const size_t start = at_;
  const bool found = accept(token);
  at_ = start;
  return found;
}

bool Scanner::accept(std::string_view token) {
  const size_t start = at_;
  skip_space();
  const std::string_view next = rest();
  if (next.starts_with(token) &&
      !(is_word(token.back()) && next.size() > token.size() && is_word(next[token.size()]))) {
    at_ += token.size();
    return true;
  }
  at_ = start;
  return false;
}

void Scanner::expect(std::string_view token) {
  if (!accept(token)) fail_expected(concat("'", token, "'"));
}

bool Scanner::identifier_follows() { return is_letter(peek()); }

std::string Scanner::identifier(std::string_view what) {
  if (!identifier_follows()) fail_expected(what);
  return std::string(take_while(is_word));
}

int64_t Scanner::natural() {
  if (!is_digit(peek())) fail_expected("a number");
  const size_t start = at_;
  const std::string_view digits = take_while(is_digit);
  int64_t value = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc())
    fail_at(start, "expected a number below 2**63, found a larger one");
  return value;
}

std::string Scanner::quoted() {
  expect("\"");
  const size_t start = at_ - 1;
  std::string text;
  while (true) {
    if (at_ >= text_.size() || text_[at_] == '\n') fail_at(start, "expected a closing '\"', found the end of the line");
    const char c = text_[at_++];
    if (c == '"') return text;
    if (c != '\\') {
      text += c;
      continue;
    }
    const char escaped = at_ < text_.size() ? text_[at_++] : '\0';
    switch (escaped) {
      case 'n': text += '\n'; break;
      case 't': text += '\t'; break;
      case '"':
      case '\\': text += escaped; break;
      case 'x': {
        const std::string_view digits = rest().substr(0, 2);
        unsigned value = 0;
        const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
        if (digits.size() != 2 || end != digits.data() + 2) fail_at(at_, "expected two hexadecimal digits after \\x");
        text += static_cast<char>(value);
        at_ += 2;
        break;
      }
      default: fail_at(at_ - 1, "expected one of n t x \\ \" after a backslash");
    }
  }
}

void Scanner::fail_expected(std::string_view expected) {
  std::string found;
  if (at_end()) {
    found = "the end of the text";
  } else if (is_word(text_[at_])) {
    const size_t start = at_;
    found = concat("'", take_while(is_word).substr(0, 40), "'");
    at_ = start;
  } else {
    found = quote(text_.substr(at_, 1));
    found = concat("'", found.substr(1, found.size() - 2), "'");
  }
  fail_at(at_, concat("expected ", expected, ", found ", found));
}

void Scanner::fail_at(size_t position, std::string_view message) const {
  const std::string_view before = text_.substr(0, position);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  LT_USER_FAIL(ErrorKind::kInvalidGraph, line, ":", position - line_start + 1, ": ", message);
}

std::string quote(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\x";
      result += kHex[byte / 16];
      result += kHex[byte % 16];
    } else {
      result += c;
    }
  }
  return result + '"';
}

bool is_identifier(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), is_word);
}

std::string to_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace lowtide
