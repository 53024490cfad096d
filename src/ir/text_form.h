// Words and small pieces that print and parse share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace lowtide::text_form {

constexpr std::string_view kInputKinds[] = {"input", "param", "buffer", "constant"};
constexpr std::string_view kOutputKinds[] = {"output", "update", "gradient"};
constexpr std::string_view kOriginKinds[] = {"", "gradient of:", "recompute of:", "fused from:"};
constexpr std::string_view kReserved = "_";  // an absent operand or output

// Characters of a name that needs no quotes: %h.0/attn
inline bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '$' || c == '/' || c == '-';
}

// "aten::add.Tensor": a target that stands for the op's name.
inline bool is_bare_target(std::string_view target) {
  const size_t colons = target.find("::");
  if (colons == std::string_view::npos || colons == 0 || colons + 2 == target.size()) return false;
  for (size_t i = 0; i < target.size(); ++i) {
    const bool colon = i == colons || i == colons + 1;
    if (!colon && (!in_name(target[i]) || target[i] == '$' || target[i] == '/' || target[i] == '-')) return false;
  }
  return !(target[0] >= '0' && target[0] <= '9') && target[0] != '.';
}

// Kind and fields of an origin as the comment after a node, without "// "; empty for an empty origin.
std::string write_origin(const Origin& origin);
// The reverse; nullopt if the text is not of that form.
std::optional<Origin> read_origin(std::string_view comment);

}  // namespace lowtide::text_form
