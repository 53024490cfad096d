#include "lower/data_sizes.h"

#include <algorithm>

#include "base/check.h"

namespace lowtide {

void DataSizes::add_known(const Dim& dim) { collect_symbols(dim, known_); }

std::string DataSizes::unknown_symbol(const Dim& dim) const {
  std::set<std::string> symbols;
  collect_symbols(dim, symbols);
  for (const std::string& symbol : symbols)
    if (!known_.contains(symbol)) return symbol;
  return {};
}

ValueId DataSizes::count(Builder& b, ValueId condition) {
  ValueId& count = counted_[condition];
  if (!count) count = b.op(Op::kCountTrue, {condition});
  return count;
}

bool DataSizes::is_made(const Dim& dim) const {
  std::set<std::string> symbols;
  collect_symbols(dim, symbols);
  return std::any_of(symbols.begin(), symbols.end(),
                     [&](const std::string& symbol) { return counts_.contains(symbol); });
}

void DataSizes::set(Builder& b, const Dim& size, ValueId count, int64_t low, const Dim& high) {
  const std::string symbol = unknown_symbol(size);
  if (symbol.empty()) {
    const auto at = counts_.find(to_string(size));
    if (at == counts_.end() || at->second != count) check(b, b.sub(count, b.scalar_dim(size, DType::kI64)), 0, 0);
    return;
  }
  LT_USER_CHECK(ErrorKind::kUnsupported, size == Dim::symbol(symbol), "a count is the size ", size,
                ", whose symbol depends on data");
  b.op(Op::kDataSize, {count}, {{"symbol", symbol}, {"low", low}, {"high", high}});
  known_.insert(symbol);
  counts_[symbol] = count;
}

void DataSizes::check(Builder& b, const Dim& difference, int64_t low, int64_t high) {
  if (difference.is_constant() && difference.constant() >= low && difference.constant() <= high) return;
  check(b, b.scalar_dim(difference, DType::kI64), low, high);
}

void DataSizes::check(Builder& b, ValueId number, int64_t low, int64_t high) {
  b.op(Op::kDataSize, {number}, {{"symbol", concat("check_", checks_++)}, {"low", low}, {"high", high}});
}

}  // namespace lowtide
