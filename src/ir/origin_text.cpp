// An origin as a comment: "gradient of: transformer.h.0  model.py:41  what was absorbed". Two spaces part the fields; a
// field that could be read in another way stands in quotes; empty fields at the end are left out.
#include <array>

#include "base/scanner.h"
#include "ir/text_form.h"

namespace lowtide::text_form {

static bool is_plain(std::string_view field) {
  if (field.empty()) return true;
  if (field.front() == ' ' || field.back() == ' ' || field.front() == '"') return false;
  for (size_t i = 0; i < field.size(); ++i) {
    const auto byte = static_cast<unsigned char>(field[i]);
    if (byte < 0x20 || byte == 0x7f || (field[i] == ' ' && field[i + 1] == ' ')) return false;
  }
  for (std::string_view kind : kOriginKinds)
    if (!kind.empty() && field.starts_with(kind)) return false;
  return true;
}

std::string write_origin(const Origin& origin) {
  std::string text(kOriginKinds[static_cast<size_t>(origin.kind)]);
  if (!text.empty()) text += ' ';
  for (const std::string* field : {&origin.module, &origin.line, &origin.note}) {
    if (field != &origin.module) text += "  ";
    text += is_plain(*field) ? *field : quote(*field);
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::optional<Origin> read_origin(std::string_view comment) {
  while (!comment.empty() && (comment.back() == ' ' || comment.back() == '\r')) comment.remove_suffix(1);
  Origin origin;
  for (size_t kind = 1; kind < std::size(kOriginKinds); ++kind)
    if (comment.starts_with(kOriginKinds[kind])) {
      origin.kind = static_cast<OriginKind>(kind);
      comment.remove_prefix(kOriginKinds[kind].size());
      if (comment.starts_with(' ')) comment.remove_prefix(1);
      break;
    }
  for (std::string* field : {&origin.module, &origin.line, &origin.note}) {
    if (comment.starts_with('"')) {
      Scanner scanner(comment);
      try {
        *field = scanner.quoted();
      } catch (const Error&) {
        return std::nullopt;
      }
      comment.remove_prefix(scanner.position());
    } else {
      const size_t end = std::min(comment.find("  "), comment.size());
      *field = comment.substr(0, end);
      comment.remove_prefix(end);
    }
    if (comment.starts_with("  ")) comment.remove_prefix(2);
  }
  if (!comment.empty()) return std::nullopt;
  return origin;
}

}  // namespace lowtide::text_form
