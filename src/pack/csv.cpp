#include "pack/csv.h"

#include <array>
#include <charconv>
#include <limits>
#include <unordered_set>

#include "base/check.h"

namespace lowtide {
namespace {

constexpr std::array<std::string_view, 6> kColumns = {"id", "first", "last", "size", "alignment", "offset"};
constexpr std::string_view kHeader = "id,first,last,size,alignment";
constexpr std::string_view kHeaderWithOffsets = "id,first,last,size,alignment,offset";
constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr auto kBad = ErrorKind::kInvalidArgument;

// Takes one line off the text, without its "\n" or "\r\n".
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

int64_t parse_integer(std::string_view field, int64_t least, int64_t most, size_t line, std::string_view column) {
  int64_t value = 0;
  const char* end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, value);
  LT_USER_CHECK(kBad, error == std::errc() && stop == end && value >= least && value <= most, "packing CSV, line ",
                line, ", column '", column, "': expected an integer in [", least, ", ", most, "], found '", field, "'");
  return value;
}

}  // namespace

CsvPlan read_csv(std::string_view text) {
  const std::string_view header = take_line(text);
  const bool has_offsets = header == kHeaderWithOffsets;
  LT_USER_CHECK(kBad, has_offsets || header == kHeader, "packing CSV, line 1: expected the header '", kHeader,
                "' (and optionally ',offset'), found '", header, "'");
  constexpr int64_t kLeastStep = std::numeric_limits<int32_t>::min();
  constexpr int64_t kLastStep = std::numeric_limits<int32_t>::max();
  const size_t width = has_offsets ? 6 : 5;
  CsvPlan plan;
  std::vector<int64_t> offsets;
  std::unordered_set<std::string_view> seen;
  int64_t room = kMostBytes;
  for (size_t line = 2; !text.empty(); ++line) {
    const std::string_view row = take_line(text);
    if (row.empty()) continue;
    const auto fields = split(row);
    LT_USER_CHECK(kBad, fields.size() == width, "packing CSV, line ", line, ": expected ", width, " columns, found ",
                  fields.size());
    LT_USER_CHECK(kBad, !fields[0].empty(), "packing CSV, line ", line,
                  ", column 'id': expected a name, found nothing");
    LT_USER_CHECK(kBad, seen.insert(fields[0]).second, "packing CSV, line ", line, ", column 'id': '", fields[0],
                  "' was used before");
    const auto integer = [&](size_t column, int64_t least, int64_t most) {
      return parse_integer(fields[column], least, most, line, kColumns[column]);
    };
    Buffer buffer;
    buffer.first = static_cast<int32_t>(integer(1, kLeastStep, kLastStep));
    buffer.last = static_cast<int32_t>(integer(2, kLeastStep, kLastStep));
    LT_USER_CHECK(kBad, buffer.first <= buffer.last, "packing CSV, line ", line,
                  ", column 'last': expected a step no earlier than first = ", buffer.first, ", found ", buffer.last);
    buffer.size_bytes = integer(3, 0, kMostBytes);
    buffer.alignment = integer(4, 1, kMostBytes);
    room -= padded_size(buffer) + buffer.alignment;
    LT_USER_CHECK(kBad, room >= 0, "packing CSV, line ", line,
                  ", column 'size': expected at most 2^60 bytes in all, found more");
    if (has_offsets) offsets.push_back(integer(5, 0, kMostBytes));
    plan.ids.emplace_back(fields[0]);
    plan.problem.buffers.push_back(buffer);
  }
  if (has_offsets) plan.offsets = std::move(offsets);
  return plan;
}

std::string write_csv(const Problem& problem, std::span<const int64_t> offsets, std::span<const std::string> ids) {
  const size_t count = problem.buffers.size();
  LT_CHECK(offsets.empty() || offsets.size() == count, offsets.size(), " offsets for ", count, " buffers");
  LT_CHECK(ids.empty() || ids.size() == count, ids.size(), " ids for ", count, " buffers");
  std::ostringstream out;
  out << (offsets.empty() ? kHeader : kHeaderWithOffsets) << '\n';
  for (size_t i = 0; i < count; ++i) {
    const Buffer& buffer = problem.buffers[i];
    if (ids.empty()) {
      out << i;
    } else {
      LT_CHECK(!ids[i].empty() && ids[i].find_first_of(",\r\n") == std::string::npos, "'", ids[i], "' cannot be an id");
      out << ids[i];
    }
    out << ',' << buffer.first << ',' << buffer.last << ',' << buffer.size_bytes << ',' << buffer.alignment;
    if (!offsets.empty()) out << ',' << offsets[i];
    out << '\n';
  }
  return std::move(out).str();
}

}  // namespace lowtide
