#include "memory/budget/model.h"

#include <algorithm>
#include <set>

#include "memory/compress/cost.h"
#include "memory/recompute/recompute.h"
#include "ops/rule.h"
#include "schedule/live_bytes.h"

namespace lowtide {

namespace {

class Reader {
 public:
  Reader(const MemoryContext& context, const StashAnalysis& stash, const PlanResult& plan, const Binding& binding)
      : context_(context),
        graph_(context.graph),
        stash_(stash),
        plan_(plan),
        binding_(binding),
        ranges_(context.graph) {}

  StepModel run(const DimValues& dims, const Prices& prices, const std::vector<Candidate>& defaults) {
    const std::vector<NodeId>& order = graph_.order();
    const size_t positions = order.size();
    model_.positions = static_cast<int32_t>(positions);
    model_.yield = graph_.yield() ? stash_.position(graph_.yield()) : model_.positions;
    number_values();
    model_.takeovers.resize(positions);
    model_.scratch.assign(positions, 0);
    model_.copies.assign(positions, 0);
    for (size_t i = 0; i < positions; ++i)
      read_node(static_cast<int32_t>(i), prices.milliseconds(graph_, order[i], dims));
    read_outputs();
    read_program();
    for (ModelValue& value : model_.values)
      if (value.is_optional) find_packed_form(value, dims, prices);
    for (const Candidate& candidate : defaults)
      for (const GivenUp& output : candidate.outputs) value_of(output.value).is_default = true;
    return std::move(model_);
  }

 private:
  // The planned bytes of the value, as the plan that keeps everything has them.
  int64_t bytes_of(ValueId owner) const {
    const int32_t buffer = plan_.value_buffers[owner.at()];
    if (buffer < 0) return 0;
    const BufferKind kind = plan_.program.buffers[static_cast<size_t>(buffer)].kind;
    const bool is_planned = kind == BufferKind::kArena || kind == BufferKind::kGradient;
    return is_planned ? padded_bytes(binding_.buffer_bytes[static_cast<size_t>(buffer)]) : 0;
  }

  void number_values() {
    numbers_.assign(graph_.value_count(), -1);
    const auto number = [&](ValueId value) {
      if (!value || stash_.base(value) != value || numbers_[value.at()] >= 0) return;
      if (graph_.type(value).dtype == DType::kContext) return;
      numbers_[value.at()] = static_cast<int32_t>(model_.values.size());
      ModelValue each;
      each.value = value;
      each.bytes = bytes_of(value);
      model_.values.push_back(each);
    };
    for (NodeId id : graph_.order())
      for (ValueId output : graph_.node(id).outputs) number(output);
  }
  int32_t number_of(ValueId value) const { return value ? numbers_[stash_.base(value).at()] : -1; }
  ModelValue& value_of(ValueId value) { return model_.values[static_cast<size_t>(number_of(value))]; }

  // What forward writes over is not there any more when a node would read it again.
  bool is_written_over(ValueId value) const { return value && number_of(value) < 0 && !stash_.is_free(value); }
  bool may_run_again(const Node& node) const {
    if (is_call(node.op) || (info(node.op).recompute == RecomputePrice::kNever && !is_gather(node.op))) return false;
    const std::vector<ValueId> operands = operands_again(node);
    return std::none_of(operands.begin(), operands.end(), [&](ValueId value) { return is_written_over(value); });
  }

  void find_packed_form(ModelValue& value, const DimValues& dims, const Prices& prices) {
    if (const Stash* stash = stash_.find(value.value); stash != nullptr && stash->pinned) return;
    const std::optional<Width> width = narrower(graph_, ranges_, value.value);
    if (!width) return;
    const TensorType& type = graph_.type(value.value);
    const int64_t bytes = padded_bytes(evaluate(packed_bytes(numel(type.shape), width->bits), dims));
    if (bytes >= value.bytes) return;
    value.packed_bytes = bytes;
    value.packing_milliseconds = packing_milliseconds(type, *width, dims, prices);
  }

  void append_once(IdLists& lists, const std::vector<ValueId>& values) {
    std::set<int32_t> seen;
    for (ValueId value : values)
      if (const int32_t number = number_of(value); number >= 0 && seen.insert(number).second)
        lists.ids.push_back(number);
    lists.finish_item();
  }

  void read_node(int32_t position, double milliseconds) {
    const NodeId id = graph_.order()[static_cast<size_t>(position)];
    const Node& node = graph_.node(id);
    const bool in_forward = position < model_.yield;
    const bool shows_bytes = is_view(node.op) && node.outputs[0] && stash_.base(node.outputs[0]) != node.outputs[0];
    // A view moves no bytes: who reads it reads what it shows.
    append_once(model_.reads, shows_bytes ? std::vector<ValueId>{} : node.inputs);
    append_once(model_.reads_again, shows_bytes || !in_forward ? std::vector<ValueId>{} : operands_again(node));
    for (ValueId output : node.outputs) {
      const int32_t number = number_of(output);
      if (number < 0 || model_.values[static_cast<size_t>(number)].value != output) continue;
      model_.makes.ids.push_back(number);
      ModelValue& made = model_.values[static_cast<size_t>(number)];
      made.producer = position;
      made.last_in_forward = position;
      if (!in_forward || stash_.is_free(output)) continue;
      made.is_optional = true;
      const Stash* stash = stash_.find(output);
      made.may_run_again = may_run_again(node) && (stash == nullptr || !stash->pinned);
    }
    model_.makes.finish_item();
    for (int32_t number : model_.reads[static_cast<size_t>(position)]) {
      ModelValue& read = model_.values[static_cast<size_t>(number)];
      if (position <= model_.yield) read.last_in_forward = position;
      if (position > model_.yield && read.first_in_backward < 0) read.first_in_backward = position;
    }
    model_.milliseconds.push_back(milliseconds);
    model_.is_kept_alive.push_back(!in_forward || is_call(node.op) || node.outputs.empty());
    for (ValueId output : node.outputs) {
      if (number_of(output) < 0) continue;
      for (ValueId taken : plan_.may_take[output.at()])
        if (number_of(taken) >= 0 && value_of(taken).bytes == value_of(output).bytes)
          model_.takeovers[static_cast<size_t>(position)].push_back({number_of(output), number_of(taken)});
    }
  }

  void read_outputs() {
    for (const GraphOutput& output : graph_.outputs()) {
      const int32_t number = number_of(output.value);
      if (number < 0) continue;
      ModelValue& value = model_.values[static_cast<size_t>(number)];
      if (output.kind == OutputKind::kUpdate) value.held_until = std::max(value.held_until, model_.yield);
      const int32_t buffer = plan_.value_buffers[value.value.at()];
      const bool is_handed_over =
          buffer >= 0 && plan_.program.buffers[static_cast<size_t>(buffer)].kind == BufferKind::kGradient;
      if (output.kind == OutputKind::kGradient && is_handed_over) value.held_until = model_.positions - 1;
      if (value.producer >= 0) model_.is_kept_alive[static_cast<size_t>(value.producer)] = true;
    }
  }

  // What the graph does not tell: scratch, and copies that kernels ask for.
  void read_program() {
    const Program& program = plan_.program;
    const auto position = [&](int32_t step) { return plan_.step_positions[static_cast<size_t>(step)]; };
    std::vector<bool> is_of_value(program.buffers.size());
    for (int32_t buffer : plan_.value_buffers)
      if (buffer >= 0) is_of_value[static_cast<size_t>(buffer)] = true;
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      const ProgramBuffer& buffer = program.buffers[i];
      const bool is_planned = buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
      if (!is_planned || is_of_value[i] || plan_.step_positions.empty()) continue;
      const int64_t bytes = padded_bytes(binding_.buffer_bytes[i]);
      model_.fixed.push_back({position(buffer.first), position(buffer.last), bytes});
      model_.copies[static_cast<size_t>(position(buffer.first))] += bytes;
    }
    for (size_t i = 0; i < binding_.steps.size(); ++i) {
      int64_t& scratch = model_.scratch[static_cast<size_t>(position(static_cast<int32_t>(i)))];
      scratch = std::max(scratch, padded_bytes(binding_.steps[i].least_scratch_bytes));
    }
    model_.other_bytes = binding_.report.peak_bytes - binding_.report.arena_bytes;
  }

  const MemoryContext& context_;
  const Graph& graph_;
  const StashAnalysis& stash_;
  const PlanResult& plan_;
  const Binding& binding_;
  ValueRanges ranges_;
  std::vector<int32_t> numbers_;  // by value of the graph
  StepModel model_;
};

}  // namespace

StepModel model_step(const MemoryContext& context, const StashAnalysis& stash, const PlanResult& plan,
                     const Binding& binding, const DimValues& dims, const Prices& prices,
                     const std::vector<Candidate>& defaults) {
  return Reader(context, stash, plan, binding).run(dims, prices, defaults);
}

Kept kept_by_default(const StepModel& model) {
  Kept kept(model.values.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    const ModelValue& value = model.values[i];
    if (value.is_optional && value.first_in_backward >= 0 && !value.is_default) kept[i] = Keep::kWhole;
  }
  return kept;
}

}  // namespace lowtide
