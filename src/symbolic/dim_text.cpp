#include <algorithm>
#include <ostream>

#include "base/check.h"
#include "base/scanner.h"
#include "symbolic/dim.h"
#include "symbolic/expression.h"
#include "symbolic/scan_dim.h"

namespace lowtide {

using dim_internal::Atom;
using dim_internal::AtomKind;
using dim_internal::Monomial;

namespace {

// Limits of what is read, so that a hostile text costs little: sizes of real models stay far below.
constexpr int kMaxDepth = 96;
constexpr int64_t kMaxPower = 16;
constexpr size_t kMaxTerms = 128;

// 2**63: only its negative is a number, so it is written and read with its sign.
constexpr std::string_view kLargest = "9223372036854775808";

bool is_quotient(const Atom& atom) { return atom.kind == AtomKind::kFloorDiv || atom.kind == AtomKind::kMod; }

// The operand of // and %: bare if nothing in it could bind otherwise.
std::string operand(const Dim& dim) {
  const std::string text = to_string(dim);
  bool bare = dim.is_constant() && dim.constant() >= 0;
  if (!dim.is_constant() && dim.expression()->terms.size() == 1) {
    const auto& [monomial, factor] = *dim.expression()->terms.begin();
    bare =
        factor == 1 && monomial.size() == 1 && monomial.begin()->second == 1 && !is_quotient(monomial.begin()->first);
  }
  return bare ? text : concat("(", text, ")");
}

std::string write_atom(const Atom& atom) {
  switch (atom.kind) {
    case AtomKind::kSymbol: return atom.name;
    case AtomKind::kFloorDiv: return concat(operand(atom.left), "//", operand(atom.right));
    case AtomKind::kMod: return concat(operand(atom.left), " % ", operand(atom.right));
    case AtomKind::kMin: return concat("min(", to_string(atom.left), ", ", to_string(atom.right), ")");
    case AtomKind::kMax: return concat("max(", to_string(atom.left), ", ", to_string(atom.right), ")");
  }
  LT_FAIL("an atom of unknown kind");
}

// A product without its factor's sign: "4*s1", "s0**2*s1", "2*(s0//3)".
std::string write_term(const Monomial& monomial, uint64_t magnitude) {
  if (monomial.empty()) return concat(magnitude);
  const bool alone = magnitude == 1 && monomial.size() == 1 && monomial.begin()->second == 1;
  std::string text = magnitude == 1 ? "" : concat(magnitude);
  for (const auto& [atom, power] : monomial) {
    if (!text.empty()) text += "*";
    const std::string base = write_atom(atom);
    text += is_quotient(atom) && !alone ? concat("(", base, ")") : base;
    if (power > 1) text += concat("**", power);
  }
  return text;
}

}  // namespace

std::string to_string(const Dim& dim) {
  if (dim.is_constant()) return concat(dim.constant());
  struct Term {
    int64_t degree;
    bool negative;
    bool alone;  // one quotient without factor: a sign before it would bind to its left operand
    std::string text;
  };
  std::vector<Term> terms;
  for (const auto& [monomial, factor] : dim.expression()->terms) {
    int64_t degree = 0;
    for (const auto& [atom, power] : monomial) degree += power;
    const uint64_t magnitude = factor < 0 ? uint64_t{0} - static_cast<uint64_t>(factor) : static_cast<uint64_t>(factor);
    const bool alone = magnitude == 1 && degree == 1 && is_quotient(monomial.begin()->first);
    terms.push_back({degree, factor < 0, alone, write_term(monomial, magnitude)});
  }
  // Highest degree first, the constant last; a positive term leads where there is one of that degree.
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) {
    if (a.degree != b.degree) return a.degree > b.degree;
    return !a.negative && b.negative;
  });
  std::string text;
  for (const Term& term : terms) {
    const std::string signed_text =
        !term.negative ? term.text : concat("-", term.alone ? concat("(", term.text, ")") : term.text);
    if (text.empty()) {
      text = signed_text;
    } else if (term.negative && !term.text.starts_with(kLargest)) {
      text += concat(" - ", term.text);
    } else {
      text += concat(" + ", signed_text);
    }
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const Dim& dim) { return out << to_string(dim); }

namespace {

class DimReader {
 public:
  explicit DimReader(Scanner& scanner) : scanner_(scanner) {}

  Dim sum() {
    const Scanner::Nested nested(scanner_, kMaxDepth);
    Dim value = product();
    while (true) {
      const size_t at = scanner_.position();
      if (scanner_.accept("+")) {
        const Dim right = product();
        value = checked(at, [&] { return value + right; });
      } else if (scanner_.accept("-")) {
        const Dim right = product();
        value = checked(at, [&] { return value - right; });
      } else {
        return value;
      }
    }
  }

 private:
  // Errors of the arithmetic get the place of their operator.
  template <class Compute>
  Dim checked(size_t at, Compute&& compute) {
    Dim value;
    try {
      value = compute();
    } catch (const Error& error) {
      scanner_.fail_at(at, error.what());
    }
    if (!value.is_constant() && value.expression()->terms.size() > kMaxTerms)
      scanner_.fail_at(at, concat("a size of more than ", kMaxTerms, " terms"));
    return value;
  }

  Dim product() {
    Dim value = signed_factor();
    while (true) {
      const size_t at = scanner_.position();
      if (scanner_.follows("**")) scanner_.fail_expected("an operator other than a second '**'");
      if (scanner_.accept("//")) {
        const Dim right = signed_factor();
        value = checked(at, [&] { return floordiv(value, right); });
      } else if (scanner_.accept("*")) {
        const Dim right = signed_factor();
        value = checked(at, [&] { return value * right; });
      } else if (scanner_.accept("%")) {
        const Dim right = signed_factor();
        value = checked(at, [&] { return mod(value, right); });
      } else {
        return value;
      }
    }
  }

  Dim signed_factor() {
    const size_t at = scanner_.position();
    if (!scanner_.accept("-")) return power();
    if (scanner_.rest().starts_with(kLargest)) {
      scanner_.seek(scanner_.position() + kLargest.size());
      return Dim(std::numeric_limits<int64_t>::min());
    }
    const Scanner::Nested nested(scanner_, kMaxDepth);
    const Dim value = signed_factor();
    return checked(at, [&] { return -value; });
  }

  Dim power() {
    const Dim base = atom();
    const size_t at = scanner_.position();
    if (!scanner_.accept("**")) return base;
    const int64_t exponent = scanner_.natural();
    if (exponent < 1 || exponent > kMaxPower)
      scanner_.fail_at(at, concat("expected a power in [1, ", kMaxPower, "], found ", exponent));
    Dim value = base;
    for (int64_t i = 1; i < exponent; ++i) value = checked(at, [&] { return value * base; });
    return value;
  }

  Dim atom() {
    if (scanner_.accept("(")) {
      Dim value = sum();
      scanner_.expect(")");
      return value;
    }
    if (!scanner_.identifier_follows()) {
      const char next = scanner_.peek();
      if (next < '0' || next > '9') scanner_.fail_expected("a size");
      return Dim(scanner_.natural());
    }
    const size_t at = scanner_.position();
    std::string name = scanner_.identifier("a size");
    if ((name == "min" || name == "max") && scanner_.accept("(")) {
      const Dim left = sum();
      scanner_.expect(",");
      const Dim right = sum();
      scanner_.expect(")");
      return checked(at, [&] { return name == "min" ? min(left, right) : max(left, right); });
    }
    if (is_reserved_word(name)) scanner_.fail_at(at, concat("expected a size, found the reserved word '", name, "'"));
    return Dim::symbol(std::move(name));
  }

  Scanner& scanner_;
};

}  // namespace

bool is_reserved_word(std::string_view name) {
  constexpr std::string_view kWords[] = {"true", "false", "inf", "nan",  "min", "max", "bool", "u8", "i8",
                                         "i16",  "i32",   "i64", "bf16", "f16", "f32", "f64",  "ctx"};
  return std::find(std::begin(kWords), std::end(kWords), name) != std::end(kWords);
}

Dim scan_dim(Scanner& scanner) { return DimReader(scanner).sum(); }

Dim parse_dim(std::string_view text) {
  Scanner scanner(text);
  Dim dim = scan_dim(scanner);
  if (!scanner.at_end()) scanner.fail_expected("the end of the size");
  return dim;
}

}  // namespace lowtide
