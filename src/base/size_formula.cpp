#include "base/size_formula.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/checked.h"
#include "base/scanner.h"

namespace lowtide {

using Number = SizeFormula::Number;

namespace {

// Limits of what is read: guards of real models stay far below.
constexpr size_t kMaxText = 1 << 16;
constexpr int kMaxDepth = 64;
constexpr size_t kMaxStack = 1024;

// Up to here every whole number is a double.
constexpr int64_t kExact = int64_t{1} << 53;
constexpr double kBeyondWhole = 0x1p63;

bool is_true(const Number& number) {
  return std::visit([](auto value) { return value != 0; }, number);
}

[[noreturn]] void fail(std::string_view what) {
  LT_USER_FAIL(ErrorKind::kInvalidArgument, "these input sizes give no number: ", what);
}

double exact_real(const Number& number) {
  if (const double* real = std::get_if<double>(&number)) return *real;
  const int64_t whole = std::get<int64_t>(number);
  if (whole > kExact || whole < -kExact) fail("a whole number beyond 2**53 meets a real one");
  return static_cast<double>(whole);
}

int64_t to_whole(double real) {
  if (!(real >= -kBeyondWhole && real < kBeyondWhole)) fail("a real number leaves 64 bits");
  return static_cast<int64_t>(real);
}

int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) fail("a whole number to a negative power");
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) result = checked_multiply(result, base);  // ends after 63 at the latest
  return result;
}

double finite(double real) {
  if (!std::isfinite(real)) fail("a real number overflows, or is none");
  return real;
}

bool is_less(const Number& a, const Number& b) {
  if (a.index() == 0 && b.index() == 0) return std::get<int64_t>(a) < std::get<int64_t>(b);
  return exact_real(a) < exact_real(b);
}

bool is_equal(const Number& a, const Number& b) { return !is_less(a, b) && !is_less(b, a); }

Number truth(bool value) { return int64_t{value}; }

}  // namespace

class SizeFormulaReader {
 public:
  using Code = SizeFormula::Code;

  SizeFormulaReader(std::string_view text, const std::vector<std::string>& names, SizeFormula& formula)
      : scanner_(text), names_(names), code_(formula.code_) {
    if (text.size() > kMaxText) scanner_.fail_at(0, concat("a formula of ", text.size(), " characters"));
    // The scanner would take the rest of `a // b` for a comment.
    for (size_t at = text.find("//"); at != text.npos; at = text.find("//", at + 2))
      if (at + 2 == text.size() || text[at + 2] <= ' ') scanner_.fail_at(at, "expected an operand right after '//'");
    either();
    if (!scanner_.at_end()) scanner_.fail_expected("the end of the formula");
  }

 private:
  void emit(Code code, int64_t whole = 0, double real = 0) { code_.push_back({code, whole, real}); }

  // An operand more on the stack.
  void push(Code code, int64_t whole, double real = 0) {
    if (++depth_ > kMaxStack) scanner_.fail_at(scanner_.position(), "a formula that is too deep");
    emit(code, whole, real);
  }

  void combine(Code code) {
    --depth_;
    emit(code);
  }

  // The operands of a chain, the rest of which is left out once one decides.
  template <class Operand>
  void chain(std::string_view word, Code skip, Operand&& operand) {
    operand();
    std::vector<size_t> skips;
    while (scanner_.accept(word)) {
      skips.push_back(code_.size());
      emit(skip);
      --depth_;
      operand();
    }
    for (size_t at : skips) code_[at].whole = static_cast<int64_t>(code_.size() - at - 1);
  }

  void either() {
    const Scanner::Nested nested(scanner_, kMaxDepth);
    chain("or", Code::kOrSkip, [&] { chain("and", Code::kAndSkip, [&] { negation(); }); });
  }

  void negation() {
    if (!scanner_.accept("not")) return comparison();
    const Scanner::Nested nested(scanner_, kMaxDepth);
    negation();
    emit(Code::kNot);
  }

  void comparison() {
    constexpr std::pair<std::string_view, Code> kSigns[] = {{"==", Code::kEqual},     {"!=", Code::kUnequal},
                                                            {"<=", Code::kLessEqual}, {">=", Code::kGreaterEqual},
                                                            {"<", Code::kLess},       {">", Code::kGreater}};
    sum();
    for (const auto& [sign, code] : kSigns) {
      if (!scanner_.accept(sign)) continue;
      sum();
      return combine(code);
    }
  }

  void sum() {
    product();
    while (true) {
      const bool adds = scanner_.accept("+");
      if (!adds && !scanner_.accept("-")) return;
      product();
      combine(adds ? Code::kAdd : Code::kSubtract);
    }
  }

  void product() {
    constexpr std::pair<std::string_view, Code> kSigns[] = {
        {"//", Code::kFloorDivide}, {"/", Code::kDivide}, {"*", Code::kMultiply}, {"%", Code::kRemainder}};
    signed_atom();
    while (true) {
      const auto found = std::find_if(std::begin(kSigns), std::end(kSigns),
                                      [&](const auto& sign) { return scanner_.accept(sign.first); });
      if (found == std::end(kSigns)) return;
      signed_atom();
      combine(found->second);
    }
  }

  void signed_atom() {
    const Scanner::Nested nested(scanner_, kMaxDepth);
    if (scanner_.accept("-")) {
      signed_atom();
      return emit(Code::kNegate);
    }
    atom();
    if (!scanner_.accept("**")) return;
    signed_atom();
    combine(Code::kPower);
  }

  void atom() {
    if (scanner_.accept("(")) {
      either();
      return scanner_.expect(")");
    }
    if (!scanner_.identifier_follows()) return number();
    const size_t at = scanner_.token_start();
    std::string name = scanner_.identifier("a size");
    if (name == "True" || name == "False") return push(Code::kWhole, name == "True");
    const auto known = std::find(names_.begin(), names_.end(), name);
    if (known != names_.end()) return push(Code::kSize, known - names_.begin());
    if (name == "math") {
      scanner_.expect(".");
      name = concat("math.", scanner_.identifier("a function"));
    }
    function(name, at);
  }

  void function(std::string_view name, size_t at) {
    constexpr std::pair<std::string_view, Code> kFunctions[] = {
        {"min", Code::kMin},          {"max", Code::kMax},        {"abs", Code::kAbs},
        {"round", Code::kRound},      {"int", Code::kToWhole},    {"float", Code::kToReal},
        {"math.floor", Code::kFloor}, {"math.ceil", Code::kCeil}, {"math.trunc", Code::kToWhole},
        {"math.sqrt", Code::kRoot}};
    const auto found = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                    [&](const auto& function) { return function.first == name; });
    if (found == std::end(kFunctions))
      scanner_.fail_at(at, concat("expected a size or a function, found '", name, "'"));
    scanner_.expect("(");
    either();
    const bool of_many = found->second == Code::kMin || found->second == Code::kMax;
    if (!of_many) emit(found->second);
    while (of_many && scanner_.accept(",")) {
      either();
      combine(found->second);
    }
    scanner_.expect(")");
  }

  void number() {
    const size_t at = scanner_.token_start();
    const std::string_view digits = scanner_.rest();
    const size_t length = std::min(digits.find_first_not_of("0123456789"), digits.size());
    const bool is_real = length < digits.size() && (digits[length] == '.' || digits[length] == 'e');
    if (length == 0) scanner_.fail_expected("a size");
    if (!is_real) return push(Code::kWhole, scanner_.natural());
    double real = 0;
    const auto end = std::from_chars(digits.data(), digits.data() + digits.size(), real);
    if (end.ec != std::errc()) scanner_.fail_at(at, "expected a real number of 64 bits, found a larger or smaller one");
    scanner_.seek(at + static_cast<size_t>(end.ptr - digits.data()));
    push(Code::kReal, 0, real);
  }

  Scanner scanner_;
  const std::vector<std::string>& names_;
  std::vector<SizeFormula::Instruction>& code_;
  size_t depth_ = 0;
};

SizeFormula::SizeFormula(std::string_view text, const std::vector<std::string>& names) {
  SizeFormulaReader(text, names, *this);
}

Number SizeFormula::apply(Code code, const Number& a, const Number& b) {
  switch (code) {
    case Code::kMin: return is_less(b, a) ? b : a;
    case Code::kMax: return is_less(a, b) ? b : a;
    case Code::kEqual: return truth(is_equal(a, b));
    case Code::kUnequal: return truth(!is_equal(a, b));
    case Code::kLess: return truth(is_less(a, b));
    case Code::kLessEqual: return truth(!is_less(b, a));
    case Code::kGreater: return truth(is_less(b, a));
    case Code::kGreaterEqual: return truth(!is_less(a, b));
    default: break;
  }
  const bool divides = code == Code::kDivide || code == Code::kFloorDivide || code == Code::kRemainder;
  if (divides && !is_true(b)) fail("a division by zero");
  if (code != Code::kDivide && a.index() == 0 && b.index() == 0) {
    const int64_t x = std::get<int64_t>(a), y = std::get<int64_t>(b);
    switch (code) {
      case Code::kAdd: return checked_add(x, y);
      case Code::kSubtract: return checked_subtract(x, y);
      case Code::kMultiply: return checked_multiply(x, y);
      case Code::kFloorDivide: return checked_floor_div(x, y);
      case Code::kRemainder: return floor_mod(x, y);
      case Code::kPower: return power(x, y);
      default: LT_FAIL("a formula with an operator of unknown kind");
    }
  }
  const double x = exact_real(a), y = exact_real(b);
  switch (code) {
    case Code::kAdd: return finite(x + y);
    case Code::kSubtract: return finite(x - y);
    case Code::kMultiply: return finite(x * y);
    case Code::kDivide: return finite(x / y);
    case Code::kPower: return finite(std::pow(x, y));
    default: fail("a quotient or remainder of real numbers");
  }
}

Number SizeFormula::apply(Code code, const Number& a) {
  if (code == Code::kNot) return truth(!is_true(a));
  const int64_t* whole = std::get_if<int64_t>(&a);
  switch (code) {
    case Code::kNegate: return whole ? Number(checked_subtract(0, *whole)) : Number(-std::get<double>(a));
    case Code::kAbs:
      if (whole) return *whole < 0 ? checked_subtract(0, *whole) : *whole;
      return std::abs(std::get<double>(a));
    case Code::kToReal: return whole ? static_cast<double>(*whole) : std::get<double>(a);
    case Code::kRoot: return finite(std::sqrt(exact_real(a)));
    default: break;
  }
  if (whole) return *whole;
  const double real = std::get<double>(a);
  switch (code) {
    case Code::kRound: return to_whole(std::nearbyint(real));  // of two as near the even one
    case Code::kToWhole: return to_whole(std::trunc(real));
    case Code::kFloor: return to_whole(std::floor(real));
    case Code::kCeil: return to_whole(std::ceil(real));
    default: LT_FAIL("a formula with a function of unknown kind");
  }
}

Number SizeFormula::value(std::span<const int64_t> sizes) const {
  std::vector<Number> stack;
  for (size_t at = 0; at < code_.size(); ++at) {
    const Instruction& next = code_[at];
    switch (next.code) {
      case Code::kWhole: stack.emplace_back(next.whole); break;
      case Code::kReal: stack.emplace_back(next.real); break;
      case Code::kSize: stack.emplace_back(sizes[static_cast<size_t>(next.whole)]); break;
      case Code::kAndSkip:
      case Code::kOrSkip:
        if (is_true(stack.back()) == (next.code == Code::kOrSkip)) {
          at += static_cast<size_t>(next.whole);
        } else {
          stack.pop_back();
        }
        break;
      case Code::kNegate:
      case Code::kNot:
      case Code::kAbs:
      case Code::kRound:
      case Code::kToWhole:
      case Code::kToReal:
      case Code::kFloor:
      case Code::kCeil:
      case Code::kRoot: stack.back() = apply(next.code, stack.back()); break;
      default: {
        const Number right = stack.back();
        stack.pop_back();
        stack.back() = apply(next.code, stack.back(), right);
      }
    }
  }
  return stack.back();
}

bool SizeFormula::holds(std::span<const int64_t> sizes) const {
  try {
    return is_true(value(sizes));
  } catch (const Error&) {
    return false;
  }
}

}  // namespace lowtide
