// Which values took the place of others while a graph was rewritten: who knows a value by its id finds it again.
#pragma once

#include <map>

#include "base/ids.h"

namespace lowtide {

// Graph::follow makes a graph write into one.
class Replacements {
 public:
  // All who read `from` read `to` now.
  void note(ValueId from, ValueId to) {
    replaced_[from] = to;
    replaced_.erase(to);  // it has readers again
  }
  // The value that took the place of `value` in all edits so far: itself, if it never lost its readers.
  ValueId now(ValueId value) const {
    for (auto at = replaced_.find(value); at != replaced_.end(); at = replaced_.find(value)) value = at->second;
    return value;
  }

 private:
  std::map<ValueId, ValueId> replaced_;
};

}  // namespace lowtide
