// A cursor over text for recursive-descent parsers: sizes and graphs are read with it.
// Blanks, newlines and comments separate tokens; `//` starts a comment where a blank or the line's end follows (else it
// is the quotient of sizes: s//2). Errors are Error(kInvalidGraph): "12:7: expected ')', found 'return'".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"

namespace lowtide {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  size_t position() const { return at_; }
  void seek(size_t position) { at_ = position; }
  std::string_view rest() const { return text_.substr(at_); }

  void skip_space();
  void skip_blanks();            // stays on the line; comments stay too
  bool comment_follows() const;  // right here
  bool at_end();
  // Where the next token starts; the cursor moves there.
  size_t token_start() {
    skip_space();
    return at_;
  }
  // What follows after space; 0 at the end.
  char peek();
  char peek_on_line();  // the same after blanks only: '\n' or '/' tell that the line is over

  // Takes `token` if it follows; a token of letters must not run on.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  bool follows(std::string_view token);
  // [A-Za-z_][A-Za-z0-9_]*; fails naming `what`.
  std::string identifier(std::string_view what);
  bool identifier_follows();
  // Decimal digits without sign.
  int64_t natural();
  // "…" with \" \\ \n \t \xNN.
  std::string quoted();
  // The run of characters that `belongs` holds for, right here (no space skipped).
  template <class Belongs>
  std::string_view take_while(Belongs&& belongs) {
    const size_t begin = at_;
    while (at_ < text_.size() && belongs(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // Fails at the next token: "line:column: expected …, found …".
  [[noreturn]] void fail_expected(std::string_view expected);
  // Fails at a position.
  [[noreturn]] void fail_at(size_t position, std::string_view message) const;

  // Counts nested constructs while alive, so that no input exhausts the stack.
  class Nested {
   public:
    Nested(Scanner& scanner, int limit) : scanner_(scanner) {
      if (++scanner_.depth_ > limit) scanner_.fail_at(scanner_.at_, concat("nested more than ", limit, " deep"));
    }
    ~Nested() { --scanner_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Scanner& scanner_;
  };

 private:
  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Text in double quotes as Scanner::quoted reads it.
std::string quote(std::string_view text);
bool is_identifier(std::string_view text);
// The shortest text that reads back as the same number, always with '.', 'e', "inf" or "nan": "1.0", "1e-05".
std::string to_text(double value);

}  // namespace lowtide
