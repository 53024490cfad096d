// The live tensors of a graph's inputs: from a call's arguments, and from the places that its guards have looked at.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings.h"
#include "call_tensors.h"
#include "dlpack.h"
#include "guards.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

class GraphInputs {
 public:
  // `sources`: per input of the graph ("input", index among the call's tensors), ("guard", number of a place),
  // ("tensor", tensor) or ("made", function that makes the tensor in each call). `wants_gradient`: what the graph was
  // processed for; none: it does not matter. `written`: inputs that forward writes into; `unused`: those that nothing
  // in the graph takes.
  GraphInputs(nb::object guards, nb::list sources, std::vector<std::optional<bool>> wants_gradient,
              std::vector<size_t> written, std::vector<size_t> unused)
      : guards_object_(guards),
        guards_(nb::cast<Guards*>(guards)),
        wants_gradient_(std::move(wants_gradient)),
        written_(std::move(written)),
        unused_(std::move(unused)) {
    for (nb::handle source : sources) {
      const nb::tuple pair = nb::cast<nb::tuple>(source);
      const std::string_view kind = nb::cast<const char*>(pair[0]);
      Source added;
      added.kind = kind == "input"   ? Kind::kInput
                   : kind == "guard" ? Kind::kGuard
                   : kind == "made"  ? Kind::kMade
                                     : Kind::kTensor;
      if (added.kind == Kind::kTensor || added.kind == Kind::kMade) {
        added.tensor = pair[1];
      } else {
        added.index = nb::cast<size_t>(pair[1]);
      }
      sources_.push_back(std::move(added));
    }
  }

  // After the guards were found to hold. False where other inputs require gradients than the graph was processed for.
  bool bind(const ArgumentTensors& call, BoundInputs& bound) const {
    bound.tensors.reserve(sources_.size());
    bound.views.reserve(sources_.size());
    bool as_wanted = true;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Source& source = sources_[i];
      if (source.kind == Kind::kInput) {
        bound.add(call.tensors[source.index], call.views[source.index], call.requires_grad[source.index]);
      } else if (source.kind == Kind::kGuard) {
        const Guards::Tensor& seen = guards_->tensor(source.index);
        bound.add(seen.object, seen.view, seen.requires_grad);
      } else {
        const nb::object tensor = source.kind == Kind::kMade ? source.tensor() : source.tensor;
        bound.add(tensor, view_of(tensor), requires_grad(tensor));
      }
      as_wanted = as_wanted && (!wants_gradient_[i] || bound.requires_grad.back() == *wants_gradient_[i]);
    }
    return as_wanted;
  }

  // Whether forward writes into bytes that it also takes under another name: it would read them before or after.
  bool overlaps(const BoundInputs& bound) const {
    if (written_.empty()) return false;
    struct Extent {
      const char *begin, *end;
      size_t index;
    };
    std::vector<Extent> extents;
    for (size_t i = 0; i < bound.views.size(); ++i) {
      const TensorRef& view = bound.views[i];
      if (view.numel() == 0 || std::find(unused_.begin(), unused_.end(), i) != unused_.end()) continue;
      int64_t below = 0, above = 0;
      for (int d = 0; d < view.rank; ++d) {
        const int64_t span = (view.sizes[d] - 1) * view.strides[d];
        (span < 0 ? below : above) += span;
      }
      const int64_t width = size_bytes(view.dtype);
      const char* const data = static_cast<const char*>(view.data);
      extents.push_back({data + below * width, data + (above + 1) * width, i});
    }
    std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    const auto is_written = [&](const Extent& extent) {
      return std::find(written_.begin(), written_.end(), extent.index) != written_.end();
    };
    for (size_t i = 0; i < extents.size(); ++i)
      for (size_t j = i + 1; j < extents.size() && extents[j].begin < extents[i].end; ++j)
        if (is_written(extents[i]) || is_written(extents[j])) return true;
    return false;
  }

 private:
  enum class Kind { kInput, kGuard, kTensor, kMade };
  struct Source {
    Kind kind = Kind::kInput;
    size_t index = 0;
    nb::object tensor;  // or the function that makes it
  };
  nb::object guards_object_;
  Guards* guards_;
  std::vector<Source> sources_;
  std::vector<std::optional<bool>> wants_gradient_;
  std::vector<size_t> written_, unused_;
};

nb::tuple take(const BoundInputs& self, const std::vector<size_t>& indices) {
  nb::list taken;
  for (size_t index : indices) taken.append(self.tensors[index]);
  return nb::tuple(taken);
}

}  // namespace

void bind_graph_inputs(nb::module_& module) {
  nb::class_<BoundInputs>(module, "BoundInputs", "The live tensors of a graph's inputs in one call.")
      .def("__len__", [](const BoundInputs& self) { return self.tensors.size(); })
      .def("__getitem__",
           [](const BoundInputs& self, size_t index) {
             if (index >= self.tensors.size()) throw nb::index_error();
             return self.tensors[index];
           })
      .def("requires_grad", [](const BoundInputs& self) { return nb::tuple(nb::cast(self.requires_grad)); })
      .def("take", take, "indices"_a, "A tuple of the tensors at these indices.");
  nb::class_<GraphInputs>(module, "GraphInputs", "Where the tensors of a graph's inputs come from.")
      .def(nb::init<nb::object, nb::list, std::vector<std::optional<bool>>, std::vector<size_t>, std::vector<size_t>>(),
           "guards"_a, "sources"_a, "wants_gradient"_a, "written"_a, "unused"_a)
      .def(
          "bind",
          [](const GraphInputs& self, const ArgumentTensors& call) {
            BoundInputs bound;
            const bool as_wanted = self.bind(call, bound);
            return nb::make_tuple(as_wanted, nb::cast(std::move(bound)));
          },
          "call"_a, "(whether the same inputs require gradients as the graph was processed for, BoundInputs).")
      .def("overlaps", &GraphInputs::overlaps, "bound"_a);
}

}  // namespace lowtide::bindings
