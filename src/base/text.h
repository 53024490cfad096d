// Small text helpers: no std::format in g++ 12.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

// Writes all arguments one after another: concat("expected ", 3, " inputs").
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return std::move(out).str();
}

// "a, b, c"; `write(stream, item)` prints one item.
template <class Items, class Write>
std::string join(const Items& items, std::string_view separator, Write&& write) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out << separator;
    first = false;
    write(out, item);
  }
  return std::move(out).str();
}

template <class Items>
std::string join(const Items& items, std::string_view separator) {
  return join(items, separator, [](std::ostream& out, const auto& item) { out << item; });
}

}  // namespace lowtide
