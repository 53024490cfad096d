// Attributes of a node: a small list of named values, sorted by name.
// `D` is the type of integers: symbolic Dim in the graph, int64_t in a bound Program, so that the same names and
// accessors serve lowering, rules and kernels. Which attributes an op has stands in ops.def.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"

namespace lowtide {

template <class D>
using AttrValue =
    std::variant<bool, D, double, std::string, DType, std::vector<D>, std::vector<double>, std::vector<std::string>>;

template <class D>
class AttrList {
 public:
  using Value = AttrValue<D>;
  using Entry = std::pair<std::string, Value>;

  AttrList() = default;
  AttrList(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) set(entry.first, entry.second);
  }

  void set(std::string_view name, Value value) {
    auto at = lower(name);
    if (at != entries_.end() && at->first == name) {
      at->second = std::move(value);
    } else {
      entries_.insert(at, Entry(std::string(name), std::move(value)));
    }
  }
  void erase(std::string_view name) {
    auto at = lower(name);
    if (at != entries_.end() && at->first == name) entries_.erase(at);
  }

  const Value* find(std::string_view name) const {
    auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                               [](const Entry& entry, std::string_view key) { return entry.first < key; });
    return at != entries_.end() && at->first == name ? &at->second : nullptr;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // The attribute as T; it must be there and of that type (verify has checked it against ops.def).
  template <class T>
  const T& get(std::string_view name) const {
    const Value* value = find(name);
    LT_CHECK(value != nullptr, "attribute ", name, " is missing");
    const T* typed = std::get_if<T>(value);
    LT_CHECK(typed != nullptr, "attribute ", name, " has another type");
    return *typed;
  }
  template <class T>
  T get_or(std::string_view name, T fallback) const {
    return has(name) ? get<T>(name) : fallback;
  }
  const std::vector<D>& ints(std::string_view name) const { return get<std::vector<D>>(name); }
  const D& dim(std::string_view name) const { return get<D>(name); }
  // A plain integer; a Dim must be constant.
  int64_t i(std::string_view name) const { return plain(get<D>(name)); }
  int64_t i(std::string_view name, int64_t fallback) const { return has(name) ? i(name) : fallback; }
  // Plain integers; Dims must be constant.
  std::vector<int64_t> is(std::string_view name) const {
    std::vector<int64_t> result;
    for (const D& value : ints(name)) result.push_back(plain(value));
    return result;
  }
  double f(std::string_view name) const { return get<double>(name); }
  double f(std::string_view name, double fallback) const { return get_or<double>(name, fallback); }
  bool b(std::string_view name) const { return get<bool>(name); }
  bool b(std::string_view name, bool fallback) const { return get_or<bool>(name, fallback); }
  const std::string& s(std::string_view name) const { return get<std::string>(name); }
  std::string s(std::string_view name, std::string fallback) const {
    return get_or<std::string>(name, std::move(fallback));
  }
  DType t(std::string_view name) const { return get<DType>(name); }

  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  friend bool operator==(const AttrList&, const AttrList&) = default;

 private:
  static int64_t plain(const D& value) {
    if constexpr (std::is_same_v<D, int64_t>) {
      return value;
    } else {
      return value.constant();
    }
  }
  auto lower(std::string_view name) {
    return std::lower_bound(entries_.begin(), entries_.end(), name,
                            [](const Entry& entry, std::string_view key) { return entry.first < key; });
  }
  std::vector<Entry> entries_;
};

// What a Program and a kernel see.
using BoundAttrs = AttrList<int64_t>;

}  // namespace lowtide
