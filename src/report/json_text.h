// Writes JSON: members and elements in the order of the calls, commas where they belong.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

class JsonText {
 public:
  // Each begin needs its end. A member's name is given just before its value.
  JsonText& begin_object() { return begin('{'); }
  JsonText& end_object() { return end('}'); }
  JsonText& begin_list() { return begin('['); }
  JsonText& end_list() { return end(']'); }
  JsonText& member(std::string_view name);

  JsonText& text(std::string_view value);
  JsonText& integer(int64_t value);
  JsonText& integer(std::optional<int64_t> value);  // none: null
  JsonText& real(double value);                     // null unless finite
  JsonText& boolean(bool value);
  JsonText& null();

  const std::string& str() const { return text_; }

 private:
  JsonText& begin(char bracket);
  JsonText& end(char bracket);
  JsonText& raw(std::string_view value);
  void separate();

  std::string text_;
  std::vector<bool> first_ = {true};  // by depth: nothing written there yet
  bool named_ = false;                // a member's name was just written
};

}  // namespace lowtide
