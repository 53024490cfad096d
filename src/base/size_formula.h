// Numbers and conditions over sizes, as text: the guards of a captured graph and the sizes among its outputs. A text
// may come from a file, so its length and depth are bounded, nothing in it names more than the sizes that it is given,
// and no result leaves 64 bits. Operators give what Python's give:
//   either      both ("or" both)*
//   both        not ("and" not)*
//   not         "not" not | comparison
//   comparison  sum [("==" | "!=" | "<=" | ">=" | "<" | ">") sum]
//   sum         product (("+" | "-") product)*
//   product     sign (("*" | "//" | "/" | "%") sign)*
//   sign        "-" sign | atom ["**" sign]
//   atom        12 | 0.5 | True | False | NAME | "(" either ")" | FUNCTION "(" either ("," either)* ")"
// with nothing between // and its right operand. FUNCTION: min max abs int float round math.floor math.ceil math.trunc
// math.sqrt.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lowtide {

class SizeFormula {
 public:
  // Conditions are 1 or 0.
  using Number = std::variant<int64_t, double>;

  // Error(kInvalidGraph) with the place in the text.
  SizeFormula(std::string_view text, const std::vector<std::string>& names);

  // Error(kInvalidArgument) where it divides by zero, leaves 64 bits, or takes a root of a negative number. Requires: a
  // size for each name.
  Number value(std::span<const int64_t> sizes) const;
  // As a condition; one that cannot be computed does not hold.
  bool holds(std::span<const int64_t> sizes) const;

 private:
  friend class SizeFormulaReader;

  enum class Code : uint8_t {
    kWhole,  // `whole` follows on the stack
    kReal,   // `real`
    kSize,   // the size number `whole`
    kAdd,
    kSubtract,
    kMultiply,
    kFloorDivide,
    kDivide,
    kRemainder,
    kPower,
    kMin,
    kMax,
    kEqual,
    kUnequal,
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kNegate,
    kNot,
    kAbs,
    kRound,
    kToWhole,
    kToReal,
    kFloor,
    kCeil,
    kRoot,
    kAndSkip,  // a false top stays, and the next `whole` instructions are left out; a true one goes
    kOrSkip,   // the other way round
  };
  struct Instruction {
    Code code = Code::kWhole;
    int64_t whole = 0;
    double real = 0;
  };
  static Number apply(Code code, const Number& a, const Number& b);
  static Number apply(Code code, const Number& a);

  std::vector<Instruction> code_;  // postfix
};

}  // namespace lowtide
