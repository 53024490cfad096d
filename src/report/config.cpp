#include "report/config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "report/clusters.h"
#include "report/string_list.h"

namespace lowtide {
namespace {

constexpr std::string_view kExample = "FastGelu+:1:12,Cast+:2:-1";

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A cursor over one line of options: fields that separators end, with errors that show where.
class Fields {
 public:
  // `where` stands before the position in messages; `example` is a right text of the kind.
  Fields(std::string_view text, std::string where, std::string_view example)
      : text_(text), where_(std::move(where)), example_(example) {}

  [[noreturn]] void fail_at(size_t position, std::string_view expected) const {
    std::string found = "the end";
    if (position < text_.size()) {
      const size_t end = std::max(position + 1, std::min(text_.find_first_of(",: ", position), text_.size()));
      found = concat("'", text_.substr(position, end - position), "'");
    }
    LT_USER_FAIL(ErrorKind::kInvalidArgument, where_, ", character ", position, ": expected ", expected, ", found ",
                 found, " in \"", text_, "\". Example: ", example_);
  }
  [[noreturn]] void fail(std::string_view expected) const { fail_at(at_, expected); }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  bool accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  // An integer in [low, high] that runs up to a separator.
  int integer(int low, int high, std::string_view expected) {
    skip_space();
    int value = 0;
    const char* end = text_.data() + text_.size();
    const auto [stop, error] = std::from_chars(text_.data() + at_, end, value);
    const bool whole = stop == end || std::string_view(",: \t\r\n").find(*stop) != std::string_view::npos;
    if (error != std::errc() || !whole || value < low || value > high) fail(expected);
    at_ = static_cast<size_t>(stop - text_.data());
    return value;
  }

  // Of a strategy, or 0.
  int code() {
    const size_t begin = at_;
    std::string expected = "the type: 0 (off)";
    int most = 0;
    for (const Strategy* strategy : strategies()) most = std::max(most, strategy->code);
    for (int code = 1; code <= most; ++code)
      if (const Strategy* strategy = find_strategy(code))
        expected += concat(code == most ? " or " : ", ", code, " (", strategy->description, ")");
    const int found = integer(0, most, expected);
    if (found != 0 && find_strategy(found) == nullptr) fail_at(begin, expected);
    return found;
  }

  // Op types, each followed by '+': "Cast+Where+Softmax+". A type may be an ATen or Python target
  // ("aten::sort.stable").
  std::string cluster() {
    skip_space();
    const size_t begin = at_;
    while (at_ == begin || op_type_follows()) {
      const size_t type = at_;
      if (!op_type_follows()) fail("a cluster: op types, each followed by '+'");
      skip_op_type();
      if (at_ == text_.size() || text_[at_] != '+')
        fail(concat("'+' after the op type '", text_.substr(type, at_ - type), "' (every op type ends in '+')"));
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

 private:
  bool op_type_follows() const { return at_ < text_.size() && is_letter(text_[at_]); }
  bool letter_at(size_t position) const { return position < text_.size() && is_letter(text_[position]); }

  void skip_op_type() {
    while (at_ < text_.size()) {
      if (is_letter(text_[at_]) || is_digit(text_[at_])) {
        ++at_;
      } else if (text_[at_] == '.' && at_ + 1 < text_.size() && text_[at_ + 1] != '+') {
        ++at_;
      } else if (text_.substr(at_, 2) == "::" && letter_at(at_ + 2)) {
        at_ += 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  std::string where_;
  std::string_view example_;
  size_t at_ = 0;
};

void add(std::vector<MemoryRequest>& requests, MemoryRequest request) {
  const bool off = request.code == 0;
  std::erase_if(requests, [&](const MemoryRequest& earlier) {
    return earlier.cluster == request.cluster && (off || earlier.code == 0);
  });
  for (MemoryRequest& earlier : requests) {
    if (earlier.cluster != request.cluster || earlier.code != request.code) continue;
    earlier = std::move(request);
    return;
  }
  requests.push_back(std::move(request));
}

void parse_plans(std::string_view text, std::string where, std::vector<MemoryRequest>& requests) {
  Fields fields(text, std::move(where), kExample);
  do {
    while (fields.accept(',')) continue;
    if (fields.at_end()) return;
    MemoryRequest request;
    request.cluster = fields.cluster();
    if (!fields.accept(':')) fields.fail("':' and the type after the cluster");
    request.code = fields.code();
    if (!fields.accept(':')) fields.fail("':' and the count after the type");
    request.count = fields.integer(-1, std::numeric_limits<int>::max(),
                                   "the count: -1 (all), or how many of the first occurrences");
    add(requests, std::move(request));
  } while (fields.accept(','));
  if (!fields.at_end()) fields.fail("',' or the end after the count");
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

bool names_file(std::string_view config) {
  if (config.ends_with(".json")) return true;
  std::error_code ignored;
  return std::filesystem::is_regular_file(std::filesystem::path(config), ignored);
}

std::string read_file(const std::string& path) {
  std::error_code ignored;
  LT_USER_CHECK(ErrorKind::kInvalidArgument, std::filesystem::is_regular_file(path, ignored), path,
                ": expected a JSON file with a list of plans like [\"FastGelu+:1:12\"], found ",
                std::filesystem::exists(path, ignored) ? "something that is no file" : "no such file");
  std::ifstream in(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  LT_USER_CHECK(ErrorKind::kInvalidArgument, !in.bad(), "cannot read the file ", path);
  return text;
}

// ---- distance between cluster names

template <class Sequence>
size_t edit_distance(const Sequence& a, const Sequence& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string to_string(const MemoryRequest& request) {
  return concat(request.cluster, ":", request.code, ":", request.count);
}

std::vector<MemoryRequest> parse_memory_config(std::string_view config) {
  std::vector<MemoryRequest> requests;
  const std::string path(trimmed(config));
  if (path.empty()) return requests;
  if (!names_file(path)) {
    parse_plans(config, "memory configuration", requests);
    return requests;
  }
  int number = 0;
  for (const std::string& plans : parse_string_list(read_file(path), path)) {
    ++number;  // levels of older versions wrote blank strings for what they left out
    if (!trimmed(plans).empty()) parse_plans(plans, concat(path, ", string ", number), requests);
  }
  return requests;
}

void ask(MemoryOptions& options, int level, std::string_view config) {
  options.level = level;
  options.ignores_requests = level >= 1 && !trimmed(config).empty();
  options.requests.clear();
  if (level == 0) options.requests = parse_memory_config(config);
}

ProbeConfig parse_probe_config(std::string_view text) {
  ProbeConfig probe;
  if (trimmed(text).empty()) return probe;
  Fields fields(text, "probe configuration", "1:0");
  probe.level = fields.integer(0, 1, "the level: 0 (cheap ops only) or 1 (costly ones too)");
  if (fields.accept(':'))
    probe.boundary = fields.integer(0, 1, "the boundary: 0, or 1 (the inputs of layers stay stashed)");
  if (!fields.at_end()) fields.fail("\"level:boundary\" or \"level\" and no more");
  return probe;
}

std::vector<std::string> nearest_clusters(std::string_view name, const std::vector<std::string>& known, size_t most) {
  struct Match {
    size_t types, characters;
    std::string name;
    auto operator<=>(const Match&) const = default;
  };
  std::vector<Match> matches;
  for (const std::string& candidate : known)
    matches.push_back({edit_distance(op_types(name), op_types(candidate)),
                       edit_distance(name, std::string_view(candidate)), candidate});
  std::sort(matches.begin(), matches.end());
  matches.erase(std::unique(matches.begin(), matches.end()), matches.end());
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(most, matches.size()); ++i) names.push_back(std::move(matches[i].name));
  return names;
}

}  // namespace lowtide
