#include "session/session.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>

#include "bindings.h"
#include "call_tensors.h"
#include "calls.h"
#include "dlpack.h"
#include "interrupt.h"
#include "process.h"
#include "session/step_plans.h"
#include "step_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {
namespace {

// One pending forward; its arena goes back when Python drops it.
struct Pending {
  std::shared_ptr<RunState> state;
  std::vector<bool> given;  // incoming gradients, in a backward by regions
};

// A Python object that any thread may drop.
struct Callback {
  explicit Callback(nb::object callback) : object(std::move(callback)) {}
  Callback(const Callback&) = delete;
  ~Callback() {
    nb::gil_scoped_acquire lock;
    object.reset();
  }
  nb::object object;
};

struct PythonSession {
  PythonSession(Graph captured, SessionOptions options, const std::string& stored_plan)
      : session(std::move(captured), std::move(options), stored_plan) {}
  Session session;
  std::shared_ptr<PythonCalls> calls;  // shared with the session's call handler

  // Runs one half of a step without Python's lock.
  template <class Body>
  void run(Body&& body) {
    try {
      InterruptWatch watch;
      nb::gil_scoped_release unlocked;
      body();
    } catch (const Error&) {
      if (calls) calls->rethrow();
      throw;
    }
  }
};

std::vector<TensorRef> views_of(nb::handle tensors) {
  std::vector<TensorRef> refs;
  refs.reserve(nb::len(tensors));
  for (nb::handle tensor : tensors) refs.push_back(view_of(tensor));
  return refs;
}

// A tensor, None, or for a view of an input (its index, sizes, strides, offset after its first element, the strides
// that the input has for that).
nb::object output_to_python(const OwnedTensor& output, ManyToPython& many) {
  const TensorRef& ref = output.ref;
  if (output.alias_input >= 0)
    return nb::make_tuple(output.alias_input, span_tuple(ref.sizes, ref.rank), span_tuple(ref.strides, ref.rank),
                          output.offset,
                          span_tuple(output.input_strides.data(), static_cast<int>(output.input_strides.size())));
  return ref.present ? many.next(ref, ref.data, output.owner) : nb::none();
}

nb::list outputs_to_python(const std::vector<OwnedTensor>& outputs) {
  nb::list items;
  ManyToPython many(outputs.size());
  for (const OwnedTensor& output : outputs) items.append(output_to_python(output, many));
  return items;
}

nb::tuple forward(PythonSession& self, nb::handle inputs, uint64_t random_key, bool keep, HandOver hand_over) {
  const bool bound = nb::isinstance<BoundInputs>(inputs);
  const std::vector<TensorRef> viewed = bound ? std::vector<TensorRef>() : views_of(inputs);
  const std::span<const TensorRef> tensors = bound ? nb::inst_ptr<BoundInputs>(inputs)->views : viewed;
  Pending pending;
  std::vector<OwnedTensor> outputs;
  self.run([&] { outputs = self.session.forward(tensors, random_key, keep ? &pending.state : nullptr, hand_over); });
  return nb::make_tuple(outputs_to_python(outputs), keep ? nb::cast(std::move(pending)) : nb::none());
}

Pending run_forward(PythonSession& self, nb::handle inputs, uint64_t random_key, HandOver hand_over) {
  const std::vector<TensorRef> tensors = views_of(inputs);
  Pending pending;
  self.run([&] { pending.state = self.session.run_forward(tensors, random_key, hand_over); });
  return pending;
}

// `gradients`: which they are. What only absent ones lead to has none, as in PyTorch; the engine counts them as zeros.
// Where all are absent, existing_gradients tells.
nb::object gradients_to_python(const PythonSession& self, const Gradients& results, std::span<const int> gradients,
                               const std::vector<bool>& given) {
  const size_t count = results.size();
  const bool all_alike = std::adjacent_find(given.begin(), given.end(), std::not_equal_to<>()) == given.end();
  // Of no source at all: zeros, as of floor.
  const auto is_reached = [&](const std::vector<int>& sources) {
    return all_alike ||
           std::any_of(sources.begin(), sources.end(), [&](int source) { return given[static_cast<size_t>(source)]; });
  };
  bool one_owner = true;
  for (size_t i = 1; i < count; ++i) one_owner = one_owner && results.owner(i) == results.owner(0);
  ManyToPython many(count, one_owner && count > 0 ? results.owner(0) : nullptr);
  const std::vector<std::vector<int>>& sources = self.session.gradient_sources();
  nb::object made = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!made.is_valid()) throw nb::python_error();
  for (size_t i = 0; i < count; ++i) {
    nb::object gradient = nb::none();
    if (is_reached(sources[gradients.empty() ? i : static_cast<size_t>(gradients[i])]))
      gradient = many.next(results.metadata(i), results.data(i), one_owner ? nullptr : results.owner(i));
    PyTuple_SetItem(made.ptr(), static_cast<Py_ssize_t>(i), gradient.release().ptr());
  }
  return made;
}

RunState& state_of(Pending& pending) {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, pending.state != nullptr, "this forward has had its backward");
  return *pending.state;
}

std::vector<bool> which_are_given(const std::vector<TensorRef>& gradients) {
  std::vector<bool> given;
  for (const TensorRef& gradient : gradients) given.push_back(gradient.present);
  return given;
}

nb::object backward(PythonSession& self, Pending& pending, nb::handle gradients, nb::handle saved_inputs) {
  RunState& state = state_of(pending);
  const std::vector<TensorRef> gradient_refs = views_of(gradients);
  const std::vector<TensorRef> saved = views_of(saved_inputs);
  std::optional<Gradients> results;
  self.run([&] { results = self.session.backward(state, gradient_refs, saved); });
  nb::object made = gradients_to_python(self, *results, {}, which_are_given(gradient_refs));
  pending.state.reset();
  return made;
}

void begin_backward(PythonSession& self, Pending& pending, nb::handle gradients, nb::handle saved_inputs) {
  const std::vector<TensorRef> gradient_refs = views_of(gradients);
  self.session.begin_backward(state_of(pending), gradient_refs, views_of(saved_inputs));
  pending.given = which_are_given(gradient_refs);
}

nb::object run_next_region(PythonSession& self, Pending& pending, const std::vector<int>& gradients) {
  RunState& state = state_of(pending);
  std::optional<Gradients> results;
  self.run([&] { results = self.session.run_next_region(state); });
  LT_USER_CHECK(ErrorKind::kInvalidArgument, results->size() == gradients.size(), "the region hands out ",
                results->size(), " gradients, expected ", gradients.size());
  nb::object made = gradients_to_python(self, *results, gradients, pending.given);
  if (self.session.is_done(state)) pending.state.reset();
  return made;
}

nb::list take_inspected(PythonSession& self) {
  nb::list result;
  for (const Inspected& each : self.session.take_inspected())
    result.append(nb::make_tuple(each.record, statistics_to_python(each.statistics)));
  return result;
}

nb::dict report(const PythonSession& self) {
  const SessionReport& report = self.session.report();
  nb::dict result, seconds;
  for (const auto& [stage, time] : report.seconds) seconds[stage.c_str()] = time;
  result["lowered"] = report.lowering.lowered;
  result["fallbacks"] = report.lowering.fallbacks;
  result["bugs"] = report.lowering.bugs;
  result["native_nodes"] = report.native_nodes;
  result["aten_nodes"] = report.aten_nodes;
  result["python_nodes"] = report.python_nodes;
  result["seconds"] = seconds;
  return result;
}

nb::dict memory(PythonSession& self, const std::vector<int64_t>& symbol_values, std::optional<bool> in_two) {
  return memory_to_python(self.session.memory(symbol_values, in_two));
}

std::string raised_peak(PythonSession& self, const std::vector<int64_t>& symbol_values) {
  nb::gil_scoped_release unlocked;
  return self.session.raised_peak(symbol_values);
}

nb::dict memory_stat(PythonSession& self, const std::string& config, const std::string& probe_config,
                     const std::vector<int64_t>& symbol_values, bool with_peaks) {
  MemoryStat stat;
  {
    nb::gil_scoped_release unlocked;
    stat = self.session.memory_stat(config, probe_config, symbol_values, with_peaks);
  }
  return stat_to_python(stat);
}

// The callback gets views of the engine's memory.
void observe(PythonSession& self, nb::object callback) {
  if (callback.is_none()) return self.session.observe({});
  self.session.observe(
      [callback = std::make_shared<Callback>(std::move(callback))](const std::string& name, const TensorRef& tensor) {
        nb::gil_scoped_acquire lock;
        callback->object(name, to_python(tensor, nullptr));
      });
}

nb::list value_map(const PythonSession& self) {
  nb::list result;
  for (const MappedValue& each : self.session.observation().value_map)
    result.append(nb::make_tuple(each.captured, each.value, each.gradient));
  return result;
}

// (step, op, class of kernels, dtype, flops, bytes, random numbers, predicted milliseconds) of each step that computes
nb::list step_prices(PythonSession& self, const std::vector<int64_t>& symbol_values, const std::string& prices) {
  nb::list result;
  for (const StepPrice& each : self.session.step_prices(symbol_values, prices))
    result.append(nb::make_tuple(each.step, std::string(name(each.op)), std::string(name(each.kernels)),
                                 std::string(name(each.dtype)), each.cost.flops, each.cost.bytes, each.cost.drawn,
                                 each.milliseconds));
  return result;
}

std::vector<std::string> layers(PythonSession& self) {
  std::vector<std::string> paths;
  for (const Layer& layer : self.session.memory_optimizer().context().layers.layers) paths.push_back(layer.path);
  return paths;
}

}  // namespace

void bind_session(nb::module_& module) {
  nb::enum_<HandOver>(module, "HandOver", "How the gradients of a step reach their caller.")
      .value("TOGETHER", HandOver::kTogether)
      .value("BY_REGION", HandOver::kByRegion)
      .value("BY_REGION_ONTO_OTHERS", HandOver::kByRegionOntoOthers);
  nb::class_<Pending>(module, "Pending", "A forward whose backward has not run.")
      .def_prop_ro(
          "plan", [](const Pending& self) { return self.state == nullptr ? 0 : self.state->plan(); },
          "Of the session's plans, the one that served the forward.");
  nb::class_<PythonSession>(module, "Session", "One planned graph; see src/session/session.h.")
      .def(
          "__init__",
          [](PythonSession* self, const Graph& captured, bool training, bool guard,
             std::vector<std::string> disabled_passes, std::vector<std::string> disabled_kernels,
             const std::vector<bool>& output_needs_grad, std::string memory_config, int memory_level,
             std::string probe_config, std::vector<std::string> pure_calls, int cast_level,
             std::vector<std::string> cast_allow, int64_t memory_budget, double memory_budget_fraction,
             bool memory_knee, bool label_sparsity, bool padding_sparsity, const std::string& stored_plan,
             bool observed, std::string prices, const std::pair<std::string, double>& fault) {
            SessionOptions options;
            options.training = training;
            options.guard = guard;
            options.disabled_passes = std::move(disabled_passes);
            options.disabled_kernels = std::move(disabled_kernels);
            options.output_needs_grad = output_needs_grad;
            options.memory_config = std::move(memory_config);
            options.memory_level = memory_level;
            options.probe_config = std::move(probe_config);
            options.pure_calls = std::move(pure_calls);
            options.cast_level = cast_level;
            options.cast_allow = std::move(cast_allow);
            options.memory_budget = memory_budget;
            options.memory_budget_fraction = memory_budget_fraction;
            options.memory_knee = memory_knee;
            options.label_sparsity = label_sparsity;
            options.padding_sparsity = padding_sparsity;
            options.observed = observed;
            options.prices = std::move(prices);
#ifdef LOWTIDE_TEST_FAULTS
            // A call of PyTorch's, or a value and a factor.
            if (fault.first.find("::") != std::string::npos)
              options.fault_lowering = fault.first;
            else
              std::tie(options.fault_value, options.fault_factor) = fault;
#else
            LT_USER_CHECK(ErrorKind::kInvalidArgument, fault.first.empty(),
                          "this build of lowtide injects no faults: tests do, in builds with LOWTIDE_TEST_FAULTS");
#endif
            Graph graph = captured.clone();
            nb::gil_scoped_release unlocked;
            new (self) PythonSession(std::move(graph), std::move(options), stored_plan);
          },
          "captured"_a, nb::kw_only(), "training"_a = true, "guard"_a = false,
          "disabled_passes"_a = std::vector<std::string>(), "disabled_kernels"_a = std::vector<std::string>(),
          "output_needs_grad"_a = std::vector<bool>(), "memory_config"_a = "", "memory_level"_a = 0,
          "probe_config"_a = "", "pure_calls"_a = std::vector<std::string>(), "cast_level"_a = 1,
          "cast_allow"_a = std::vector<std::string>(), "memory_budget"_a = 0, "memory_budget_fraction"_a = 0.0,
          "memory_knee"_a = false, "label_sparsity"_a = false, "padding_sparsity"_a = false, "stored_plan"_a = "",
          "observed"_a = false, "prices"_a = "", "fault"_a = std::pair<std::string, double>())
      .def(
          "stored_plan",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values) {
            nb::gil_scoped_release unlocked;
            return self.session.stored_plan(symbol_values);
          },
          "symbol_values"_a, "The plan as text, for another Session of this graph under these options.")
      .def("set_call_handler",
           [](PythonSession& self, nb::object handler) {
             self.calls = std::make_shared<PythonCalls>(std::move(handler));
             self.session.set_call_handler(self.calls->handler());
           })
      .def("forward", forward, "inputs"_a, "random_key"_a, "keep"_a, "hand_over"_a = HandOver::kTogether,
           "`inputs`: BoundInputs or a sequence of tensors. Returns (outputs, pending); an output is a tensor, or "
           "(input, sizes, strides, offset) for a view of an "
           "input.")
      .def("run_forward", run_forward, "inputs"_a, "random_key"_a, "hand_over"_a = HandOver::kTogether,
           "The forward half alone, for a further backward: writes into no input. Returns what is pending.")
      .def("backward", backward, "pending"_a, "gradients"_a, "saved_inputs"_a,
           "`saved_inputs`: the tensors at the places that `saved_inputs` names.")
      .def("begin_backward", begin_backward, "pending"_a, "gradients"_a, "saved_inputs"_a,
           "The same, region by region: the tensors stay where they are until the last one has run.")
      .def("run_next_region", run_next_region, "pending"_a, "gradients"_a,
           "`gradients`: what it hands out, as `backward_regions` has it. Returns them.")
      .def(
          "backward_regions",
          [](const PythonSession& self, int32_t plan) {
            nb::list regions;
            for (const Session::BackwardRegion& region : self.session.backward_regions(plan))
              regions.append(nb::make_tuple(region.gradients, region.reads_inputs, region.reads_outputs));
            return regions;
          },
          "plan"_a = 0,
          "Of the plan with this number, per region of backward: (gradients that it hands out, as indices into "
          "gradient_targets; the saved inputs that it reads; the saved outputs).")
      .def("observe", observe, "callback"_a.none(),
           "callback(name, tensor) for every value that the next steps make; the tensor is a view, valid in the call.")
      .def_prop_ro("value_map", value_map,
                   "(captured name, name of the value, name of its gradient), \"\" for what no step makes.")
      .def("functional_graph", [](const PythonSession& self) { return self.session.observation().functional.clone(); })
      .def("training_graph", [](const PythonSession& self) { return self.session.observation().training.clone(); })
      .def("take_inspected", take_inspected,
           "(record, statistics) of what the latest half of a step inspected, once; see statistics().")
      .def_prop_ro("input_names", [](const PythonSession& self) { return self.session.input_names(); })
      .def_prop_ro("saved_inputs", [](const PythonSession& self) { return self.session.saved_inputs(); })
      .def(
          "saved_by",
          [](const PythonSession& self, int32_t plan) {
            return nb::make_tuple(self.session.saved_inputs(plan), self.session.saved_outputs(plan));
          },
          "plan"_a, "(saved inputs, saved outputs) of the plan with this number.")
      .def_prop_ro("saved_outputs", [](const PythonSession& self) { return self.session.saved_outputs(); })
      .def_prop_ro("updated_inputs", [](const PythonSession& self) { return self.session.updated_inputs(); })
      .def_prop_ro("grad_outputs", [](const PythonSession& self) { return self.session.grad_outputs(); })
      .def_prop_ro("gradient_targets", [](const PythonSession& self) { return self.session.gradient_targets(); })
      .def_prop_ro("gradient_reads", [](const PythonSession& self) { return self.session.gradient_reads(); })
      .def_prop_ro("gradient_sources", [](const PythonSession& self) { return self.session.gradient_sources(); })
      .def(
          "existing_gradients",
          [](const PythonSession& self, const std::vector<bool>& given,
             const std::set<std::pair<int64_t, int64_t>>& missing) {
            return self.session.existing_gradients(given, missing);
          },
          "given"_a, "missing"_a)
      .def_prop_ro("symbols", [](const PythonSession& self) { return self.session.symbols(); })
      .def_prop_ro("latest_bounds", [](const PythonSession& self) { return self.session.latest_bounds(); })
      .def_prop_ro("report", report)
      .def("memory", memory, "symbol_values"_a, "in_two"_a = nb::none())
      .def(
          "collectives",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values) {
            nb::gil_scoped_release unlocked;
            return self.session.collectives(symbol_values);
          },
          "symbol_values"_a, "What processes do together in the plan that serves a call of these sizes, a line each.")
      .def(
          "timeline_peak",
          [](const PythonSession& self, const std::vector<int64_t>& symbol_values) {
            return self.session.timeline_peak(symbol_values);
          },
          "symbol_values"_a)
      .def(
          "frontier",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values) {
            nb::gil_scoped_release unlocked;
            return self.session.frontier(symbol_values);
          },
          "symbol_values"_a, "The plans between the fastest and the smallest, as JSON; see src/report/frontier.h.")
      .def(
          "step_model",
          [](const PythonSession& self, const std::vector<int64_t>& symbol_values) {
            return self.session.step_model(symbol_values);
          },
          "symbol_values"_a, "The step in numbers, as JSON; see src/report/step_model.h.")
      .def(
          "plan_peaks",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values) {
            nb::gil_scoped_release unlocked;
            return self.session.plan_peaks(symbol_values);
          },
          "symbol_values"_a, "The planned peak of every plan that was found so far, at these sizes.")
      .def(
          "set_memory_budget",
          [](PythonSession& self, int64_t bytes, int64_t together) { self.session.set_memory_budget(bytes, together); },
          nb::arg("bytes"), nb::arg("together") = 0, "Of further forwards; see src/session/session.h.")
      .def(
          "step_need",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values, std::optional<bool> in_two,
             bool is_pending,
             int64_t graph) { return need_of(self.session.memory(symbol_values, in_two), is_pending, graph); },
          "symbol_values"_a, nb::arg("in_two").none(), "is_pending"_a, "graph"_a,
          "StepNeed of one forward at these sizes. `graph`: whose gradients.")
      .def(
          "step_options",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values, bool is_pending, int64_t graph) {
            return options_of(self.session.plan_needs(symbol_values), is_pending, graph);
          },
          "symbol_values"_a, "is_pending"_a, "graph"_a,
          "StepOption of every plan that was found so far, at these sizes: of each the whole and the one in two.")
      .def(
          "set_plan", [](PythonSession& self, int32_t plan) { self.session.set_plan(plan); }, "plan"_a,
          "Which plan serves further forwards, whatever the budget; -1: as the budget says.")
      .def(
          "set_step_arena",
          [](PythonSession& self, std::shared_ptr<StepArena> arena, size_t place) {
            self.session.set_step_arena(std::move(arena), place);
          },
          nb::arg("arena").none(), "place"_a = 0)
      .def_prop_ro("separates_gradients", [](const PythonSession& self) { return self.session.separates_gradients(); })
      .def_prop_ro("in_two", [](const PythonSession& self) { return self.session.in_two(); })
      .def(
          "set_in_two", [](PythonSession& self, std::optional<bool> in_two) { self.session.set_in_two(in_two); },
          nb::arg("in_two").none())
      .def_prop_ro(
          "pending_forwards", [](const PythonSession& self) { return self.session.pending_forwards(); },
          "How many of its forwards wait for their backward.")
      .def_prop_ro("over_budget_bytes", [](const PythonSession& self) { return self.session.over_budget_bytes(); })
      .def(
          "value_story",
          [](PythonSession& self, const std::string& name, const std::vector<int64_t>& symbol_values) {
            return self.session.value_story(name, symbol_values);
          },
          "name"_a, "symbol_values"_a, "JSON of one value, see src/report/value_story.h.")
      .def("captured_text", [](const PythonSession& self) { return self.session.captured_text(); })
      .def("lowered_text", [](const PythonSession& self) { return self.session.lowered_text(); })
      .def("forward_text", [](const PythonSession& self) { return self.session.forward_text(); })
      .def("before_memory_text", [](const PythonSession& self) { return self.session.before_memory_text(); })
      .def("training_text", [](const PythonSession& self) { return self.session.training_text(); })
      .def(
          "plan_text",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values) {
            return self.session.plan_text(symbol_values);
          },
          "symbol_values"_a)
      .def(
          "arena_picture",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values, int32_t plan) {
            return self.session.arena_picture(symbol_values, plan);
          },
          "symbol_values"_a, "plan"_a = -1, "JSON of what lies where and when, see src/report/arena_picture.h.")
      .def(
          "packing_csv",
          [](PythonSession& self, const std::vector<int64_t>& symbol_values) {
            return self.session.packing_csv(symbol_values);
          },
          "symbol_values"_a)
      .def("memory_notices", [](PythonSession& self) { return self.session.memory_warnings(); })
      .def("raised_peak", raised_peak, "symbol_values"_a,
           "In words, that what is in force plans a higher peak than nothing would; empty: it does not.")
      .def(
          "memory_outcomes", [](PythonSession& self) { return outcomes_to_python(self.session.memory_outcomes()); },
          "(plan, requested count, found, applied) of each plan asked for.")
      .def("memory_stat", memory_stat, "config"_a, "probe_config"_a, "symbol_values"_a, "with_peaks"_a,
           "The memory optimizer's rows and tables; an empty config means the session's own.")
      .def("step_prices", step_prices, "symbol_values"_a, "prices"_a = "",
           "(step, op, class of kernels, dtype, flops, bytes, random numbers, predicted milliseconds) of each step; by "
           "the session's prices, or by these in text form.")
      .def("layers", layers, "Paths of the repeated layers that were found, in forward order.")
      .def_prop_ro("last_steps_ns", [](PythonSession& self) { return self.session.executor().last_steps_ns(); })
      .def("start_trace", [](PythonSession& self) { self.session.executor().start_trace(); })
      .def("stop_trace", [](PythonSession& self) { return self.session.executor().stop_trace(); })
      .def("program_text", [](const PythonSession& self) { return print(self.session.program()); })
      .def("explain", [](const PythonSession& self) { return self.session.explain(); });
}

}  // namespace lowtide::bindings
