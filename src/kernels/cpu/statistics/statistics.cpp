#include "kernels/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/statistics/statistics_table.h"
#include "kernels/walk.h"

namespace lowtide {

namespace {

using cpu::kStatisticsBlock;
using cpu::PartStatistics;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMostRanges = 64;          // what threads share out; fixed, so that sums do not depend on threads
constexpr int64_t kSmallestRange = 1 << 15;  // elements; less is not worth a thread

// Chan, Golub, LeVeque: the squares around the means of two parts give those around the mean of both.
void join(PartStatistics& into, const PartStatistics& part) {
  if (part.numel == 0) return;
  if (into.numel == 0) {
    into = part;
    return;
  }
  const double a = static_cast<double>(into.numel), b = static_cast<double>(part.numel);
  const double distance = part.mean - into.mean;
  into.squares += part.squares + distance * distance * (a * b / (a + b));
  // Infinities and NaN add up as the elements would; their distance is of no use.
  into.mean = std::isfinite(distance) ? into.mean + distance * (b / (a + b)) : into.mean + part.mean;
  // A NaN stays.
  into.min = part.min < into.min || part.min != part.min ? part.min : into.min;
  into.max = part.max > into.max || part.max != part.max ? part.max : into.max;
  into.numel += part.numel;
  into.nan += part.nan;
  into.inf += part.inf;
  into.negative += part.negative;
  into.zero += part.zero;
}

template <class Bits>
void gather(const char* from, int64_t stride, int64_t n, char* to) {
  const auto* x = reinterpret_cast<const Bits*>(from);
  auto* y = reinterpret_cast<Bits*>(to);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i * stride];
}

// The elements of a tensor in row-major order, in dense pieces.
class Elements {
 public:
  explicit Elements(const TensorRef& tensor)
      : data_(static_cast<const char*>(tensor.data)), bytes_(size_bytes(tensor.dtype)) {
    for (int i = 0; i < tensor.rank; ++i) rows_.add_dim(tensor.sizes[i], {tensor.strides[i]});
    rows_.collapse();
    if (rows_.rank == 0) return;
    --rows_.rank;
    length_ = rows_.sizes[rows_.rank];
    stride_ = rows_.strides[rows_.rank][0];
  }

  // Calls body(dense elements, how many) for pieces of at most kStatisticsBlock of the positions [begin, end).
  template <class Body>
  void for_each_piece(int64_t begin, int64_t end, Body&& body) const {
    alignas(64) char gathered[kStatisticsBlock * 8];
    int64_t waiting = 0;
    for (int64_t at = begin; at < end;) {
      const int64_t column = at % length_;
      const int64_t n = std::min({length_ - column, end - at, kStatisticsBlock - waiting});
      const char* from = data_ + (row_offset(at / length_) + column * stride_) * bytes_;
      at += n;
      if (waiting == 0 && stride_ == 1 && (n == kStatisticsBlock || at == end)) {
        body(from, n);
        continue;
      }
      append(from, n, gathered + waiting * bytes_);
      waiting += n;
      if (waiting == kStatisticsBlock || at == end) {
        body(gathered, waiting);
        waiting = 0;
      }
    }
  }

 private:
  int64_t row_offset(int64_t row) const {
    int64_t offset = 0;
    for (int i = rows_.rank - 1; i >= 0; --i) {
      offset += row % rows_.sizes[i] * rows_.strides[i][0];
      row /= rows_.sizes[i];
    }
    return offset;
  }

  void append(const char* from, int64_t n, char* to) const {
    if (stride_ == 1) {
      std::memcpy(to, from, static_cast<size_t>(n * bytes_));
      return;
    }
    switch (bytes_) {
      case 1: return gather<uint8_t>(from, stride_, n, to);
      case 2: return gather<uint16_t>(from, stride_, n, to);
      case 4: return gather<uint32_t>(from, stride_, n, to);
      default: return gather<uint64_t>(from, stride_, n, to);
    }
  }

  const char* data_;
  int64_t bytes_;
  Grid<1> rows_;
  int64_t length_ = 1, stride_ = 1;
};

}  // namespace

Statistics statistics(const TensorRef& tensor) {
  Statistics result;
  result.dtype = tensor.dtype;
  result.rank = tensor.rank;
  std::copy_n(tensor.sizes, tensor.rank, result.sizes);
  result.numel = tensor.numel();
  result.min = result.max = result.mean = result.std = kNan;
  if (result.numel == 0) return result;

  const cpu::StatisticsTable::Block block = cpu::statistics_table().block[static_cast<size_t>(tensor.dtype)];
  LT_USER_CHECK(ErrorKind::kUnsupported, block != nullptr, "no statistics of a tensor of ", name(tensor.dtype));
  const Elements elements(tensor);
  const int64_t range =
      std::max(kSmallestRange, (result.numel / kMostRanges / kStatisticsBlock + 1) * kStatisticsBlock);
  PartStatistics parts[kMostRanges];
  parallel_for((result.numel + range - 1) / range, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      elements.for_each_piece(i * range, std::min(result.numel, (i + 1) * range), [&](const void* x, int64_t n) {
        PartStatistics piece;
        block(x, n, &piece);
        join(parts[i], piece);
      });
  });
  PartStatistics all;
  for (const PartStatistics& part : parts) join(all, part);

  result.nan = all.nan;
  result.inf = all.inf;
  result.negative = all.negative;
  result.zero = all.zero;
  result.positive = all.numel - all.nan - all.negative - all.zero;
  result.min = all.min;
  result.max = all.max;
  result.mean = all.mean;
  if (all.numel > 1) result.std = std::sqrt(all.squares / static_cast<double>(all.numel - 1));
  elements.for_each_piece(0, std::min<int64_t>(result.numel, Statistics::kSamples), [&](const char* x, int64_t n) {
    // Of one element, the least is it.
    for (int64_t i = 0; i < n; ++i) {
      PartStatistics one;
      block(x + i * size_bytes(tensor.dtype), 1, &one);
      result.sample[result.samples++] = one.min;
    }
  });
  return result;
}

}  // namespace lowtide
