#include "base/size_formula.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "base/check.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {

void bind_size_formula(nb::module_& module) {
  const auto check_count = [](const std::vector<int64_t>& sizes, size_t names) {
    LT_USER_CHECK(ErrorKind::kInvalidArgument, sizes.size() == names, "expected ", names, " sizes, found ",
                  sizes.size());
  };
  struct Formula : SizeFormula {
    Formula(std::string_view text, const std::vector<std::string>& names)
        : SizeFormula(text, names), names(names.size()) {}
    size_t names;
  };
  nb::class_<Formula>(module, "SizeFormula", "A number or a condition over sizes, from text; see size_formula.h.")
      .def(nb::init<std::string_view, const std::vector<std::string>&>(), "text"_a, "names"_a)
      .def(
          "value",
          [=](const Formula& self, const std::vector<int64_t>& sizes) {
            check_count(sizes, self.names);
            return self.value(sizes);
          },
          "sizes"_a, "Of sizes in the order of the names: an int (a condition is 1 or 0) or a float.")
      .def(
          "holds",
          [=](const Formula& self, const std::vector<int64_t>& sizes) {
            check_count(sizes, self.names);
            return self.holds(sizes);
          },
          "sizes"_a, "As a condition; one that cannot be computed does not hold.");
}

}  // namespace lowtide::bindings
