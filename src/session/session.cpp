#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>

#include "base/check.h"
#include "grad/gradient.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "ops/rule.h"
#include "pack/csv.h"
#include "passes/optimize.h"
#include "plan/plan.h"
#include "runtime/binding.h"
#include "session/gradient_sources.h"
#include "session/plan_report.h"

namespace lowtide {

// Named like a pass, since users bisect with it.
static constexpr std::string_view kRebuild = "rebuild";

struct Session::Impl {
  SessionOptions options;
  std::vector<GraphInput> inputs;
  std::vector<std::string> input_names;
  std::string captured_text, lowered_text, forward_text, training_text;
  std::vector<KernelChoice> choices;
  SessionReport report;
  std::unique_ptr<Executor> executor;
  Graph functional, training;  // of an observed session
  std::vector<Counterpart> counterparts;
  std::vector<Sight> sights;
  Graph before_memory;     // the training graph before the memory optimizer
  PlanResult plan_before;  // its plan
  std::unique_ptr<MemoryOptimizer> memory_optimizer;
  Selection selection;
  std::vector<int> saved_inputs, saved_outputs, updated_inputs, grad_outputs, gradient_targets;
  std::vector<std::vector<int>> sources_of_inputs, gradient_sources;

  // Runs a stage and notes how long it took.
  template <class Stage>
  auto timed(const char* name, Stage&& stage) {
    const auto begin = std::chrono::steady_clock::now();
    auto note = [&] {
      report.seconds.emplace_back(name,
                                  std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    };
    if constexpr (std::is_void_v<decltype(stage())>) {
      stage();
      note();
    } else {
      auto result = stage();
      note();
      return result;
    }
  }
  bool rebuilds() const {
    return std::find(options.disabled_passes.begin(), options.disabled_passes.end(), kRebuild) ==
           options.disabled_passes.end();
  }
  MemoryOptions memory_options(std::string_view config, std::string_view probe_config, int level) const {
    MemoryOptions result;
    result.requests = parse_memory_config(config);
    result.level = level;
    result.probe = parse_probe_config(probe_config);
    result.pure_calls.insert(options.pure_calls.begin(), options.pure_calls.end());
    result.rebuild = rebuilds();
    return result;
  }
  void check_observed() const {
    LT_USER_CHECK(ErrorKind::kInvalidArgument, options.observed, "the session was not made to be observed");
  }
  void optimize_memory(Graph& graph);
  void index_program();
};

// A graph of ops of ours (a user's text) needs no lowering.
static bool is_lowered(const Graph& graph) {
  for (NodeId id : graph.order())
    if (!is_call(graph.node(id).op)) return true;
  return graph.order().empty();
}

// A training graph in text form has its backward already.
static bool has_backward(const Graph& graph) {
  return std::any_of(graph.order().begin(), graph.order().end(),
                     [&](NodeId id) { return graph.node(id).op == Op::kYieldOp; });
}

Session::Session(Graph captured, SessionOptions options) : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.options = std::move(options);
  impl.captured_text = print(captured);
  Graph graph = impl.timed("lower", [&] {
    if (is_lowered(captured)) return std::move(captured);
    functionalise(captured);
    if (impl.options.observed) impl.functional = captured.clone();
    return lower(captured, &impl.report.lowering);
  });
  verify(graph);
  impl.lowered_text = print(graph);
  PassOptions passes;
  for (const std::string& name : impl.options.disabled_passes)
    if (name != kRebuild) passes.disabled.push_back(name);
  passes.cast_level = impl.options.cast_level;
  passes.cast_allow = impl.options.cast_allow;
  const bool is_forward = !has_backward(graph);
  std::vector<ValueId> gradients;
  if (is_forward) impl.timed("forward passes", [&] { optimize_forward(graph, passes); });
  impl.forward_text = print(graph);
  const Standing standing = impl.options.observed ? find_standing(graph, impl.report.lowering.values) : Standing();
  if (is_forward && impl.options.training) {
    GradientGraph built =
        impl.timed("gradient", [&] { return build_gradient_graph(graph, impl.options.output_needs_grad); });
    graph = std::move(built.graph);
    gradients = std::move(built.gradients);
    verify(graph);
  }
  impl.timed("training passes", [&] { optimize_training(graph, passes); });
  verify(graph);
  verify_types(graph);
  if (impl.options.training) impl.timed("memory", [&] { impl.optimize_memory(graph); });
  if (impl.options.training) impl.sources_of_inputs = lowtide::gradient_sources(graph);
  impl.training_text = print(graph);
  impl.inputs = graph.inputs();
  for (const GraphInput& input : graph.inputs()) impl.input_names.push_back(graph.value(input.value).name);
  const bool has_fault = !impl.options.fault_value.empty();
  PlanResult planned = impl.timed(
      "plan", [&] { return plan(graph, {impl.options.disabled_kernels, impl.options.observed || has_fault}); });
  impl.choices = std::move(planned.choices);
  ExecutorOptions running;
  running.guard = impl.options.guard;
  if (has_fault) running.fault = find_fault(graph, planned, impl.options.fault_value, impl.options.fault_factor);
  if (impl.options.observed) {
    impl.counterparts = lowtide::counterparts(impl.functional, standing, gradients, graph, planned.places);
    impl.sights = lowtide::sights(graph, planned.places);
    impl.training = graph.clone();
  }
  impl.executor = std::make_unique<Executor>(std::move(planned.program), running);
  impl.index_program();
}

Session::~Session() = default;

void Session::Impl::optimize_memory(Graph& graph) {
  const MemoryOptions wanted = memory_options(options.memory_config, options.probe_config, options.memory_level);
  before_memory = std::move(graph);
  plan_before = plan(before_memory, {options.disabled_kernels});
  memory_optimizer = std::make_unique<MemoryOptimizer>(before_memory, plan_before, wanted);
  selection = memory_optimizer->select();
  graph = memory_optimizer->apply(selection.chosen);
  verify(graph);
  verify_types(graph);
}

const MemoryOptimizer& Session::memory_optimizer() {
  Impl& impl = *impl_;
  LT_USER_CHECK(ErrorKind::kInvalidArgument, impl.options.training,
                "only a training session keeps anything for backward");
  return *impl.memory_optimizer;
}

const Selection& Session::memory_selection() const { return impl_->selection; }

MemoryStat Session::memory_stat(std::string_view config, std::string_view probe_config,
                                std::span<const int64_t> symbol_values, bool with_peaks) {
  const MemoryOptimizer* optimizer = &memory_optimizer();
  const Selection* selection = &impl_->selection;
  std::unique_ptr<MemoryOptimizer> considered;
  Selection of_considered;
  if (!config.empty() || !probe_config.empty()) {
    considered = std::make_unique<MemoryOptimizer>(impl_->before_memory, impl_->plan_before,
                                                   impl_->memory_options(config, probe_config, 0));
    of_considered = considered->select();
    optimizer = considered.get();
    selection = &of_considered;
  }
  DimValues dims;
  const std::vector<std::string> names = symbols();
  LT_USER_CHECK(ErrorKind::kInvalidArgument, names.size() == symbol_values.size(), "expected ", names.size(),
                " sizes (", join(names, ", "), "), found ", symbol_values.size());
  for (size_t i = 0; i < names.size(); ++i) dims[names[i]] = symbol_values[i];

  std::map<std::vector<int32_t>, int64_t> peaks;  // of selections: several tables ask for the same
  auto peak_of = [&](std::vector<int32_t> chosen) {
    std::sort(chosen.begin(), chosen.end());
    const auto [at, is_new] = peaks.try_emplace(std::move(chosen));
    if (is_new) at->second = peak_with(*optimizer, at->first, symbol_values);
    return at->second;
  };
  // The selection with these candidates in place of what it has for their nodes.
  auto peak_after = [&](const std::vector<int32_t>& candidates) {
    std::vector<int32_t> chosen = candidates;
    for (int32_t index : selection->chosen) {
      const NodeId entry = optimizer->candidates()[static_cast<size_t>(index)].entry;
      if (std::none_of(candidates.begin(), candidates.end(), [&](int32_t other) {
            return optimizer->candidates()[static_cast<size_t>(other)].entry == entry;
          }))
        chosen.push_back(index);
    }
    return peak_of(std::move(chosen));
  };
  MemoryStat stat;
  stat.rows = plan_rows(*optimizer, *selection, dims);
  if (with_peaks)
    for (PlanRow& row : stat.rows) row.peak_after = peak_after(row.candidates);
  stat.row_lines = plan_row_lines(stat.rows);
  stat.notes = plan_notes(dims);
  stat.insight = insight_summary(*optimizer, *selection, with_peaks ? PeakAfter(peak_after) : PeakAfter());
  stat.summary = optimizer_summary(*optimizer, *selection);
  stat.peak_without = peak_of({});
  stat.peak_with = peak_of(selection->chosen);
  stat.planned = static_cast<int>(peaks.size());
  stat.json = insight_json(*optimizer, *selection, stat.rows, dims, stat.peak_without, stat.peak_with);
  stat.notices = selection->warnings;
  return stat;
}

int64_t Session::peak_with(const MemoryOptimizer& optimizer, std::span<const int32_t> chosen,
                           std::span<const int64_t> symbol_values) const {
  const Graph graph = optimizer.apply(chosen);
  const PlanResult planned = plan(graph, {impl_->options.disabled_kernels});
  return bind_program(planned.program, {symbol_values.begin(), symbol_values.end()}, {}, false, true)
      ->report.peak_bytes;
}

void Session::Impl::index_program() {
  const Program& program = executor->program();
  for (size_t i = 0; i < program.inputs.size(); ++i)
    if (program.inputs[i].saved) saved_inputs.push_back(static_cast<int>(i));
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (program.outputs[i].saved) saved_outputs.push_back(static_cast<int>(i));
  for (const ProgramUpdate& update : program.updates) updated_inputs.push_back(update.input);
  grad_outputs.assign(program.gradient_outputs.begin(), program.gradient_outputs.end());
  gradient_targets.assign(program.gradient_targets.begin(), program.gradient_targets.end());
  for (int target : gradient_targets) gradient_sources.push_back(sources_of_inputs.at(static_cast<size_t>(target)));
  for (const ProgramStep& step : program.steps) {
    if (step.kind == StepKind::kHostCall) ++report.python_nodes;
    if (step.kind != StepKind::kKernel) continue;
    const Kernel* kernel = find_kernel(step.kernel);
    ++(kernel != nullptr && kernel->provider == std::string_view("aten") ? report.aten_nodes : report.native_nodes);
  }
}

const std::vector<GraphInput>& Session::inputs() const { return impl_->inputs; }
const std::vector<std::string>& Session::input_names() const { return impl_->input_names; }
const std::vector<int>& Session::saved_inputs() const { return impl_->saved_inputs; }
const std::vector<int>& Session::saved_outputs() const { return impl_->saved_outputs; }
const std::vector<int>& Session::updated_inputs() const { return impl_->updated_inputs; }
const std::vector<int>& Session::grad_outputs() const { return impl_->grad_outputs; }
const std::vector<int>& Session::gradient_targets() const { return impl_->gradient_targets; }
const std::vector<std::vector<int>>& Session::gradient_sources() const { return impl_->gradient_sources; }

void Session::set_call_handler(CallHandler handler) { impl_->executor->set_call_handler(std::move(handler)); }

std::vector<OwnedTensor> Session::forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                          std::shared_ptr<RunState>* state) {
  return impl_->executor->forward(inputs, random_key, state);
}

std::vector<OwnedTensor> Session::backward(RunState& state, std::span<const TensorRef> gradients,
                                           std::span<const TensorRef> saved_inputs) {
  return impl_->executor->backward(state, gradients, saved_inputs);
}

std::vector<Inspected> Session::take_inspected() { return impl_->executor->take_inspected(); }

void Session::observe(Observer observer) {
  impl_->check_observed();
  impl_->executor->observe(impl_->sights, std::move(observer));
}
const std::vector<Counterpart>& Session::counterparts() const {
  impl_->check_observed();
  return impl_->counterparts;
}
const Graph& Session::functional_graph() const {
  impl_->check_observed();
  return impl_->functional;
}
const Graph& Session::training_graph() const {
  impl_->check_observed();
  return impl_->training;
}

Executor& Session::executor() { return *impl_->executor; }
const Program& Session::program() const { return impl_->executor->program(); }
std::string Session::captured_text() const { return impl_->captured_text; }
std::string Session::lowered_text() const { return impl_->lowered_text; }
std::string Session::forward_text() const { return impl_->forward_text; }
std::string Session::before_memory_text() const {
  return impl_->options.training ? print(impl_->before_memory) : impl_->training_text;
}
std::string Session::training_text() const { return impl_->training_text; }
const SessionReport& Session::report() const { return impl_->report; }

std::string Session::plan_text(std::span<const int64_t> symbol_values) {
  return lowtide::plan_text(program(), impl_->executor->binding(symbol_values));
}

std::string Session::packing_csv(std::span<const int64_t> symbol_values) {
  return write_csv(packing_problem(program(), impl_->executor->binding(symbol_values), true, false));
}

std::string Session::explain() const {
  return join(impl_->choices, "", [](std::ostream& out, const KernelChoice& choice) {
    out << choice.node << ": " << choice.kernel;
    if (!choice.refusals.empty()) out << " (refused: " << join(choice.refusals, "; ") << ")";
    out << "\n";
  });
}

MemoryReport Session::memory(std::span<const int64_t> symbol_values) { return impl_->executor->memory(symbol_values); }

std::vector<std::string> Session::symbols() const {
  std::vector<std::string> names;
  for (const SymbolSource& symbol : program().symbols) names.push_back(symbol.name);
  return names;
}

}  // namespace lowtide
