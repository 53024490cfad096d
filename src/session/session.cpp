#include "session/session.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/check.h"
#include "bind/binding.h"
#include "bind/planned_sizes.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "memory/peak.h"
#include "memory/plan_timeline.h"
#include "pack/csv.h"
#include "report/arena_picture.h"
#include "report/frontier.h"
#include "report/plan_report.h"
#include "report/step_model.h"
#include "report/value_story.h"
#include "runtime/callers_tensors.h"
#include "session/fault.h"
#include "session/gradient_sources.h"
#include "session/plans.h"
#include "session/stages.h"
#include "session/step_check.h"
#include "session/stored_plan.h"

namespace lowtide {

struct Session::Impl {
  SessionOptions options;
  Graph captured;  // where the plan was read
  std::vector<std::string> input_names;
  std::string captured_text;
  std::vector<KernelChoice> choices;
  SessionReport report;
  std::unique_ptr<Plans> plans;
  int64_t together = 0;  // see Session::set_memory_budget
  int64_t most_bytes() const { return together > 0 ? together : plans->most_bytes(); }
  std::unique_ptr<Stages> made;  // where the plan was read: once a report asks
  std::vector<RequestOutcome> outcomes;
  std::vector<std::string> warnings;
  std::vector<int> updated_inputs, grad_outputs, gradient_targets;
  std::vector<std::vector<int>> sources_of_inputs, gradient_sources;
  std::vector<int> gradient_reads;
  bool has_bounds = false;
  std::vector<int64_t> bounds;

  Stages& stages() {
    if (!made) made = std::make_unique<Stages>(captured.clone(), options);
    return *made;
  }
  void plan_anew(Graph graph);
  void take(StoredPlan stored);
  void index_program();
  DimValues dims_of(std::span<const int64_t> symbol_values) const;
};

Session::Session(Graph captured, SessionOptions options, std::string_view stored_plan)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.options = std::move(options);
  impl.captured_text = print(captured);
  for (const GraphInput& input : captured.inputs()) impl.input_names.push_back(captured.value(input.value).name);
  if (stored_plan.empty() || impl.options.observed || wants_fault(impl.options)) {
    impl.plan_anew(std::move(captured));
  } else {
    const auto begin = std::chrono::steady_clock::now();
    impl.take(parse_stored_plan(stored_plan, plan_key(impl.captured_text, impl.options), captured));
    impl.captured = std::move(captured);
    impl.report.seconds.emplace_back("stored plan",
                                     std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  impl.index_program();
}

Session::~Session() = default;

void Session::Impl::plan_anew(Graph graph) {
  made = std::make_unique<Stages>(std::move(graph), options);
  report.seconds = made->seconds;
  take({.program = std::move(made->planned.program),
        .choices = std::move(made->planned.choices),
        .lowering = std::move(made->lowering),
        .gradient_sources = std::move(made->gradient_sources),
        .gradient_reads = std::move(made->gradient_reads),
        .outcomes = made->selection.outcomes,
        .warnings = made->selection.warnings});
}

void Session::Impl::take(StoredPlan stored) {
  choices = std::move(stored.choices);
  report.lowering = std::move(stored.lowering);
  sources_of_inputs = std::move(stored.gradient_sources);
  gradient_reads = std::move(stored.gradient_reads);
  outcomes = std::move(stored.outcomes);
  warnings = std::move(stored.warnings);
  ExecutorOptions running;
  running.guard = options.guard;
  if (made) {
    running.hooks = made->hooks;
  } else {
    running.check_steps = check_steps;
  }
  plans = std::make_unique<Plans>(std::move(stored.program), options, std::move(running),
                                  [this]() -> const Stages& { return stages(); });
  plans->take_over(std::move(stored.archives));
}

std::string Session::stored_plan(std::span<const int64_t> symbol_values) {
  Impl& impl = *impl_;
  if (!impl.plans->of(0).program().step_symbols.empty()) return {};
  StoredPlan stored{.program = impl.plans->of(0).program(),
                    .choices = impl.choices,
                    .lowering = impl.report.lowering,
                    .gradient_sources = impl.sources_of_inputs,
                    .gradient_reads = impl.gradient_reads,
                    .outcomes = impl.outcomes,
                    .warnings = impl.warnings,
                    .archives = impl.plans->stored_archives()};
  stored.program.pack_order = impl.plans->of(0).binding(symbol_values).pack_order;
  return print(stored, plan_key(impl.captured_text, impl.options));
}

const MemoryOptimizer& Session::memory_optimizer() {
  Impl& impl = *impl_;
  LT_USER_CHECK(ErrorKind::kInvalidArgument, impl.options.training,
                "only a training session keeps anything for backward");
  return *impl.stages().memory_optimizer;
}

const std::vector<RequestOutcome>& Session::memory_outcomes() const { return impl_->outcomes; }
const std::vector<std::string>& Session::memory_warnings() const { return impl_->warnings; }

static std::string raised_text(int level, int64_t without, int64_t with) {
  if (with <= without) return "";
  const std::string what = level > 0 ? concat("ORTMODULE_MEMORY_OPT_LEVEL=", level) : "the configuration";
  return concat(what, " raises the planned peak from ", with_commas(without), " to ", with_commas(with), " bytes");
}

MemoryStat Session::memory_stat(std::string_view config, std::string_view probe_config,
                                std::span<const int64_t> symbol_values, bool with_peaks) {
  const MemoryOptimizer* optimizer = &memory_optimizer();
  const Stages& stages = impl_->stages();
  Selection selection = stages.selection;
  std::unique_ptr<MemoryOptimizer> considered;
  if (!config.empty() || !probe_config.empty()) {
    considered = std::make_unique<MemoryOptimizer>(stages.before_memory, stages.plan_before,
                                                   memory_options(impl_->options, config, probe_config, 0));
    selection = select(*considered);
    optimizer = considered.get();
  }
  const DimValues dims = impl_->dims_of(symbol_values);

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
    for (int32_t index : selection.chosen) {
      const NodeId entry = optimizer->candidates()[static_cast<size_t>(index)].entry;
      if (std::none_of(candidates.begin(), candidates.end(), [&](int32_t other) {
            return optimizer->candidates()[static_cast<size_t>(other)].entry == entry;
          }))
        chosen.push_back(index);
    }
    return peak_of(std::move(chosen));
  };
  MemoryStat stat;
  stat.peak_without = peak_of({});
  stat.peak_with = peak_of(selection.chosen);
  if (std::string raised = raised_text(optimizer->options().level, stat.peak_without, stat.peak_with); !raised.empty())
    selection.warnings.push_back(std::move(raised));
  stat.rows = plan_rows(*optimizer, selection, dims);
  if (with_peaks)
    for (PlanRow& row : stat.rows) row.peak_after = peak_after(row.candidates);
  stat.row_lines = plan_row_lines(stat.rows);
  stat.notes = plan_notes(dims);
  stat.insight = insight_summary(*optimizer, selection, with_peaks ? PeakAfter(peak_after) : PeakAfter());
  stat.summary = optimizer_summary(*optimizer, selection);
  stat.planned = static_cast<int>(peaks.size());
  stat.json = insight_json(*optimizer, selection, stat.rows, dims, stat.peak_without, stat.peak_with);
  stat.notices = std::move(selection.warnings);
  return stat;
}

DimValues Session::Impl::dims_of(std::span<const int64_t> symbol_values) const {
  const std::vector<SymbolSource>& symbols = plans->of(0).program().symbols;
  LT_USER_CHECK(ErrorKind::kInvalidArgument, fit_symbols(plans->of(0).program(), symbol_values), "expected ",
                symbols.size(), " sizes (",
                join(symbols, ", ", [](std::ostream& out, const SymbolSource& each) { out << each.name; }), "), found ",
                symbol_values.size());
  return named_sizes(plans->of(0).program(), symbol_values);
}

int64_t Session::timeline_peak(std::span<const int64_t> symbol_values) const {
  const Graph graph = parse(training_text());
  const PlanResult planned = plan(graph, {impl_->options.disabled_kernels});
  const std::unique_ptr<Binding> binding =
      bind_program(planned.program, {symbol_values.begin(), symbol_values.end()}, {}, false);
  return plan_timeline(graph, planned, *binding, impl_->dims_of(symbol_values)).peak();
}

std::vector<StepPrice> Session::step_prices(std::span<const int64_t> symbol_values, std::string_view prices) const {
  const Stages& stages = impl_->stages();
  Executor& executor = impl_->plans->serving(symbol_values);
  const auto price = [&](const Graph& graph, std::span<const int32_t> step_positions) {
    return lowtide::step_prices(graph, executor.program(), executor.binding(symbol_values), step_positions,
                                prices.empty() ? stages.prices : Prices::parse(prices), impl_->dims_of(symbol_values));
  };
  if (impl_->plans->latest_number() == 0) return price(parse(training_text()), stages.planned.step_positions);
  const ServedRung& served = impl_->plans->served(impl_->plans->latest_number());
  return price(served.graph, served.plan.step_positions);
}

int64_t Session::peak_with(const MemoryOptimizer& optimizer, std::span<const int32_t> chosen,
                           std::span<const int64_t> symbol_values) const {
  return planned_memory(optimizer.apply(chosen), {impl_->options.disabled_kernels}, symbol_values, impl_->options.guard)
      .peak_bytes;
}

std::string Session::frontier(std::span<const int64_t> symbol_values) {
  const PlanArchive& archive = impl_->plans->archive(symbol_values);
  return frontier_json(archive, impl_->stages().before_memory, impl_->stages().prices);
}

std::vector<int64_t> Session::plan_peaks(std::span<const int64_t> symbol_values) {
  return impl_->plans->peaks(symbol_values);
}

void Session::set_memory_budget(int64_t bytes, int64_t together) {
  impl_->together = together;
  impl_->plans->take_for_a_share(together > 0);
  if (bytes == impl_->options.memory_budget) return;
  impl_->options.memory_budget = bytes;
  impl_->plans->change_budget();
}

std::string Session::value_story(std::string_view name, std::span<const int64_t> symbol_values) {
  return lowtide::value_story(memory_optimizer().context(), impl_->stages().prices, impl_->dims_of(symbol_values),
                              name);
}

std::string Session::step_model(std::span<const int64_t> symbol_values) const {
  const Stages& stages = impl_->stages();
  LT_USER_CHECK(ErrorKind::kInvalidArgument, stages.memory_optimizer != nullptr,
                "only a training session keeps anything for backward");
  const Graph& graph = stages.before_memory;
  const Program& program = stages.plan_before.program;
  const std::unique_ptr<Binding> binding =
      bind_program(program, {symbol_values.begin(), symbol_values.end()}, program.pack_order, impl_->options.guard);
  const MemoryOptimizer& optimizer = *stages.memory_optimizer;
  return step_model_json(model_step(optimizer.context(), StashAnalysis(graph, stages.plan_before), stages.plan_before,
                                    *binding, impl_->dims_of(symbol_values), stages.prices, optimizer.defaults()),
                         graph);
}

std::string Session::raised_peak(std::span<const int64_t> symbol_values) const {
  if (!impl_->made || impl_->made->selection.chosen.empty()) return "";
  const Stages& stages = *impl_->made;
  return raised_text(impl_->options.memory_level, peak_with(*stages.memory_optimizer, {}, symbol_values),
                     peak_with(*stages.memory_optimizer, stages.selection.chosen, symbol_values));
}

void Session::Impl::index_program() {
  const Program& program = plans->of(0).program();
  has_bounds = !counted_sizes(program).empty();
  for (const ProgramUpdate& update : program.updates) updated_inputs.push_back(update.input);
  grad_outputs.assign(program.gradient_outputs.begin(), program.gradient_outputs.end());
  gradient_targets.assign(program.gradient_targets.begin(), program.gradient_targets.end());
  for (int target : gradient_targets) gradient_sources.push_back(sources_of_inputs.at(static_cast<size_t>(target)));
  for (const ProgramStep& step : program.steps) {
    if (step.kind == StepKind::kHostCall || step.kind == StepKind::kBegin) ++report.python_nodes;
    if (step.kind != StepKind::kKernel) continue;
    const Kernel* kernel = find_kernel(step.kernel);
    ++(kernel != nullptr && kernel->provider == std::string_view("aten") ? report.aten_nodes : report.native_nodes);
  }
}

const std::vector<std::string>& Session::input_names() const { return impl_->input_names; }

std::vector<int> Session::saved_inputs(int32_t plan) const {
  const Program& program = impl_->plans->of(plan).program();
  std::vector<int> saved;
  for (size_t i = 0; i < program.inputs.size(); ++i)
    if (program.inputs[i].saved) saved.push_back(static_cast<int>(i));
  return saved;
}

std::vector<int> Session::saved_outputs(int32_t plan) const {
  const Program& program = impl_->plans->of(plan).program();
  std::vector<int> saved;
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (program.outputs[i].saved) saved.push_back(static_cast<int>(i));
  return saved;
}

const std::vector<int>& Session::updated_inputs() const { return impl_->updated_inputs; }
const std::vector<int>& Session::grad_outputs() const { return impl_->grad_outputs; }
const std::vector<int>& Session::gradient_targets() const { return impl_->gradient_targets; }
const std::vector<std::vector<int>>& Session::gradient_sources() const { return impl_->gradient_sources; }
const std::vector<int>& Session::gradient_reads() const { return impl_->gradient_reads; }

std::vector<bool> Session::existing_gradients(const std::vector<bool>& given,
                                              const std::set<std::pair<int64_t, int64_t>>& missing) const {
  const std::vector<bool> of_inputs = lowtide::existing_gradients(impl_->stages().before_memory, given, missing);
  std::vector<bool> result;
  for (int target : impl_->gradient_targets) result.push_back(of_inputs.at(static_cast<size_t>(target)));
  return result;
}

void Session::set_call_handler(CallHandler handler) { impl_->plans->set_call_handler(std::move(handler)); }

std::vector<OwnedTensor> Session::forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                          std::shared_ptr<RunState>* state, HandOver hand_over) {
  Executor& serving = impl_->plans->serving(inputs);
  if (impl_->has_bounds && inputs.size() == serving.program().inputs.size()) {
    impl_->bounds = read_symbols(serving.program(), inputs);
    impl_->bounds.erase(impl_->bounds.begin(),
                        impl_->bounds.begin() + static_cast<std::ptrdiff_t>(serving.program().symbols.size()));
  }
  return serving.forward(inputs, random_key, state, impl_->most_bytes(), hand_over);
}

std::shared_ptr<RunState> Session::run_forward(std::span<const TensorRef> inputs, uint64_t random_key,
                                               HandOver hand_over) {
  Executor& serving = impl_->plans->serving(inputs);
  return serving.run_forward(inputs, random_key, impl_->most_bytes(), hand_over);
}

Gradients Session::backward(RunState& state, std::span<const TensorRef> gradients,
                            std::span<const TensorRef> saved_inputs) {
  return impl_->plans->of(state.plan()).backward(state, gradients, saved_inputs);
}

void Session::begin_backward(RunState& state, std::span<const TensorRef> gradients,
                             std::span<const TensorRef> saved_inputs) {
  impl_->plans->of(state.plan()).begin_backward(state, gradients, saved_inputs);
}

Gradients Session::run_next_region(RunState& state) { return impl_->plans->of(state.plan()).run_next_region(state); }

bool Session::is_done(const RunState& state) const { return impl_->plans->of(state.plan()).is_done(state); }

std::vector<Session::BackwardRegion> Session::backward_regions(int32_t plan) const {
  const Program& program = impl_->plans->of(plan).program();
  std::vector<BackwardRegion> result;
  for (size_t i = 1; i < program.regions.size(); ++i) {
    const ProgramRegion& region = program.regions[i];
    std::vector<bool> read(program.buffers.size());
    for (int32_t step = region.first; step < region.end; ++step)
      for (int32_t id : program.steps[static_cast<size_t>(step)].inputs)
        if (id >= 0) read[static_cast<size_t>(program.operands[static_cast<size_t>(id)].buffer)] = true;
    BackwardRegion found;
    found.gradients.assign(region.gradients.begin(), region.gradients.end());
    for (size_t b = 0; b < read.size(); ++b)
      if (const ProgramBuffer& buffer = program.buffers[b];
          read[b] && buffer.kind == BufferKind::kCaller && buffer.source >= 0)
        found.reads_inputs.push_back(static_cast<int>(buffer.source));
    for (size_t o = 0; o < program.outputs.size(); ++o) {
      const ProgramOperand& operand = program.operands[static_cast<size_t>(program.outputs[o].operand)];
      if (program.outputs[o].saved && read[static_cast<size_t>(operand.buffer)])
        found.reads_outputs.push_back(static_cast<int>(o));
    }
    result.push_back(std::move(found));
  }
  return result;
}

std::vector<Inspected> Session::take_inspected() { return impl_->plans->latest().take_inspected(); }

const Observation& Session::observation() const {
  LT_USER_CHECK(ErrorKind::kInvalidArgument, impl_->options.observed, "the session was not made to be observed");
  return *impl_->made->observation;
}
void Session::observe(Observer observer) { impl_->plans->of(0).observe(observation().probes, std::move(observer)); }

const std::vector<int64_t>& Session::latest_bounds() const { return impl_->bounds; }

Executor& Session::executor() { return impl_->plans->latest(); }
const Program& Session::program() const { return impl_->plans->latest().program(); }
std::string Session::captured_text() const { return impl_->captured_text; }
std::string Session::lowered_text() const { return impl_->stages().lowered_text; }
std::string Session::forward_text() const { return impl_->stages().forward_text; }
std::string Session::before_memory_text() const {
  return impl_->options.training ? print(impl_->stages().before_memory) : training_text();
}
std::string Session::training_text() const { return impl_->stages().training_text; }
const SessionReport& Session::report() const { return impl_->report; }

std::string Session::plan_text(std::span<const int64_t> symbol_values) {
  Executor& serving = impl_->plans->serving(symbol_values);
  return lowtide::plan_text(serving.program(), serving.binding(symbol_values));
}

std::string Session::arena_picture(std::span<const int64_t> symbol_values, int32_t plan) {
  Executor& serving = plan < 0 ? impl_->plans->serving(symbol_values) : impl_->plans->of(plan);
  return lowtide::arena_picture(serving.program(), serving.binding(symbol_values));
}

std::string Session::packing_csv(std::span<const int64_t> symbol_values) {
  Executor& serving = impl_->plans->serving(symbol_values);
  return write_csv(packing_problem(serving.program(), serving.binding(symbol_values), {}, false));
}

std::string Session::explain() const {
  return join(impl_->choices, "", [](std::ostream& out, const KernelChoice& choice) {
    out << choice.node << ": " << choice.kernel;
    if (!choice.refusals.empty()) out << " (refused: " << join(choice.refusals, "; ") << ")";
    out << "\n";
  });
}

int64_t Session::over_budget_bytes() const { return impl_->plans->over_bytes(); }

std::vector<PlanNeeds> Session::plan_needs(std::span<const int64_t> symbol_values) {
  return impl_->plans->needs(symbol_values);
}

void Session::set_plan(int32_t plan) { impl_->plans->set_plan(plan); }

void Session::set_in_two(std::optional<bool> in_two) { impl_->plans->set_in_two(in_two); }

void Session::set_step_arena(std::shared_ptr<StepArena> arena, size_t place) {
  impl_->plans->set_step_arena(std::move(arena), place);
}

bool Session::separates_gradients() const { return impl_->plans->separates_gradients(); }

int64_t Session::pending_forwards() const { return impl_->plans->pending_forwards(); }

std::optional<bool> Session::in_two() const { return impl_->plans->in_two(); }

MemoryReport Session::memory(std::span<const int64_t> symbol_values, std::optional<bool> in_two) {
  return impl_->plans->serving(symbol_values).memory(symbol_values, in_two);
}

std::string Session::collectives(std::span<const int64_t> symbol_values) {
  const Program& program = impl_->plans->serving(symbol_values).program();
  const auto name_of = [&](int32_t operand) {
    return program.buffers[static_cast<size_t>(program.operands[static_cast<size_t>(operand)].buffer)].name;
  };
  std::string text;
  for (const ProgramStep& step : program.steps) {
    const bool is_called = step.kind == StepKind::kHostCall || step.kind == StepKind::kBegin;
    const std::optional<Op> op = is_called ? find_op(step.target) : std::nullopt;
    if (op && is_collective(*op))
      text += concat(step.target, " ", name_of(step.inputs[0]), " ", name_of(step.outputs[0]), "\n");
    if (step.kind != StepKind::kWait) continue;
    // Those that have the same rows add them up once a reduction has ended.
    const ProgramStep& begun = program.steps[static_cast<size_t>(step.index)];
    if (const std::optional<Op> awaited = find_op(begun.target); awaited && is_reduction(*awaited))
      text += concat("wait ", name_of(begun.outputs[0]), "\n");
  }
  // Hooks of gradients may reduce them.
  for (const ProgramRegion& region : program.regions) {
    text += "region";
    for (int32_t gradient : region.gradients)
      text += concat(" ", name_of(program.gradients[static_cast<size_t>(gradient)]));
    text += "\n";
  }
  return text;
}

std::vector<std::string> Session::symbols() const {
  std::vector<std::string> names;
  for (const SymbolSource& symbol : program().symbols) names.push_back(symbol.name);
  return names;
}

}  // namespace lowtide
