#include "session/plans.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/parallel.h"
#include "bind/binding.h"
#include "bind/packing.h"
#include "memory/budget/stored_archive.h"
#include "memory/compress/cost.h"
#include "memory/peak.h"
#include "runtime/callers_tensors.h"
#include "runtime/largest_values.h"

namespace lowtide {

// Sizes whose plan is remembered.
static constexpr size_t kMostChosen = 4096;

Plans::Plans(Program program, const SessionOptions& options, ExecutorOptions running,
             std::function<const Stages&()> stages)
    : options_(options), running_(std::move(running)), stages_(std::move(stages)), places_(1) {
  running_.pending = pending_;
  executors_.push_back(std::make_unique<Executor>(std::move(program), running_));
}

Executor& Plans::serving(std::span<const TensorRef> inputs) {
  if (asked_plan_ >= 0) return serve({.plan = asked_plan_});
  if (!has_budget(options_) && !takes_knee()) return serve({});
  const Program& program = executors_[0]->program();
  // What is wrong with them is said where they are bound.
  if (inputs.size() != program.inputs.size()) return serve({});
  latest_left_ = left();
  const bool is_known = is_a_share_ || options_.memory_budget == 0 || pending_->now() < pending_->most();
  std::vector<int64_t> values = read_symbols(program, inputs);
  if (pending_->now() > 0 && values == pending_values_) latest_left_.plan = pending_choice_.plan;
  Executor& executor = serving(values, latest_left_, is_known);
  pending_choice_ = latest_;
  pending_values_ = std::move(values);
  pending_passing_bytes_ = std::max(latest_left_.passing_bytes, latest_.passing_bytes);
  return executor;
}

Plans::Left Plans::left() const {
  if (options_.memory_budget == 0 || is_a_share_) return {options_.memory_budget};
  // As many forwards are expected as there were at once before.
  const int64_t now = pending_->now(), to_come = at_once() - now;
  const bool has_halves = executors_[0]->program().regions.size() > 1;
  return {.bytes = std::max<int64_t>(options_.memory_budget - pending_->held_bytes(), 0),
          .forwards = to_come,
          .may_be_whole = now == 0 || !pending_choice_.in_two,
          .may_be_in_two = has_halves && (now == 0 ? to_come > 1 : pending_choice_.in_two),
          .passing_bytes = now == 0 ? 0 : pending_passing_bytes_};
}

int64_t Plans::at_once() const { return std::max(pending_->most(), pending_->now() + 1); }

Executor& Plans::serving(std::span<const int64_t> symbol_values) {
  if (asked_plan_ >= 0) return serve({.plan = asked_plan_});
  if (!has_budget(options_) && !takes_knee()) return serve({});
  return serving(symbol_values, latest_left_.bytes > 0 ? latest_left_ : Left{options_.memory_budget}, true);
}

Executor& Plans::serving(std::span<const int64_t> symbol_values, Left left, bool is_known) {
  const std::vector<int64_t> values(symbol_values.begin(), symbol_values.end());
  std::vector<int64_t> key = values;
  key.insert(key.end(), {left.bytes, left.forwards, left.may_be_whole, left.may_be_in_two, left.passing_bytes,
                         left.plan, refresh_parallel_threads()});
  if (separates_gradients() != chosen_for_separate_) {
    chosen_for_separate_ = !chosen_for_separate_;
    chosen_.clear();
  }
  auto at = chosen_.find(key);
  if (at == chosen_.end()) {
    if (chosen_.size() >= kMostChosen) chosen_.clear();
    at = chosen_.emplace(key, choose(values, left, is_known)).first;
  }
  return serve(at->second);
}

Executor& Plans::serve(Choice choice) {
  latest_ = choice;
  Executor& executor = of(choice.plan);
  executor.set_in_two(choice.in_two ? true : in_two_);
  return executor;
}

static bool has_collectives(const Graph& graph) {
  return std::any_of(graph.order().begin(), graph.order().end(),
                     [&](NodeId id) { return is_collective(graph.node(id).op); });
}

Executor& Plans::of(int32_t plan) {
  std::unique_ptr<Executor>& executor = executors_.at(static_cast<size_t>(plan));
  if (!executor) {
    ExecutorOptions running = running_;
    running.plan = plan;
    running.check_steps = {};  // planned just now, whoever made the first
    if (plan > 0 && has_collectives(stages_().before_memory)) rung_of(plan).program = served(plan).plan.program;
    LT_CHECK(program_of(plan).gradient_targets == executors_[0]->program().gradient_targets, "plan ", plan,
             " returns other gradients than the first");
    executor = std::make_unique<Executor>(program_of(plan), std::move(running));
    executor->set_call_handler(handler_);
    executor->set_in_two(in_two_);
    executor->set_step_arena(step_arena_, step_place_);
  }
  return *executor;
}

Rung& Plans::rung_of(int32_t plan) {
  const Place& place = places_.at(static_cast<size_t>(plan));
  return archives_[place.archive]->rungs[place.rung];
}

const Program& Plans::program_of(int32_t plan) {
  if (plan == 0) return executors_[0]->program();
  Rung& rung = rung_of(plan);
  if (rung.program.steps.empty())
    plan_rung(context(), archives_[places_[static_cast<size_t>(plan)].archive]->symbol_values, rung);
  return rung.program;
}

const ServedRung& Plans::served(int32_t plan) {
  const auto known = served_.find(plan);
  if (known != served_.end()) return known->second;
  program_of(plan);  // plans the rung
  const PlanArchive& archive = *archives_[places_[static_cast<size_t>(plan)].archive];
  return served_.emplace(plan, serve_rung(context(), archive, rung_of(plan))).first->second;
}

void Plans::set_call_handler(CallHandler handler) {
  handler_ = std::move(handler);
  for (const std::unique_ptr<Executor>& executor : executors_)
    if (executor) executor->set_call_handler(handler_);
}

void Plans::set_in_two(std::optional<bool> in_two) {
  if (in_two == in_two_) return;
  in_two_ = in_two;
  for (const std::unique_ptr<Executor>& executor : executors_)
    if (executor) executor->set_in_two(in_two_);
}

void Plans::set_step_arena(std::shared_ptr<StepArena> arena, size_t place) {
  step_arena_ = std::move(arena);
  step_place_ = place;
  for (const std::unique_ptr<Executor>& executor : executors_)
    if (executor) executor->set_step_arena(step_arena_, step_place_);
}

bool Plans::separates_gradients() const {
  return std::any_of(executors_.begin(), executors_.end(),
                     [](const auto& executor) { return executor && executor->separates_gradients(); });
}

std::unique_ptr<Binding> Plans::bound(int32_t plan, const std::vector<int64_t>& symbol_values) {
  const Program& program = program_of(plan);
  const std::unique_ptr<Executor>& executor = executors_[static_cast<size_t>(plan)];
  return bind_program(program, symbol_values, executor ? executor->pack_order() : program.pack_order, options_.guard);
}

int64_t Plans::needed(int32_t plan, const std::vector<int64_t>& symbol_values) {
  const Program& program = program_of(plan);
  const std::unique_ptr<Binding> binding = bound(plan, symbol_values);
  const int64_t together = binding->report.peak_bytes;
  if (!chosen_for_separate_) return together;
  const Packing& separate = packing_with(program, *binding, options_.guard, {.separate = true, .used_up = {}});
  return together - binding->packing.arenas[0].size_bytes + separate.arenas[0].size_bytes +
         separate.gradient_block_bytes;
}

MemoryReport Plans::needs_in_two(int32_t plan, const std::vector<int64_t>& symbol_values, int64_t forwards) {
  const Program& program = program_of(plan);
  const std::unique_ptr<Binding> binding = bound(plan, symbol_values);
  const Placement placement{.separate = true, .used_up = {}, .in_two = true};
  return memory_with(program, *binding, options_.guard, placement, forwards);
}

Plans::Choice Plans::choose(const std::vector<int64_t>& symbol_values, Left left, bool is_known) {
  if (takes_knee()) {
    read_stored();
    if (archives_.empty()) seek(symbol_values);
    return {static_cast<int32_t>(archives_.front()->knee)};  // plans have the numbers of the first archive's rungs
  }
  if (options_.memory_budget == 0)
    left.bytes = static_cast<int64_t>(options_.memory_budget_fraction * static_cast<double>(needed(0, symbol_values)));
  Fit least;
  if (left.plan >= 0)
    if (const std::optional<Fit> same = fit(left.plan, symbol_values, left, least))
      return within(*same, symbol_values, left);
  // Among plans that were sought one may be smaller than the first and faster: a larger budget takes no slower one.
  if (archives_.empty())
    if (const std::optional<Fit> first = fit(0, symbol_values, left, least)) return within(*first, symbol_values, left);
  LT_USER_CHECK(ErrorKind::kOutOfMemory, options_.training, "the forward pass needs ",
                with_commas(needed(0, symbol_values)), " bytes, the memory budget is ", with_commas(left.of_one()),
                ": without a backward pass nothing can be made again",
                largest_values(program_of(0), executors_[0]->binding(symbol_values)));
  read_stored();
  if (archives_.empty()) seek(symbol_values);
  std::optional<Fit> found = serving_within(symbol_values, left, least);
  const bool sought_here = std::any_of(archives_.begin(), archives_.end(),
                                       [&](const auto& archive) { return archive->symbol_values == symbol_values; });
  if (!found && !sought_here) {
    seek(symbol_values);
    found = serving_within(symbol_values, left, least);
  }
  if (found) return within(*found, symbol_values, left);
  if (is_known) refuse(least, symbol_values, left);
  Choice smallest = within(least, symbol_values, {.bytes = least.bytes, .forwards = left.forwards});
  smallest.over_bytes = least.bytes - left.bytes;
  return smallest;
}

std::optional<Plans::Fit> Plans::fit(int32_t plan, const std::vector<int64_t>& symbol_values, const Left& left,
                                     Fit& least) {
  const auto fits = [&](const Fit& found) {
    if (found.bytes < least.bytes) least = found;
    return found.bytes <= left.bytes;
  };
  if (left.may_be_whole) {
    const Fit whole{plan, false, left.forwards * needed(plan, symbol_values)};
    if (fits(whole)) return whole;
  }
  if (left.may_be_in_two) {
    const MemoryReport needs = needs_in_two(plan, symbol_values, left.forwards);
    // Where a pending one works in more, that is there in its backward.
    const int64_t more = std::max<int64_t>(left.passing_bytes - needs.passing_bytes, 0);
    const Fit halves{plan, true, needs.peak_bytes + more, needs.passing_bytes};
    if (fits(halves)) return halves;
  }
  return std::nullopt;
}

// One forward may have, beside what it needs, its part of what is left over.
Plans::Choice Plans::within(const Fit& fit, const std::vector<int64_t>& symbol_values, const Left& left) {
  if (!fit.in_two) return {fit.plan, left.of_one()};
  const int64_t one = needs_in_two(fit.plan, symbol_values, 1).peak_bytes;
  return {fit.plan, one + (left.bytes - fit.bytes) / left.forwards, 0, true, fit.passing_bytes};
}

std::optional<Plans::Fit> Plans::serving_within(const std::vector<int64_t>& symbol_values, const Left& left,
                                                Fit& least) {
  while (true) {
    least = {};
    const std::optional<Fit> found = fastest_within(symbol_values, left, least);
    if (!found || executors_[static_cast<size_t>(found->plan)]) return found;
    of(found->plan);  // from here on the program is what serves
  }
}

std::optional<Plans::Fit> Plans::fastest_within(const std::vector<int64_t>& symbol_values, const Left& left,
                                                Fit& least) {
  const std::vector<double> extra = extra_milliseconds(symbol_values);
  std::vector<int32_t> order(places_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return extra[static_cast<size_t>(a)] < extra[static_cast<size_t>(b)]; });
  for (int32_t plan : order)
    if (const std::optional<Fit> found = fit(plan, symbol_values, left, least)) return found;
  return std::nullopt;
}

std::vector<double> Plans::extra_milliseconds(const std::vector<int64_t>& symbol_values) const {
  const Stages& stages = stages_();
  const Graph& graph = stages.before_memory;
  const Program& program = executors_[0]->program();
  const DimValues dims = named_sizes(program, symbol_values);
  const Prices prices = stages.prices;
  ValueRanges ranges(graph);
  std::vector<double> of_node(graph.node_capacity(), -1);
  std::vector<double> result;
  for (size_t plan = 0; plan < places_.size(); ++plan) {
    const Place& place = places_[plan];
    const Rung& rung = archives_[place.archive]->rungs[place.rung];
    double sum = lowtide::extra_milliseconds(rung.row_blocks, dims);
    for (NodeId node : rung.again) {
      double& milliseconds = of_node[node.at()];
      if (milliseconds < 0) milliseconds = prices.milliseconds(graph, node, dims);
      sum += milliseconds;
    }
    for (ValueId value : archives_[place.archive]->rungs[place.rung].packed)
      sum += packing_milliseconds(graph.type(value), narrower(graph, ranges, value).value(), dims, prices);
    result.push_back(sum);
  }
  return result;
}

std::vector<int64_t> Plans::peaks(std::span<const int64_t> symbol_values) {
  const std::vector<int64_t> values(symbol_values.begin(), symbol_values.end());
  std::vector<int64_t> result;
  for (size_t plan = 0; plan < places_.size(); ++plan) result.push_back(needed(static_cast<int32_t>(plan), values));
  return result;
}

std::vector<PlanNeeds> Plans::needs(std::span<const int64_t> symbol_values) {
  const std::vector<int64_t> values(symbol_values.begin(), symbol_values.end());
  std::vector<PlanNeeds> result(places_.size());
  if (places_.size() > 1) {
    const std::vector<double> extra = extra_milliseconds(values);
    for (size_t plan = 0; plan < extra.size(); ++plan) result[plan].extra_milliseconds = extra[plan];
  }
  for (size_t plan = 0; plan < places_.size(); ++plan) {
    const auto number = static_cast<int32_t>(plan);
    if (plan > 0 && has_collectives(stages_().before_memory)) of(number);  // messages that travel may need more
    const Program& program = program_of(number);
    const std::unique_ptr<Binding> binding = bound(number, values);
    const bool has_halves = program.regions.size() > 1;
    result[plan].whole =
        memory_with(program, *binding, options_.guard, {.separate = chosen_for_separate_, .used_up = {}}, 1);
    result[plan].in_two = memory_with(program, *binding, options_.guard,
                                      {.separate = has_halves, .used_up = {}, .in_two = has_halves}, 1);
  }
  return result;
}

const PlanArchive& Plans::archive(std::span<const int64_t> symbol_values) {
  const std::vector<int64_t> values(symbol_values.begin(), symbol_values.end());
  read_stored();
  for (const std::unique_ptr<PlanArchive>& known : archives_)
    if (known->symbol_values == values) return *known;
  return seek(values);
}

const PlanArchive& Plans::seek(const std::vector<int64_t>& symbol_values) {
  const Stages& stages = stages_();
  LT_USER_CHECK(ErrorKind::kInvalidArgument, stages.memory_optimizer != nullptr,
                "only a training session keeps anything for backward");
  add(std::make_unique<PlanArchive>(
      build_archive({*stages.memory_optimizer, {options_.disabled_kernels}, options_.guard}, stages.plan_before,
                    symbol_values, stages.prices)));
  return *archives_.back();
}

void Plans::add(std::unique_ptr<PlanArchive> archive) {
  archives_.push_back(std::move(archive));
  for (size_t rung = 1; rung < archives_.back()->rungs.size(); ++rung) {
    places_.push_back({archives_.size() - 1, rung});
    executors_.emplace_back();
  }
}

void Plans::read_stored() {
  if (stored_.empty()) return;
  const Program& program = executors_[0]->program();
  for (const std::string& text : std::exchange(stored_, {})) {
    try {
      add(std::make_unique<PlanArchive>(parse_archive(text, stages_().before_memory, program)));
    } catch (const Error&) {
      continue;  // not of this graph: plans are sought anew
    }
  }
}

std::vector<std::string> Plans::stored_archives() {
  std::vector<std::string> texts = stored_;
  for (const std::unique_ptr<PlanArchive>& archive : archives_)
    texts.push_back(print(*archive, stages_().before_memory));
  return texts;
}

void Plans::refuse(const Fit& least, const std::vector<int64_t>& symbol_values, const Left& left) {
  const Program& program = program_of(least.plan);
  const std::unique_ptr<Binding> binding = bound(least.plan, symbol_values);
  // Of all that are to come where they share what they work in, else of one of them.
  const int64_t parts = least.in_two ? 1 : left.forwards;
  const bool is_part = options_.memory_budget > 0 && left.bytes / parts < options_.memory_budget && !is_a_share_;
  const std::string of = least.in_two ? ", what is left to " + std::to_string(left.forwards) : ", the part of one";
  const std::string part =
      is_part || least.in_two ? of + " of " + std::to_string(at_once()) + " forwards that wait for one backward" : "";
  LT_USER_FAIL(ErrorKind::kOutOfMemory, "no plan of this step keeps within the memory budget of ",
               with_commas(left.bytes / parts), " bytes", part, ": the least that ",
               least.in_two ? "they need" : "one needs", " at these sizes is ", with_commas(least.bytes / parts),
               largest_values(program, *binding));
}

}  // namespace lowtide
