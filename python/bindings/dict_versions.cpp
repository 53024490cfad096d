#include "dict_versions.h"

namespace nb = nanobind;

namespace lowtide::bindings {

bool dicts_have_versions() {
  static const bool answer = [] {
    const nb::object sys = nb::module_::import_("sys");
    if (nb::cast<int64_t>(sys.attr("hexversion")) >= 0x030d0000) return false;
    if (nb::cast<size_t>(nb::handle((PyObject*)&PyDict_Type).attr("__basicsize__")) < sizeof(PyObject) + 16)
      return false;
    nb::dict dict;
    const SeenDicts::Fields* const fields = SeenDicts::fields(dict.ptr());
    std::vector<uint64_t> versions;
    const auto grew_to = [&](Py_ssize_t size) {
      const bool is_new = versions.empty() || fields->version > versions.back();
      versions.push_back(fields->version);
      return is_new && fields->size == size && fields->version == versions.back();
    };
    dict["a"] = 1;
    bool grows = grew_to(1);
    dict["a"] = 2;
    grows = grows && grew_to(1);
    dict["b"] = 1;
    grows = grows && grew_to(2);
    PyDict_DelItemString(dict.ptr(), "a");
    grows = grows && grew_to(1);
    PyDict_Clear(dict.ptr());
    grows = grows && fields->version != versions.back();
    versions.push_back(fields->version);
    PyDict_GetItemString(dict.ptr(), "a");
    return grows && fields->version == versions.back();
  }();
  return answer;
}

}  // namespace lowtide::bindings
