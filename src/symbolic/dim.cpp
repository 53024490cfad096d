#include "symbolic/dim.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/size_code.h"
#include "symbolic/expression.h"

namespace lowtide {

using dim_internal::Atom;
using dim_internal::AtomKind;
using dim_internal::Expression;
using dim_internal::Monomial;

namespace dim_internal {

int compare(const Dim& a, const Dim& b);

// Each level is visited once, so that comparing deep values stays linear.
template <class Number>
static int compare_numbers(Number a, Number b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

static int compare(const Atom& a, const Atom& b) {
  if (a.kind != b.kind) return a.kind < b.kind ? -1 : 1;
  if (int name = a.name.compare(b.name)) return name;
  if (int left = compare(a.left, b.left)) return left;
  return compare(a.right, b.right);
}

static int compare(const Monomial& a, const Monomial& b) {
  auto x = a.begin(), y = b.begin();
  for (; x != a.end() && y != b.end(); ++x, ++y) {
    if (int atom = compare(x->first, y->first)) return atom;
    if (int power = compare_numbers(x->second, y->second)) return power;
  }
  return compare_numbers(a.size(), b.size());
}

int compare(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return compare_numbers(a.constant(), b.constant());
  if (a.is_constant() != b.is_constant()) return a.is_constant() ? -1 : 1;
  if (a.expression() == b.expression()) return 0;
  const auto &left = a.expression()->terms, &right = b.expression()->terms;
  auto x = left.begin(), y = right.begin();
  for (; x != left.end() && y != right.end(); ++x, ++y) {
    if (int monomial = compare(x->first, y->first)) return monomial;
    if (int factor = compare_numbers(x->second, y->second)) return factor;
  }
  return compare_numbers(left.size(), right.size());
}

bool operator==(const Atom& a, const Atom& b) { return compare(a, b) == 0; }
bool operator<(const Atom& a, const Atom& b) { return compare(a, b) < 0; }

}  // namespace dim_internal

Dim make_dim(Expression expression) {
  std::erase_if(expression.terms, [](const auto& term) { return term.second == 0; });
  if (expression.terms.empty()) return Dim(0);
  if (expression.terms.size() == 1 && expression.terms.begin()->first.empty())
    return Dim(expression.terms.begin()->second);
  Dim result;
  result.expression_ = std::make_shared<const Expression>(std::move(expression));
  return result;
}

// The terms of any Dim; a constant has at most the empty monomial.
static Expression expand(const Dim& dim) {
  if (!dim.is_constant()) return *dim.expression();
  Expression expression;
  if (dim.constant() != 0) expression.terms[{}] = dim.constant();
  return expression;
}

static Dim of_atom(Atom atom) {
  Expression expression;
  expression.terms[Monomial{{std::move(atom), 1}}] = 1;
  return make_dim(std::move(expression));
}

Dim Dim::symbol(std::string name) { return of_atom({AtomKind::kSymbol, std::move(name), {}, {}}); }

int64_t Dim::constant() const {
  LT_CHECK(is_constant(), "the size ", to_string(*this), " is symbolic where a number is needed");
  return value_;
}

bool operator==(const Dim& a, const Dim& b) { return dim_internal::compare(a, b) == 0; }
bool operator<(const Dim& a, const Dim& b) { return dim_internal::compare(a, b) < 0; }

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return Dim(checked_add(a.value_, b.value_));
  if (a.is(0)) return b;
  if (b.is(0)) return a;
  if (a.is_constant()) return b + a;
  Expression sum = *a.expression();
  auto add_term = [&](const Monomial& monomial, int64_t factor) {
    int64_t& term = sum.terms[monomial];
    term = checked_add(term, factor);
  };
  if (b.is_constant()) {
    add_term({}, b.value_);
  } else {
    for (const auto& [monomial, factor] : b.expression()->terms) add_term(monomial, factor);
  }
  return make_dim(std::move(sum));
}

Dim operator-(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return Dim(checked_subtract(a.value_, b.value_));
  if (b.is(0)) return a;
  return a + Dim(-1) * b;
}

static Monomial multiply(const Monomial& a, const Monomial& b) {
  Monomial product = a;
  for (const auto& [atom, power] : b) product[atom] += power;
  return product;
}

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_constant() && b.is_constant()) return Dim(checked_multiply(a.value_, b.value_));
  if (a.is_constant()) return b * a;
  if (b.is(0) || b.is(1)) return b.is(0) ? b : a;
  Expression product;
  if (b.is_constant()) {
    product = *a.expression();
    for (auto& [monomial, factor] : product.terms) factor = checked_multiply(factor, b.value_);
    return make_dim(std::move(product));
  }
  for (const auto& [x, p] : a.expression()->terms)
    for (const auto& [y, q] : b.expression()->terms) {
      int64_t& term = product.terms[multiply(x, y)];
      term = checked_add(term, checked_multiply(p, q));
    }
  return make_dim(std::move(product));
}

// b divides a's monomial: the quotient, if every power suffices.
static bool divide(const Monomial& a, const Monomial& b, Monomial& quotient) {
  quotient = a;
  for (const auto& [atom, power] : b) {
    auto at = quotient.find(atom);
    if (at == quotient.end() || at->second < power) return false;
    at->second -= power;
    if (at->second == 0) quotient.erase(at);
  }
  return true;
}

// Exact division by polynomial long division over the terms in canonical order; false if a remainder stays.
static bool divide_by_leading_terms(const Dim& a, const Dim& b, Dim& quotient) {
  const Expression divisor = expand(b);
  if (divisor.terms.empty()) return false;
  auto degree = [](const Monomial& monomial) {
    int64_t sum = 0;
    for (const auto& [atom, power] : monomial) sum += power;
    return sum;
  };
  // A monomial order (graded, then by the first atom's power), so that leading terms multiply.
  auto leading = [&](const Expression& expression) {
    return std::max_element(expression.terms.begin(), expression.terms.end(), [&](const auto& x, const auto& y) {
      int64_t dx = degree(x.first), dy = degree(y.first);
      if (dx != dy) return dx < dy;
      std::set<Atom> atoms;
      for (const auto& [atom, power] : x.first) atoms.insert(atom);
      for (const auto& [atom, power] : y.first) atoms.insert(atom);
      for (const Atom& atom : atoms) {
        auto at_x = x.first.find(atom), at_y = y.first.find(atom);
        int64_t px = at_x == x.first.end() ? 0 : at_x->second, py = at_y == y.first.end() ? 0 : at_y->second;
        if (px != py) return px < py;
      }
      return false;
    });
  };
  const auto lead = leading(divisor);
  Dim rest = a, result = 0;
  for (int step = 0; step < 64; ++step) {
    if (rest.is(0)) {
      quotient = result;
      return true;
    }
    const Expression remaining = expand(rest);
    const auto term = leading(remaining);
    Monomial monomial;
    if ((lead->second != -1 && term->second % lead->second != 0) || !divide(term->first, lead->first, monomial))
      return false;
    Expression piece;
    piece.terms[monomial] = lead->second == -1 ? checked_subtract(0, term->second) : term->second / lead->second;
    Dim factor = make_dim(std::move(piece));
    result = result + factor;
    rest = rest - factor * b;
  }
  return false;
}

static bool divide_exactly(const Dim& a, const Dim& b, Dim& quotient) {
  try {
    return divide_by_leading_terms(a, b, quotient);
  } catch (const Error&) {
    return false;  // a partial product left 64 bits: no division found
  }
}

// a = b*quotient + rest: the terms of `a` whose factor b > 0 divides, and of the constant term as much as leaves it in
// [0, b).
static void split_multiples(const Dim& a, int64_t b, Dim& quotient, Dim& rest) {
  Expression multiples, others;
  for (const auto& [monomial, factor] : expand(a).terms) {
    if (monomial.empty()) {
      multiples.terms[monomial] = checked_floor_div(factor, b);
      others.terms[monomial] = floor_mod(factor, b);
    } else if (factor % b == 0) {
      multiples.terms[monomial] = factor / b;
    } else {
      others.terms[monomial] = factor;
    }
  }
  quotient = make_dim(std::move(multiples));
  rest = make_dim(std::move(others));
}

// Requires: b > 0.
static int64_t common_factor(const Dim& a, int64_t b) {
  int64_t common = b;
  for (const auto& [monomial, factor] : expand(a).terms) common = std::gcd(common, factor % common);
  return common;
}

// x and c of `a` = x//d + c with constants c, d > 0; false for any other form.
static bool as_shifted_quotient(const Dim& a, Dim& x, int64_t& d, int64_t& c) {
  c = 0;
  const Atom* quotient = nullptr;
  for (const auto& [monomial, factor] : a.expression()->terms) {
    if (monomial.empty()) {
      c = factor;
    } else {
      if (quotient != nullptr || factor != 1 || monomial.size() != 1 || monomial.begin()->second != 1) return false;
      quotient = &monomial.begin()->first;
    }
  }
  if (quotient->kind != AtomKind::kFloorDiv || !quotient->right.is_constant()) return false;
  x = quotient->left;
  d = quotient->right.constant();
  return d > 0;
}

Dim floordiv(const Dim& a, const Dim& b) {
  LT_USER_CHECK(ErrorKind::kInvalidGraph, !b.is(0), "division of the size ", to_string(a), " by zero");
  if (a.is_constant() && b.is_constant()) return Dim(checked_floor_div(a.constant(), b.constant()));
  if (b.is(1)) return a;
  Dim quotient;
  if (divide_exactly(a, b, quotient)) return quotient;
  if (!b.is_constant() || b.constant() < 0) return of_atom({AtomKind::kFloorDiv, {}, a, b});
  // (b*q + r)//b = q + r//b, then common factors, then (x//d + c)//b = (x + c*d)//(b*d): chains of strided windows meet
  // in one form.
  Dim rest;
  split_multiples(a, b.constant(), quotient, rest);
  if (rest.is_constant()) return quotient;
  const int64_t common = common_factor(rest, b.constant());
  if (common > 1) {
    Dim reduced;
    divide_exactly(rest, Dim(common), reduced);
    return quotient + floordiv(reduced, Dim(b.constant() / common));
  }
  Dim inner;
  int64_t divisor = 0, shift = 0;
  if (as_shifted_quotient(rest, inner, divisor, shift))
    return quotient + floordiv(inner + Dim(shift) * Dim(divisor), Dim(divisor) * b);
  return quotient + of_atom({AtomKind::kFloorDiv, {}, rest, b});
}

Dim mod(const Dim& a, const Dim& b) {
  LT_USER_CHECK(ErrorKind::kInvalidGraph, !b.is(0), "remainder of the size ", to_string(a), " by zero");
  if (a.is_constant() && b.is_constant()) return Dim(floor_mod(a.constant(), b.constant()));
  Dim quotient;
  if (b.is(1) || divide_exactly(a, b, quotient)) return Dim(0);
  if (!b.is_constant() || b.constant() < 0) return of_atom({AtomKind::kMod, {}, a, b});
  Dim rest;
  split_multiples(a, b.constant(), quotient, rest);
  if (rest.is_constant()) return rest;
  const int64_t common = common_factor(rest, b.constant());
  if (common > 1) {
    Dim reduced;
    divide_exactly(rest, Dim(common), reduced);
    return Dim(common) * mod(reduced, Dim(b.constant() / common));
  }
  return of_atom({AtomKind::kMod, {}, rest, b});
}

static Dim extreme(AtomKind kind, const Dim& a, const Dim& b) {
  if (a == b) return a;
  if (a.is_constant() && b.is_constant()) return (b < a) == (kind == AtomKind::kMax) ? a : b;
  const Dim difference = a - b;
  if (difference.is_constant()) return (difference.constant() > 0) == (kind == AtomKind::kMax) ? a : b;
  return b < a ? of_atom({kind, {}, b, a}) : of_atom({kind, {}, a, b});
}

Dim min(const Dim& a, const Dim& b) { return extreme(AtomKind::kMin, a, b); }
Dim max(const Dim& a, const Dim& b) { return extreme(AtomKind::kMax, a, b); }

Dim numel(const Shape& shape) {
  Dim product = 1;
  for (const Dim& dim : shape) product = product * dim;
  return product;
}

void collect_symbols(const Dim& dim, std::set<std::string>& names) {
  if (dim.is_constant()) return;
  for (const auto& [monomial, factor] : dim.expression()->terms)
    for (const auto& [atom, power] : monomial) {
      if (atom.kind == AtomKind::kSymbol) {
        names.insert(atom.name);
      } else {
        collect_symbols(atom.left, names);
        collect_symbols(atom.right, names);
      }
    }
}

// Rebuilds the value with `leaf` in place of each symbol.
template <class Leaf>
static Dim rebuild(const Dim& dim, const Leaf& leaf) {
  if (dim.is_constant()) return dim;
  Dim sum = 0;
  for (const auto& [monomial, factor] : dim.expression()->terms) {
    Dim product = factor;
    for (const auto& [atom, power] : monomial) {
      Dim base;
      switch (atom.kind) {
        case AtomKind::kSymbol: base = leaf(atom.name); break;
        case AtomKind::kFloorDiv: base = floordiv(rebuild(atom.left, leaf), rebuild(atom.right, leaf)); break;
        case AtomKind::kMod: base = mod(rebuild(atom.left, leaf), rebuild(atom.right, leaf)); break;
        case AtomKind::kMin: base = min(rebuild(atom.left, leaf), rebuild(atom.right, leaf)); break;
        case AtomKind::kMax: base = max(rebuild(atom.left, leaf), rebuild(atom.right, leaf)); break;
      }
      for (int64_t i = 0; i < power; ++i) product = product * base;
    }
    sum = sum + product;
  }
  return sum;
}

int64_t evaluate(const Dim& dim, const DimValues& values) {
  return rebuild(dim,
                 [&](const std::string& symbol) {
                   auto at = values.find(symbol);
                   LT_USER_CHECK(ErrorKind::kInvalidArgument, at != values.end(), "no value for the size ", symbol);
                   return Dim(at->second);
                 })
      .constant();
}

Dim substitute(const Dim& dim, const std::map<std::string, Dim, std::less<>>& replacements) {
  return rebuild(dim, [&](const std::string& symbol) {
    auto at = replacements.find(symbol);
    return at == replacements.end() ? Dim::symbol(symbol) : at->second;
  });
}

static void compile(const Dim& dim, const std::vector<std::string>& symbols, std::vector<int64_t>& code) {
  auto push = [&](int64_t value) { code.insert(code.end(), {kSizePush, value}); };
  if (dim.is_constant()) return push(dim.constant());
  bool first_term = true;
  for (const auto& [monomial, factor] : dim.expression()->terms) {
    push(factor);
    for (const auto& [atom, power] : monomial)
      for (int64_t i = 0; i < power; ++i) {
        if (atom.kind == AtomKind::kSymbol) {
          auto at = std::find(symbols.begin(), symbols.end(), atom.name);
          LT_CHECK(at != symbols.end(), "the size ", atom.name, " is no input's");
          code.insert(code.end(), {kSizeSymbol, at - symbols.begin()});
        } else {
          compile(atom.left, symbols, code);
          compile(atom.right, symbols, code);
          code.push_back(atom.kind == AtomKind::kFloorDiv ? kSizeFloorDiv
                         : atom.kind == AtomKind::kMod    ? kSizeMod
                         : atom.kind == AtomKind::kMin    ? kSizeMin
                                                          : kSizeMax);
        }
        code.push_back(kSizeMul);
      }
    if (!first_term) code.push_back(kSizeAdd);
    first_term = false;
  }
}

std::vector<int64_t> compile_dim(const Dim& dim, const std::vector<std::string>& symbols) {
  std::vector<int64_t> code;
  compile(dim, symbols, code);
  return code;
}

}  // namespace lowtide
