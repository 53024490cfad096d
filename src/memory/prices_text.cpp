// The text form of prices:
//
//   lowtide prices 1
//   processor AMD EPYC 9355P        (these two lines: none for shipped ones)
//   threads 2
//   caches 4000000.0 64000000.0     near and far bytes
//   matmul f32 4.0 200.0 60.0 40.0 inf   µs a call, GFLOP/s, GB/s in caches, GB/s from memory, random numbers a µs;
//   …                                    inf: takes no time; every class has a row for f32
//   end
#include <charconv>
#include <optional>

#include "base/check.h"
#include "base/scanner.h"
#include "memory/prices.h"

namespace lowtide {

static constexpr std::string_view kTitle = "lowtide prices 1";

std::string Prices::text() const {
  std::ostringstream out;
  out << kTitle << "\n";
  if (!processor.empty()) out << "processor " << processor << "\nthreads " << threads << "\n";
  out << "caches " << to_text(near_bytes) << " " << to_text(far_bytes) << "\n";
  for (const auto& [key, rate] : rates) {
    out << name(key.first) << " " << name(key.second);
    for (double number : {rate.call_us, rate.gflops, rate.near_gb, rate.far_gb, rate.drawn_per_us})
      out << " " << to_text(number);
    out << "\n";
  }
  out << "end\n";
  return std::move(out).str();
}

namespace {

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) { next_line(); }

  Prices read() {
    Prices prices;
    prices.rates.clear();
    if (line_ != kTitle) fail(concat("\"", kTitle, "\""));
    next_line();
    if (line_.starts_with("processor ")) {
      prices.processor = line_.substr(std::string_view("processor ").size());
      next_line();
      prices.threads = static_cast<int>(numbers("threads", 1, "how many threads it was measured with", 1, 1 << 20)[0]);
    }
    const std::vector<double> caches = numbers("caches", 2, "the bytes that caches hold, near and far", 1, 1e15);
    prices.near_bytes = caches[0];
    prices.far_bytes = caches[1];
    if (!(caches[0] < caches[1])) fail_before("fewer near than far bytes");
    while (line_ != "end") read_rates(prices);
    for (KernelClass kernels : all_kernel_classes())
      if (kernels != KernelClass::kFree && !prices.rates.contains({kernels, DType::kF32}))
        fail(concat("a row \"", name(kernels), " f32\" before the end"));
    if (!text_.empty()) {
      next_line();
      fail("nothing behind \"end\"");
    }
    return prices;
  }

 private:
  static constexpr double kLargest = std::numeric_limits<double>::infinity();

  void read_rates(Prices& prices) {
    const std::vector<std::string_view> words = split(line_);
    const std::string expected =
        "a class of kernels, a dtype, µs a call, GFLOP/s, GB/s in caches, GB/s from memory, random numbers a µs";
    if (words.size() != 7) fail(expected);
    const std::optional<KernelClass> kernels = find_kernel_class(words[0]);
    const std::optional<DType> dtype = parse_dtype(words[1]);
    if (!kernels || *kernels == KernelClass::kFree || !dtype) fail(expected);
    const Rates rates{number(words[2], 0, 1e12, expected), number(words[3], 1e-12, kLargest, expected),
                      number(words[4], 1e-12, kLargest, expected), number(words[5], 1e-12, kLargest, expected),
                      number(words[6], 1e-12, kLargest, expected)};
    if (rates.far_gb > rates.near_gb) fail("no more GB/s from memory than in caches");
    if (!prices.rates.emplace(std::pair(*kernels, *dtype), rates).second)
      fail(concat("one row \"", words[0], " ", words[1], "\""));
    next_line();
  }

  // The numbers behind `word`, on a line of its own.
  std::vector<double> numbers(std::string_view word, size_t count, std::string_view what, double low, double high) {
    const std::string expected = concat("\"", word, "\" and ", what);
    const std::vector<std::string_view> words = split(line_);
    if (words.size() != count + 1 || words[0] != word) fail(expected);
    std::vector<double> found;
    for (size_t i = 0; i < count; ++i) found.push_back(number(words[i + 1], low, high, expected));
    next_line();
    return found;
  }

  double number(std::string_view word, double low, double high, std::string_view expected) const {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !(value >= low && value <= high)) fail(expected);
    return value;
  }

  static std::vector<std::string_view> split(std::string_view line) {
    std::vector<std::string_view> words;
    while (!line.empty()) {
      const size_t end = std::min(line.find(' '), line.size());
      if (end > 0) words.push_back(line.substr(0, end));
      line.remove_prefix(std::min(end + 1, line.size()));
    }
    return words;
  }

  void next_line() {
    if (text_.empty()) fail("a further line: the text ends before its \"end\"");
    ++number_;
    const size_t end = std::min(text_.find('\n'), text_.size());
    line_ = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
  }

  [[noreturn]] void fail(std::string_view expected) const { fail_at(number_, expected, line_); }
  [[noreturn]] void fail_before(std::string_view expected) const { fail_at(number_ - 1, expected, "others"); }
  [[noreturn]] static void fail_at(int line, std::string_view expected, std::string_view found) {
    LT_USER_FAIL(ErrorKind::kInvalidArgument, "prices, line ", line, ": expected ", expected, ", found ",
                 quote(found.substr(0, 80)));
  }

  std::string_view text_, line_;
  int number_ = 0;
};

}  // namespace

Prices Prices::parse(std::string_view text) { return Reader(text).read(); }

}  // namespace lowtide
