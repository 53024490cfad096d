#include "session/stages.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "grad/gradient.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "lower/split_complex.h"
#include "memory/late_plan.h"
#include "memory/peak.h"
#include "ops/rule.h"
#include "passes/optimize.h"
#include "report/config.h"
#include "schedule/early_gathers.h"
#include "schedule/lifetimes.h"
#include "schedule/order.h"
#include "session/fault.h"
#include "session/gradient_sources.h"

namespace lowtide {

// Default strategies are switched off as passes are, since users bisect with both.
static bool is_default_strategy(const std::string& name) {
  return std::any_of(strategies().begin(), strategies().end(), [&](const Strategy* strategy) {
    return strategy->is_default() && strategy->default_name == name;
  });
}

// The name by which users switch the choice of an order off.
static constexpr std::string_view kScheduleOrder = "schedule_order";

static bool is_off(const SessionOptions& options, std::string_view name) {
  return std::find(options.disabled_passes.begin(), options.disabled_passes.end(), name) !=
         options.disabled_passes.end();
}

MemoryOptions memory_options(const SessionOptions& options, std::string_view config, std::string_view probe_config,
                             int level) {
  MemoryOptions result;
  ask(result, level, config);
  result.probe = parse_probe_config(probe_config);
  result.pure_calls.insert(options.pure_calls.begin(), options.pure_calls.end());
  result.cast_again = options.cast_level > 0;
  std::copy_if(options.disabled_passes.begin(), options.disabled_passes.end(), std::back_inserter(result.disabled),
               is_default_strategy);
  return result;
}

// A graph of ops of ours (a user's text) needs no lowering. Captured ones have calls, and collectives before them.
static bool is_lowered(const Graph& graph) {
  for (NodeId id : graph.order())
    if (const Op op = graph.node(id).op; !is_call(op) && !is_collective(op)) return true;
  return graph.order().empty();
}

// A training graph in text form has its backward already.
static bool has_backward(const Graph& graph) {
  return std::any_of(graph.order().begin(), graph.order().end(),
                     [&](NodeId id) { return is_yield(graph.node(id).op); });
}

static PassOptions pass_options(const SessionOptions& options) {
  PassOptions passes;
  for (const std::string& name : options.disabled_passes)
    if (!is_default_strategy(name) && name != kScheduleOrder) passes.disabled.push_back(name);
  passes.cast_level = options.cast_level;
  passes.cast_allow = options.cast_allow;
  passes.label_sparsity = options.label_sparsity;
  passes.padding_sparsity = options.padding_sparsity;
  return passes;
}

Graph Stages::keep_less(Graph graph, const SessionOptions& options) {
  if (!options.training) return graph;
  memory_optimizer.reset();  // it looks at what changes here
  before_memory = std::move(graph);
  plan_before = plan(before_memory, {options.disabled_kernels});
  memory_optimizer = std::make_unique<MemoryOptimizer>(
      before_memory, plan_before,
      memory_options(options, has_budget(options) ? "" : options.memory_config, options.probe_config,
                     has_budget(options) ? 0 : options.memory_level));
  selection = select(*memory_optimizer);
  return memory_optimizer->apply(selection.chosen);
}

// What an order was judged by were lives alone: the peak that is true counts copies, scratch and packing too.
static bool needs_less(const Program& program, const Program& than, const std::vector<DimValues>& samples) {
  const auto now = planned_memory_at(program, samples), before = planned_memory_at(than, samples);
  bool is_less = false;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!now[i] || !before[i]) continue;
    if (now[i]->peak_bytes > before[i]->peak_bytes) return false;
    is_less = is_less || now[i]->peak_bytes < before[i]->peak_bytes;
  }
  return is_less;
}

void Stages::make_plan(Graph& graph, const SessionOptions& options) {
  const PlanOptions plan_options{options.disabled_kernels, options.observed || wants_fault(options)};
  planned = plan(graph, plan_options);
  if (plan_options.list_places) return;
  if (std::optional<LatePlan> late =
          plan_late(graph, planned.program, plan_options, sample_sizes(graph), has_budget(options))) {
    graph = std::move(late->graph);
    planned = std::move(late->plan);
  }
}

Stages::Stages(Graph captured, const SessionOptions& options) {
  if (!options.prices.empty()) prices = Prices::parse(options.prices);
  // Runs a stage and notes how long it took.
  auto timed = [&](const char* name, auto&& stage) {
    const auto begin = std::chrono::steady_clock::now();
    stage();
    seconds.emplace_back(name, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  };
  if (!options.prices.empty()) prices = Prices::parse(options.prices);
  const PassOptions passes = pass_options(options);
  const PlanOptions plan_options{options.disabled_kernels};
  if (options.observed) observation = std::make_unique<Observation>();
  Replacements replacements;  // where somebody observes
  ForwardValues forward_values;
  std::vector<ValueId> gradients;
  Graph graph;
  timed("lower", [&] {
    const bool lowered = is_lowered(captured);
    if (!lowered) {
      functionalise(captured);
      split_complex(captured);
    }
    if (!lowered && observation) observation->functional = captured.clone();
    graph = lowered ? std::move(captured) : lower(captured, &lowering, broken_lowering(options));
  });
  verify(graph);
  verify_types(graph);  // passes and rules take the types of a captured text for right
  lowered_text = print(graph);
  if (observation) graph.follow(&replacements);
  const bool is_forward = !has_backward(graph);
  std::vector<std::vector<int>> led_to;
  if (is_forward && options.training) led_to = outputs_led_to(graph);
  if (is_forward) timed("forward passes", [&] { optimize_forward(graph, passes); });
  forward_text = print(graph);
  if (observation) forward_values = find_forward_values(graph, lowering.values, replacements);
  if (is_forward && options.training) {
    timed("gradient", [&] {
      GradientGraph built = build_gradient_graph(graph, options.output_needs_grad);
      graph = std::move(built.graph);
      gradients = std::move(built.gradients);
      if (observation) graph.follow(&replacements);
    });
    verify(graph);
  }
  timed("training passes", [&] { optimize_training(graph, passes); });
  graph.follow(nullptr);
  verify(graph);
  verify_types(graph);
  Graph in_program_order = std::move(graph);
  timed("memory", [&] { graph = keep_less(in_program_order.clone(), options); });
  if (!is_off(options, kScheduleOrder))
    timed("schedule", [&] {
      const std::vector<DimValues> samples = sample_sizes(in_program_order);
      const PlanResult planned_so = plan(in_program_order, plan_options);
      std::vector<NodeId> order =
          find_order(in_program_order, samples, find_takeovers(in_program_order, planned_so.value_buffers));
      if (order == in_program_order.order()) return;
      Graph ordered = in_program_order.clone();
      ordered.set_order(std::move(order));
      Graph after = keep_less(std::move(ordered), options);
      if (needs_less(plan(after, plan_options).program, plan(graph, plan_options).program, samples)) {
        graph = std::move(after);
      } else {
        graph = keep_less(std::move(in_program_order), options);
      }
    });
  if (!has_budget(options)) begin_gathers_early(graph);
  verify(graph);
  verify_types(graph);
  if (options.training) {
    gradient_sources = is_forward ? lowtide::gradient_sources(graph, led_to) : lowtide::gradient_sources(graph);
    gradient_reads = lowtide::gradient_reads(graph);
  }
  timed("plan", [&] { make_plan(graph, options); });
  training_text = print(graph);
#ifdef LOWTIDE_TEST_FAULTS
  if (wants_fault(options)) hooks.push_back(fault_hooks(graph, planned, options));
#endif
  if (observation) {
    observation->value_map =
        value_map(observation->functional, forward_values, gradients, replacements, graph, planned.places);
    observation->probes = probes(graph, planned.places);
    observation->training = std::move(graph);
  }
}

}  // namespace lowtide
