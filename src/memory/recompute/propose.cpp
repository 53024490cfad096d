#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "memory/recompute/borders.h"
#include "memory/recompute/recompute.h"
#include "ops/rule.h"

namespace lowtide {

namespace {

// A recomputation of more nodes than this would be a second forward.
constexpr size_t kMostNodes = 128;

class Search {
 public:
  explicit Search(const MemoryContext& context)
      : context_(context), graph_(context.graph), stash_(context.stash), borders_(layer_borders(context)) {
    // Of batches that may be empty, those that are save nothing anyway.
    for (auto& [name, range] : not_empty_) range.low = std::max<int64_t>(range.low, 1);
  }

  // One candidate at most of each node that stashes something.
  using Plan = std::optional<Candidate> (Search::*)(const std::vector<const Stash*>& outputs) const;
  std::vector<Candidate> run(Plan plan) {
    std::map<int32_t, std::vector<const Stash*>> by_entry;  // position of the producer → its stashed outputs
    for (const Stash& stash : stash_.stashes()) by_entry[stash_.position(stash.producer)].push_back(&stash);
    std::vector<Candidate> candidates;
    for (const auto& [position, outputs] : by_entry) {
      if (!may_give_up(outputs)) continue;
      if (auto candidate = (this->*plan)(outputs)) candidates.push_back(std::move(*candidate));
    }
    return candidates;
  }

  std::optional<Candidate> plain_plan(const std::vector<const Stash*>& outputs) const {
    std::set<NodeId> nodes = {outputs[0]->producer};
    std::set<ValueId> missing;
    missing_operands(outputs[0]->producer, missing);
    while (!missing.empty())
      if (!grow(nodes, missing)) return std::nullopt;
    return make(outputs, nodes, {});
  }

  // The nearest cut through what leads to the entry whose values are together smaller than what is given up.
  std::optional<Candidate> compromised_plan(const std::vector<const Stash*>& outputs) const {
    if (is_call(graph_.node(outputs[0]->producer).op)) return std::nullopt;
    std::set<NodeId> nodes = {outputs[0]->producer};
    std::set<ValueId> missing;
    missing_operands(outputs[0]->producer, missing);
    Dim given = 0;
    for (const Stash* stash : outputs) given = given + stash->bytes;
    while (!missing.empty()) {
      Dim kept = 0;
      std::set<ValueId> bases;
      for (ValueId value : missing) bases.insert(stash_.base(value));
      for (ValueId base : bases) kept = kept + stash_.bytes(base);
      if (range_of(given - kept, not_empty_).low > 0) return make(outputs, nodes, bases);
      if (!grow(nodes, missing)) return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  bool is_allowed(NodeId id) const {
    const Node& node = graph_.node(id);
    if (context_.is_pure_call(node)) return context_.probe_costly;
    const RecomputePrice price = info(node.op).recompute;
    return price == RecomputePrice::kCheap || (price == RecomputePrice::kCostly && context_.probe_costly);
  }

  bool may_give_up(const std::vector<const Stash*>& outputs) const {
    const NodeId entry = outputs[0]->producer;
    if (!is_allowed(entry)) return false;
    // A call's outputs are read with its context, which cannot be made again for some of them only.
    if (is_call(graph_.node(entry).op))
      for (ValueId output : graph_.node(entry).outputs)
        if (output && stash_.is_free(output)) return false;
    return std::none_of(outputs.begin(), outputs.end(), [&](const Stash* stash) {
      // What a context reads stays, unless the call that made it is made again with its context.
      if (stash->pinned && !is_output_of_pure_call(*stash)) return true;
      return borders_.contains(stash->value);
    });
  }

  bool is_output_of_pure_call(const Stash& stash) const {
    if (!context_.is_pure_call(graph_.node(stash.producer))) return false;
    // As an input of another call it is held by that call's context.
    for (ValueId read : stash.reads)
      for (NodeId user : graph_.value(read).users) {
        const Node& reader = graph_.node(user);
        if (is_call_gradient(reader.op) && graph_.value(reader.inputs[0]).producer != stash.producer) return false;
      }
    return true;
  }

  // The operands of a node that are not there in backward.
  void missing_operands(NodeId id, std::set<ValueId>& missing) const {
    for (ValueId input : operands_again(graph_.node(id)))
      if (input && !stash_.is_alive(input)) missing.insert(input);
  }

  // Topologically last first.
  ValueId latest(const std::set<ValueId>& values) const {
    return *std::max_element(values.begin(), values.end(), [&](ValueId a, ValueId b) {
      return stash_.position(graph_.value(a).producer) < stash_.position(graph_.value(b).producer);
    });
  }

  // Takes the producer of the latest missing value into the subgraph; false if it may not be recomputed.
  bool grow(std::set<NodeId>& nodes, std::set<ValueId>& missing) const {
    const NodeId producer = graph_.value(latest(missing)).producer;
    if (!producer || !is_allowed(producer) || nodes.size() >= kMostNodes) return false;
    if (is_call(graph_.node(producer).op)) return false;  // only as an entry: its context comes with it
    nodes.insert(producer);
    for (ValueId output : graph_.node(producer).outputs)
      if (output) missing.erase(output);
    missing_operands(producer, missing);
    return true;
  }

  Candidate make(const std::vector<const Stash*>& outputs, const std::set<NodeId>& nodes,
                 const std::set<ValueId>& kept) const {
    Candidate candidate;
    candidate.entry = outputs[0]->producer;
    candidate.nodes.assign(nodes.begin(), nodes.end());
    std::sort(candidate.nodes.begin(), candidate.nodes.end(),
              [&](NodeId a, NodeId b) { return stash_.position(a) < stash_.position(b); });
    candidate.kept.assign(kept.begin(), kept.end());
    Dim given = 0;
    for (ValueId value : kept) candidate.kept_bytes = candidate.kept_bytes + stash_.bytes(value);
    for (const Stash* stash : outputs) given = given + stash->bytes;
    candidate.saving = given - candidate.kept_bytes;
    for (const Stash* stash : outputs)
      candidate.outputs.push_back({stash->value, stash->output_index, stash->bytes, saved_share(given, candidate)});
    for (NodeId id : candidate.nodes) {
      const Cost price = cost(graph_, id);
      candidate.extra_flops = candidate.extra_flops + price.flops;
      candidate.extra_bytes = candidate.extra_bytes + price.bytes;
    }
    candidate.layer = context_.layers.find(candidate.entry);
    return candidate;
  }

  // The share of the given bytes that is saved; where it depends on sizes, at 64 for each.
  double saved_share(const Dim& given, const Candidate& candidate) const {
    if (candidate.kept.empty()) return 1;
    std::set<std::string> symbols;
    collect_symbols(given, symbols);
    collect_symbols(candidate.kept_bytes, symbols);
    DimValues values;
    for (const std::string& symbol : symbols) {
      const auto range = graph_.ranges().find(symbol);
      values[symbol] =
          range == graph_.ranges().end() ? 64 : std::clamp<int64_t>(64, range->second.low, range->second.high);
    }
    const double all = static_cast<double>(evaluate(given, values));
    return all > 0 ? 1 - static_cast<double>(evaluate(candidate.kept_bytes, values)) / all : 0;
  }

  const MemoryContext& context_;
  const Graph& graph_;
  const StashAnalysis& stash_;
  const std::set<ValueId> borders_;
  DimRanges not_empty_ = context_.graph.ranges();
};

}  // namespace

std::vector<ValueId> operands_again(const Node& node) {
  std::vector<ValueId> inputs = node.inputs;
  for (size_t i = static_cast<size_t>(info(node.op).first_update); i < inputs.size(); ++i) inputs[i] = {};
  return inputs;
}

static std::vector<Candidate> propose_plain(const MemoryContext& context) {
  return Search(context).run(&Search::plain_plan);
}
static std::vector<Candidate> propose_compromised(const MemoryContext& context) {
  return Search(context).run(&Search::compromised_plan);
}

const Strategy strategy::recompute = {.name = "Recompute",
                                      .description = "recompute",
                                      .code = 1,
                                      .level = 1,
                                      .is_ortmodules = true,
                                      .propose = propose_plain,
                                      .apply = run_again};
const Strategy strategy::recompute_with_compromise = {.name = "RecomputeWithCompromise",
                                                      .description = "recompute with compromise",
                                                      .code = 2,
                                                      .level = 2,
                                                      .is_ortmodules = true,
                                                      .propose = propose_compromised,
                                                      .apply = run_again};
}  // namespace lowtide
