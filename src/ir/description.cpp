#include "ir/description.h"

#include <cctype>

#include "ir/text_form.h"

namespace lowtide {

// "train.py:41"
static bool is_line(std::string_view text) {
  size_t digits = 0;
  while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[text.size() - 1 - digits])) != 0)
    ++digits;
  return digits > 0 && digits < text.size() && text[text.size() - 1 - digits] == ':';
}

Description read_description(std::string_view text) {
  Description found;
  if (const size_t open = text.rfind(" ("); text.ends_with(')') && open != std::string_view::npos) {
    const std::string_view where = text.substr(open + 2, text.size() - open - 3);
    const size_t comma = where.rfind(", ");
    if (comma != std::string_view::npos) {
      found.origin.module = where.substr(0, comma);
      found.origin.line = where.substr(comma + 2);
    } else {
      (is_line(where) ? found.origin.line : found.origin.module) = where;
    }
    text = text.substr(0, open);
  }
  for (size_t kind = 1; kind < std::size(text_form::kOriginKinds); ++kind) {
    const std::string_view suffix = text_form::kOriginKinds[kind];
    if (!text.ends_with(suffix) || !text.substr(0, text.size() - suffix.size()).ends_with(", ")) continue;
    found.origin.kind = static_cast<OriginKind>(kind);
    text.remove_suffix(suffix.size() + 2);
    break;
  }
  found.what = text;
  return found;
}

}  // namespace lowtide
