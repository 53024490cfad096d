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

  // `look(i)`: whether dict i is as it should be; it is asked again until it is. The first that is not, or size(),
  // among those from `begin` on, `step` by step. Thousands of small dicts are far apart in memory, and fetching them
  // one after another was most of a check's cost.
  template <class Look>
  size_t first_wrong(Look&& look, size_t begin = 0, size_t step = 1) {
    const size_t ahead = kAhead * step;
    for (size_t i = begin; i < seen_.size(); i += step) {
      if (i + ahead < seen_.size()) __builtin_prefetch(fields(seen_[i + ahead].dict));
      const uint64_t now = has_versions_ ? fields(seen_[i].dict)->version : 0;
      if (now == seen_[i].version && now != 0) continue;
      if (!look(i)) return i;
      seen_[i].version = now;
    }
    return seen_.size();
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
