#include <charconv>

#include "base/check.h"
#include "program/text.h"

namespace lowtide {

namespace {

// Reads words, quoted strings and bracketed lists, line by line; every mistake names its line.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Program read() {
    expect_word("lowtide");
    expect_word("program");
    const int64_t version = integer();
    LT_USER_CHECK(ErrorKind::kInvalidProgram, version == kProgramVersion, "a program of version ", version,
                  ", this build reads version ", kProgramVersion);
    program_.name = string();
    bool ended = false;
    while (!ended) {
      const std::string_view what = word();
      if (what == "end") {
        const uint64_t expected = checksum(text_.substr(0, at_ - 3));
        if (number_of<uint64_t>(word(), "a checksum") != expected) fail("the checksum of the text above", "another");
        ended = true;
      } else {
        read_line(what);
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("the end of the text", text_.substr(at_, 20));
    check(program_);
    return std::move(program_);
  }

 private:
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    LT_USER_FAIL(ErrorKind::kInvalidProgram, "line ", line_, ": expected ", expected, ", found '", found, "'");
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) {
      if (text_[at_] == '\n') ++line_;
      ++at_;
    }
  }

  std::string_view word() {
    skip_space();
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != ' ' && text_[at_] != '\n' && text_[at_] != ']' && text_[at_] != '[')
      ++at_;
    if (begin == at_) fail("a word", text_.substr(at_, 1));
    return text_.substr(begin, at_ - begin);
  }

  void expect_word(std::string_view expected) {
    const std::string_view found = word();
    if (found != expected) fail(expected, found);
  }

  template <class T>
  T number_of(std::string_view token, const char* what) const {
    T value{};
    const auto result = std::from_chars(token.data(), token.data() + token.size(), value);
    if (result.ec != std::errc() || result.ptr != token.data() + token.size()) fail(what, token);
    return value;
  }
  int64_t integer() { return number_of<int64_t>(word(), "an integer"); }
  int32_t small() { return number_of<int32_t>(word(), "a 32-bit integer"); }
  double real() { return number_of<double>(word(), "a number"); }

  bool flag() {
    const std::string_view token = word();
    if (token != "0" && token != "1") fail("0 or 1", token);
    return token == "1";
  }

  static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

  std::string string() {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != '"') fail("a quoted string", text_.substr(at_, 10));
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n'; ++at_) {
      if (text_[at_] != '\\') {
        result += text_[at_];
        continue;
      }
      if (++at_ >= text_.size()) break;
      if (text_[at_] != 'x') {
        result += text_[at_];
        continue;
      }
      if (at_ + 2 >= text_.size() || hex(text_[at_ + 1]) < 0 || hex(text_[at_ + 2]) < 0)
        fail("two hex digits", text_.substr(at_, 3));
      result += static_cast<char>(hex(text_[at_ + 1]) * 16 + hex(text_[at_ + 2]));
      at_ += 2;
    }
    if (at_ >= text_.size() || text_[at_] != '"') fail("the closing quote", "the end of the line");
    ++at_;
    return result;
  }

  template <class Item>
  auto list(Item&& item) {
    std::vector<decltype(item())> items;
    skip_space();
    if (at_ >= text_.size() || text_[at_] != '[') fail("'['", text_.substr(at_, 10));
    ++at_;
    for (;;) {
      skip_space();
      if (at_ < text_.size() && text_[at_] == ']') break;
      items.push_back(item());
    }
    ++at_;
    return items;
  }
  std::vector<int32_t> smalls() {
    return list([&] { return small(); });
  }

  DType dtype() {
    const std::string_view token = word();
    const std::optional<DType> found = parse_dtype(token);
    if (!found) fail("a dtype", token);
    return *found;
  }

  template <class Kind>
  Kind kind(int count) {
    const std::string_view token = word();
    for (int i = 0; i < count; ++i)
      if (name(static_cast<Kind>(i)) == token) return static_cast<Kind>(i);
    fail("a kind", token);
  }

  ProgramInput input() {
    ProgramInput result;
    result.name = string();
    result.dtype = dtype();
    result.sizes = smalls();
    result.strides = smalls();
    result.saved = flag();
    result.flexible = flag();
    return result;
  }

  void read_attr() {
    if (program_.steps.empty()) fail("a step before its attributes", "attr");
    AttrList<int64_t>& attrs = program_.steps.back().attrs;
    const std::string key = string();
    const std::string_view type = word();
    if (type == "b") {
      const std::string_view value = word();
      if (value != "true" && value != "false") fail("true or false", value);
      attrs.set(key, value == "true");
    } else if (type == "e") {
      attrs.set(key, integer());
    } else if (type == "f") {
      attrs.set(key, real());
    } else if (type == "s") {
      attrs.set(key, string());
    } else if (type == "t") {
      attrs.set(key, dtype());
    } else if (type == "es") {
      attrs.set(key, list([&] { return integer(); }));
    } else if (type == "fs") {
      attrs.set(key, list([&] { return real(); }));
    } else if (type == "ss") {
      attrs.set(key, list([&] { return string(); }));
    } else {
      fail("an attribute type", type);
    }
  }

  int32_t read_dim() {
    const std::string_view what = word();
    if (what == "number") return SymbolSource::kNumber;
    if (what != "dim") fail("dim or number", what);
    const int32_t dim = small();
    if (dim < 0) fail("a dim", "a negative number");
    return dim;
  }

  void read_region() {
    const int32_t at = static_cast<int32_t>(program_.steps.size());
    program_.regions.push_back({string(), at, at, smalls()});
  }

  void read_step() {
    if (program_.regions.empty()) fail("a region before its steps", "step");
    ProgramStep step;
    step.kind = kind<StepKind>(8);
    step.kernel = string();
    step.inputs = smalls();
    step.outputs = smalls();
    step.index = small();
    step.target = string();
    step.needs_grad = number_of<uint32_t>(word(), "a bit mask");
    step.node = string();
    program_.steps.push_back(std::move(step));
    ++program_.regions.back().end;
  }

  // Braced initialisers evaluate in order, so the fields stand in the order of the text.
  void read_line(std::string_view what) {
    if (what == "symbol") {
      program_.symbols.push_back({string(), small(), read_dim()});
      program_.symbol_low.push_back(integer());
      program_.symbol_high.push_back(integer());
    } else if (what == "step_symbol") {
      program_.step_symbols.push_back({string(), small(), small(), integer(), small()});
    } else if (what == "loop") {
      program_.loops.push_back({small(), small(), small(), integer()});
    } else if (what == "loop_of_batches") {
      program_.loops.push_back({small(), small(), small(), integer(), small()});
    } else if (what == "devices") {
      program_.devices = list([&] { return string(); });
    } else if (what == "expression") {
      program_.expressions.push_back(list([&] { return integer(); }));
    } else if (what == "input") {
      program_.inputs.push_back(input());
    } else if (what == "incoming") {
      program_.gradient_inputs.push_back(input());
      expect_word("of");
      program_.gradient_outputs.push_back(small());
    } else if (what == "buffer") {
      program_.buffers.push_back({string(), kind<BufferKind>(5), small(), small(), small(), integer(), small()});
    } else if (what == "operand") {
      program_.operands.push_back({small(), dtype(), small(), smalls(), smalls()});
    } else if (what == "region") {
      read_region();
    } else if (what == "step") {
      read_step();
    } else if (what == "attr") {
      read_attr();
    } else if (what == "output") {
      program_.outputs.push_back({string(), small(), flag()});
    } else if (what == "update") {
      program_.updates.push_back({small(), small()});
    } else if (what == "gradient") {
      program_.gradients.push_back(small());
      program_.gradient_targets.push_back(small());
    } else if (what == "contexts") {
      program_.contexts = small();
      if (program_.contexts < 0 || program_.contexts > 1000000) fail("a number of contexts", "too many");
    } else if (what == "constants") {
      program_.constants = string();
    } else if (what == "pack_order") {
      program_.pack_order = smalls();
    } else {
      fail("a line of a program", what);
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  Program program_;
};

}  // namespace

Program parse_program(std::string_view text) { return Reader(text).read(); }

}  // namespace lowtide
