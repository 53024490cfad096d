#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace lowtide::bindings {

// Whether dicts carry a version that no other state of any dict has (PEP 509, CPython up to 3.12). Asks a dict of its
// own how it changes.
bool dicts_have_versions();

// Dicts that are looked into when they have changed. Where dicts have no versions, each time.
class SeenDicts {
 public:
  void add(nanobind::handle dict) { seen_.push_back({dict.ptr(), 0}); }
  size_t size() const { return seen_.size(); }

  // `look(i)`: whether dict i is as it should be; it is asked again until it is. The first in [begin, end) that is not,
  // or `end`. Thousands of small dicts are far apart in memory, and fetching them one after another was most of a
  // check's cost.
  template <class Look>
  size_t first_wrong(size_t begin, size_t end, Look&& look) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(fields(seen_[i + kAhead].dict));
      const uint64_t now = has_versions_ ? fields(seen_[i].dict)->version : 0;
      if (now == seen_[i].version && now != 0) continue;
      if (!look(i)) return i;
      seen_[i].version = now;
    }
    return end;
  }
  template <class Look>
  size_t first_wrong(Look&& look) {
    return first_wrong(0, seen_.size(), look);
  }

 private:
  static constexpr size_t kAhead = 48;
  // Of CPython's own: what follows the head of each object that is a dict.
  struct Fields {
    Py_ssize_t size;
    uint64_t version;
  };
  struct Seen {
    PyObject* dict;  // held by the owner
    uint64_t version;
  };
  static const Fields* fields(PyObject* dict) {
    return reinterpret_cast<const Fields*>(reinterpret_cast<const char*>(dict) + sizeof(PyObject));
  }
  friend bool dicts_have_versions();

  std::vector<Seen> seen_;
  bool has_versions_ = dicts_have_versions();
};

}  // namespace lowtide::bindings
