// The live tensors of a graph's inputs, from a call's arguments and from the watch on its module.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "bindings.h"
#include "call_schema.h"
#include "call_tensors.h"
#include "dlpack.h"
#include "module_watch.h"
#include "torch_fields.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {

void PlacedTensors::clear() {
  tensors.clear();
  kinds.clear();
  data.clear();
  versions.clear();
  own_kinds.clear();
  watch.reset();
}

PlacedTensors SparePlaces::take() {
  if (spare_.empty()) return {};
  PlacedTensors taken = std::move(spare_.back());
  spare_.pop_back();
  return taken;
}

void SparePlaces::give(PlacedTensors&& used) {
  PlacedTensors given = std::move(used);
  given.clear();
  if (spare_.size() < kMost) spare_.push_back(std::move(given));
}

namespace {

class GraphInputs {
 public:
  // `sources`: per input of the graph ("input", index among the call's tensors), ("state", index of the watch's
  // tensors), ("attribute", (owner, name)) or ("tensor", tensor). `wants_gradient`: what the graph was processed for.
  // Empty: under no_grad, where nothing does. `written`: inputs that forward writes into.
  GraphInputs(nb::object watch, nb::list sources, std::vector<std::optional<bool>> wants_gradient,
              std::vector<size_t> written)
      : watch_object_(watch),
        watch_(nb::cast<ModuleWatch*>(watch)),
        wants_gradient_(std::move(wants_gradient)),
        written_(std::move(written)) {
    for (nb::handle source : sources) {
      const nb::tuple pair = nb::cast<nb::tuple>(source);
      const std::string_view kind = nb::cast<const char*>(pair[0]);
      Source added;
      added.kind = kind == "input" ? Kind::kInput : kind == "state" ? Kind::kState : Kind::kAttribute;
      if (added.kind == Kind::kAttribute) {
        added.index = static_cast<uint32_t>(attributes_.size());
        if (kind == "tensor") {
          attributes_.emplace_back(pair[1], nb::object());
        } else {
          attributes_.emplace_back(pair[1][0], pair[1][1]);
        }
      } else {
        added.index = nb::cast<uint32_t>(pair[1]);
      }
      sources_.push_back(std::move(added));
    }
  }

  const std::shared_ptr<SparePlaces>& spare() const { return spare_; }

  // After the watch's check. False where other inputs require gradients than the graph was processed for.
  bool bind(const CallTensors& call, BoundInputs& bound) const {
    bound.watch = watch_object_;
    bound.requires_grad.reserve(sources_.size());
    bool as_wanted = true;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Source& source = sources_[i];
      if (source.kind == Kind::kInput) {
        const TensorRef& view = call.views[source.index];
        bound.add(call.tensors[source.index], bound.own(view), view.data);
        bound.requires_grad.push_back(call.requires_grad[source.index]);
      } else if (source.kind == Kind::kState) {
        bound.add(watch_->tensor(source.index), watch_->kind(source.index), watch_->data(source.index));
        bound.requires_grad.push_back(watch_->requires_grad(source.index));
      } else {
        const auto& [object, name] = attributes_[source.index];
        const nb::object tensor = name.is_valid() ? object.attr(name) : object;
        const TensorRef view = view_of(tensor);
        bound.add(tensor, bound.own(view), view.data);
        bound.requires_grad.push_back(requires_grad(tensor));
      }
      as_wanted = as_wanted && (!wants_gradient_[i] || bound.requires_grad.back() == *wants_gradient_[i]);
    }
    return as_wanted;
  }

  // The graph is right for calls whose tensors have these sizes.
  void accept(const CallTensors& call) {
    if (accepts(call)) return;
    if (accepted_.size() == kMostSizes) accepted_.erase(accepted_.begin());
    accepted_.push_back(call.views);
  }

  // All of the checks in one, for a call like one of those before. False: some check did not find what it found then,
  // and the caller has to look which.
  bool bind_again(const CallSchema& schema, nb::handle args, nb::handle kwargs, int64_t handles, CallTensors& call,
                  BoundInputs& bound) const {
    return schema.match(args, kwargs, call) && accepts(call) &&
           watch_->check(handles).found == ModuleWatch::Found::kNothing && bind(call, bound);
  }

  // Whether forward writes into bytes that it also takes under another name: it would read them before or after.
  bool overlaps(const BoundInputs& bound) const {
    if (written_.empty()) return false;
    struct Extent {
      const char *begin, *end;
      size_t index;
    };
    std::vector<Extent> extents;
    for (size_t i = 0; i < bound.kinds.size(); ++i) {
      const TensorRef& view = *bound.kinds[i];
      if (view.numel() == 0) continue;
      int64_t below = 0, above = 0;
      for (int d = 0; d < view.rank; ++d) {
        const int64_t span = (view.sizes[d] - 1) * view.strides[d];
        (span < 0 ? below : above) += span;
      }
      const int64_t width = size_bytes(view.dtype);
      const char* const data = static_cast<const char*>(bound.data[i]);
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
  static constexpr size_t kMostSizes = 16;
  enum class Kind { kInput, kState, kAttribute };
  struct Source {
    Kind kind = Kind::kInput;
    uint32_t index = 0;
  };
  std::shared_ptr<SparePlaces> spare_ = std::make_shared<SparePlaces>();
  nb::object watch_object_;
  ModuleWatch* watch_;
  std::vector<Source> sources_;
  std::vector<std::pair<nb::object, nb::object>> attributes_;  // (owner, name), or (tensor, none)
  std::vector<std::optional<bool>> wants_gradient_;
  std::vector<size_t> written_;
  std::vector<std::vector<TensorRef>> accepted_;  // only their sizes count

  bool accepts(const CallTensors& call) const {
    return std::any_of(accepted_.begin(), accepted_.end(), [&](const std::vector<TensorRef>& known) {
      return std::equal(known.begin(), known.end(), call.views.begin(), call.views.end(), same_sizes);
    });
  }
  static bool same_sizes(const TensorRef& a, const TensorRef& b) {
    return a.rank == b.rank && std::equal(a.sizes, a.sizes + a.rank, b.sizes);
  }
};

nb::tuple take(const BoundInputs& self, const Indices& indices) {
  PyObject* const taken = PyTuple_New(static_cast<Py_ssize_t>(indices.values.size()));
  if (taken == nullptr) throw nb::python_error();
  for (size_t i = 0; i < indices.values.size(); ++i)
    PyTuple_SetItem(taken, static_cast<Py_ssize_t>(i), nb::object(self.tensors[indices.values[i]]).release().ptr());
  return nb::steal<nb::tuple>(taken);
}

KeptTensors keep(const BoundInputs& self, const Indices& indices) {
  KeptTensors kept(self.home());
  kept.watch = self.watch;
  kept.own_kinds = self.own_kinds;
  for (size_t index : indices.values) {
    kept.add(self.tensors[index], self.kinds[index], self.data[index]);
    kept.versions.push_back(version(self.tensors[index]));
  }
  return kept;
}

// Looks at all of the tensors again: their data may have been replaced.
nb::object find_changed(KeptTensors& self) {
  const auto tensor_at = [&](size_t i) { return nb::handle(self.tensors[i]); };
  for (size_t i = 0; i < self.tensors.size(); ++i) {
    torch_fields().fetch_ahead(i, self.tensors.size(), tensor_at);
    if (const int64_t now = version(self.tensors[i]); now != self.versions[i])
      return nb::make_tuple(i, self.versions[i], now);
    if (read_data(self.tensors[i], *self.kinds[i], self.data[i])) continue;
    const TensorRef view = view_of(self.tensors[i]);
    self.kinds[i] = self.own(view);
    self.data[i] = view.data;
  }
  return nb::none();
}

}  // namespace

void bind_graph_inputs(nb::module_& module) {
  nb::class_<Indices>(module, "Indices", "Some of a graph's inputs.")
      .def(
          "__init__", [](Indices* self, std::vector<size_t> values) { new (self) Indices{std::move(values)}; },
          "values"_a);
  nb::class_<BoundInputs>(module, "BoundInputs", "The live tensors of a graph's inputs in one call.")
      .def("__len__", [](const BoundInputs& self) { return self.tensors.size(); })
      .def("__getitem__",
           [](const BoundInputs& self, size_t index) {
             if (index >= self.tensors.size()) throw nb::index_error();
             return self.tensors[index];
           })
      .def("requires_grad", [](const BoundInputs& self) { return nb::tuple(nb::cast(self.requires_grad)); })
      .def("take", take, "indices"_a, "A tuple of the tensors at these indices.")
      .def("keep", keep, "indices"_a, "KeptTensors of the tensors at these indices.");
  nb::class_<KeptTensors>(module, "KeptTensors", "Inputs that backward reads again.")
      .def("find_changed", find_changed,
           "None, or (position, version then, version now) of one changed in place. Before Session.backward.");
  nb::class_<GraphInputs>(module, "GraphInputs", "Where the tensors of a graph's inputs come from.")
      .def(nb::init<nb::object, nb::list, std::vector<std::optional<bool>>, std::vector<size_t>>(), "watch"_a,
           "sources"_a, "wants_gradient"_a, "written"_a)
      .def(
          "bind",
          [](const GraphInputs& self, const CallTensors& call) {
            BoundInputs bound(self.spare());
            const bool as_wanted = self.bind(call, bound);
            return nb::make_tuple(as_wanted, nb::cast(std::move(bound)));
          },
          "call"_a, "(whether the same inputs require gradients as the graph was processed for, BoundInputs).")
      .def("accept", &GraphInputs::accept, "call"_a, "bind_again may take calls of these sizes.")
      .def(
          "bind_again",
          [](const GraphInputs& self, const CallSchema& schema, nb::tuple args, nb::dict kwargs,
             int64_t handles) -> nb::object {
            CallTensors call;
            BoundInputs bound(self.spare());
            if (!self.bind_again(schema, args, kwargs, handles, call, bound)) return nb::none();
            return nb::make_tuple(nb::cast(std::move(call)), nb::cast(std::move(bound)));
          },
          "schema"_a, "args"_a, "kwargs"_a, "handles"_a,
          "(CallTensors, BoundInputs) of a call that is like one before it in all that is checked, else None.")
      .def("overlaps", &GraphInputs::overlaps, "bound"_a);
}

}  // namespace lowtide::bindings
