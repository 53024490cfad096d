// The symbols of sizes while a graph is lowered: those of its inputs, and those that its nodes make.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/text.h"
#include "ops/builder.h"

namespace lowtide {

class DataSizes {
 public:
  // Of an input.
  void add_known(const Dim& dim);
  // A symbol of `dim` that nothing has made yet, or empty.
  std::string unknown_symbol(const Dim& dim) const;
  // Whether it names a symbol that a node has made.
  bool is_made(const Dim& dim) const;
  // A symbol that nothing names yet.
  Dim fresh() { return Dim::symbol(concat("count_", fresh_++)); }
  // How many elements of a condition are true; counted once.
  ValueId count(Builder& b, ValueId condition);
  // From here on the number `count` (i64[]) is `size`: a new symbol, between `low` and `high`, or a size that is known,
  // to which it is compared while the step runs.
  void set(Builder& b, const Dim& size, ValueId count, int64_t low, const Dim& high);
  // `difference`, of known sizes, is between `low` and `high` in each step, or the step fails.
  void check(Builder& b, const Dim& difference, int64_t low, int64_t high);

 private:
  void check(Builder& b, ValueId number, int64_t low, int64_t high);

  std::set<std::string> known_;
  std::map<std::string, ValueId> counts_;  // by symbol: the number that it is
  std::map<ValueId, ValueId> counted_;     // condition → its count
  int checks_ = 0, fresh_ = 0;
};

}  // namespace lowtide
