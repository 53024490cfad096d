#include "report/json_text.h"

#include <cmath>

#include "base/scanner.h"
#include "base/text.h"

namespace lowtide {
namespace {

std::string quoted(std::string_view value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20) {
      text += "\\u00";
      text += kHex[byte / 16];
      text += kHex[byte % 16];
    } else {
      text += c;
    }
  }
  return text + "\"";
}

}  // namespace

void JsonText::separate() {
  if (!named_ && !first_.back()) text_ += ", ";
  first_.back() = false;
  named_ = false;
}

JsonText& JsonText::begin(char bracket) {
  separate();
  text_ += bracket;
  first_.push_back(true);
  return *this;
}

JsonText& JsonText::end(char bracket) {
  text_ += bracket;
  first_.pop_back();
  return *this;
}

JsonText& JsonText::raw(std::string_view value) {
  separate();
  text_ += value;
  return *this;
}

JsonText& JsonText::member(std::string_view name) {
  raw(quoted(name));
  text_ += ": ";
  named_ = true;
  return *this;
}

JsonText& JsonText::text(std::string_view value) { return raw(quoted(value)); }
JsonText& JsonText::integer(int64_t value) { return raw(concat(value)); }
JsonText& JsonText::integer(std::optional<int64_t> value) { return value ? integer(*value) : null(); }
JsonText& JsonText::real(double value) { return std::isfinite(value) ? raw(to_text(value)) : null(); }
JsonText& JsonText::boolean(bool value) { return raw(value ? "true" : "false"); }
JsonText& JsonText::null() { return raw("null"); }

}  // namespace lowtide
