#include "report/symbolic_bytes.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"
#include "symbolic/expression.h"

namespace lowtide {

using dim_internal::Atom;
using dim_internal::AtomKind;
using dim_internal::Monomial;

namespace {

enum class Numbers { kFloats, kIntegers };

struct Term {
  Monomial monomial;
  uint64_t magnitude;
  bool negative;
};

std::string number(uint64_t magnitude, Numbers numbers) {
  return concat(magnitude, numbers == Numbers::kFloats ? ".0" : "");
}

bool is_quotient(const Atom& atom) { return atom.kind == AtomKind::kFloorDiv || atom.kind == AtomKind::kMod; }

std::string operand(const Dim& dim) {
  const std::string text = symbolic_size(dim);
  const bool bare = std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  return bare ? text : concat("(", text, ")");
}

std::string write_atom(const Atom& atom) {
  switch (atom.kind) {
    case AtomKind::kSymbol: return atom.name;
    case AtomKind::kFloorDiv: return concat(operand(atom.left), "//", operand(atom.right));
    case AtomKind::kMod: return concat(operand(atom.left), "%", operand(atom.right));
    case AtomKind::kMin: return concat("Min(", symbolic_size(atom.left), ", ", symbolic_size(atom.right), ")");
    case AtomKind::kMax: return concat("Max(", symbolic_size(atom.left), ", ", symbolic_size(atom.right), ")");
  }
  LT_FAIL("an atom of unknown kind");
}

// "a*b**2"; empty for the empty product. Quotients stand in parentheses: they bind like products.
std::string write_product(const Monomial& monomial) {
  std::string text;
  for (const auto& [atom, power] : monomial) {
    if (!text.empty()) text += "*";
    text += is_quotient(atom) ? concat("(", write_atom(atom), ")") : write_atom(atom);
    if (power > 1) text += concat("**", power);
  }
  return text;
}

// "640.0*a*b**2", or only the factor or only the product where the other is one and need not be written.
std::string write_term(uint64_t magnitude, const Monomial& monomial, bool write_one, Numbers numbers) {
  if (monomial.empty()) return number(magnitude, numbers);
  if (magnitude == 1 && !write_one) return write_product(monomial);
  return concat(number(magnitude, numbers), "*", write_product(monomial));
}

// Divides all terms by the symbols that they share, and returns those.
Monomial take_common(std::vector<Term>& terms) {
  Monomial common = terms.front().monomial;
  for (const Term& term : terms) {
    for (auto it = common.begin(); it != common.end();) {
      const auto found = term.monomial.find(it->first);
      it->second = found == term.monomial.end() ? 0 : std::min(it->second, found->second);
      it = it->second == 0 ? common.erase(it) : std::next(it);
    }
  }
  for (Term& term : terms) {
    for (const auto& [atom, power] : common) {
      const auto found = term.monomial.find(atom);
      found->second -= power;
      if (found->second == 0) term.monomial.erase(found);
    }
  }
  return common;
}

std::vector<Term> terms_of(const Dim& dim) {
  std::vector<Term> terms;
  for (const auto& [monomial, factor] : dim.expression()->terms) {
    const uint64_t magnitude = factor < 0 ? uint64_t{0} - static_cast<uint64_t>(factor) : static_cast<uint64_t>(factor);
    terms.push_back({monomial, magnitude, factor < 0});
  }
  return terms;
}

// Highest degree first, the constant last; a positive term leads where there is one of that degree.
void sort_for_reading(std::vector<Term>& terms) {
  auto degree = [](const Term& term) {
    int64_t sum = 0;
    for (const auto& [atom, power] : term.monomial) sum += power;
    return sum;
  };
  std::stable_sort(terms.begin(), terms.end(), [&](const Term& a, const Term& b) {
    const int64_t left = degree(a), right = degree(b);
    return left != right ? left > right : !a.negative && b.negative;
  });
}

std::string write_sum(const std::vector<Term>& terms, bool write_ones, Numbers numbers) {
  std::string text;
  for (const Term& term : terms) {
    const std::string_view sign = text.empty() ? (term.negative ? "-" : "") : (term.negative ? " - " : " + ");
    text += concat(sign, write_term(term.magnitude, term.monomial, write_ones, numbers));
  }
  return text;
}

std::string write(const Dim& dim, Numbers numbers) {
  const bool floats = numbers == Numbers::kFloats;
  if (dim.is_constant()) return concat(dim.constant(), floats ? ".0" : "");
  std::vector<Term> terms = terms_of(dim);
  if (terms.size() == 1) {
    const Term& term = terms.front();
    const auto& [atom, power] = *term.monomial.begin();
    const bool alone = term.monomial.size() == 1 && power == 1 && term.magnitude == 1 && !term.negative;
    if (alone && !floats) return write_atom(atom);
    return concat(term.negative ? "-" : "", write_term(term.magnitude, term.monomial, floats, numbers));
  }
  sort_for_reading(terms);
  // A factor that all terms have goes in front and leaves plain ones: 128.0*a*(b - 1), but a*(384.0*b - 64.0).
  const uint64_t shared = terms.front().magnitude;
  const bool same = std::all_of(terms.begin(), terms.end(), [&](const Term& term) { return term.magnitude == shared; });
  const Monomial common = take_common(terms);
  if (!same) {
    const std::string sum = write_sum(terms, floats, numbers);
    return common.empty() ? sum : concat(write_product(common), "*(", sum, ")");
  }
  for (Term& term : terms) term.magnitude = 1;
  const std::string sum = write_sum(terms, false, Numbers::kIntegers);
  const bool write_factor = shared != 1 || floats;
  if (common.empty()) return write_factor ? concat(number(shared, numbers), "*(", sum, ")") : sum;
  return concat(write_term(shared, common, write_factor, numbers), "*(", sum, ")");
}

}  // namespace

std::string symbolic_bytes(const Dim& bytes) { return write(bytes, Numbers::kFloats); }
std::string symbolic_size(const Dim& size) { return write(size, Numbers::kIntegers); }

std::string symbolic_shape(const Shape& shape) {
  std::string text;
  for (const Dim& dim : shape) text += concat(symbolic_size(dim), " x ");
  return text;
}

std::string with_commas(int64_t number) {
  const std::string digits = concat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (!text.empty() && text.back() != '-' && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace lowtide
