#include "memory/layers.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "passes/rewrite.h"

namespace lowtide {

namespace {

// Member `index` of the repeated module `list`: "transformer.h" and 3 of "transformer.h.3.attn".
struct Member {
  std::string list;
  int index = 0;
  std::string path;
  std::string rest;  // ".attn"
};

// The members that a path goes through, outermost first.
std::vector<Member> members_of(const std::string& path) {
  std::vector<Member> members;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.size() < 7 &&
                           std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (is_number)
      members.push_back(
          {begin == 0 ? "" : path.substr(0, begin - 1), std::stoi(part), path.substr(0, end), path.substr(end)});
    begin = end + 1;
  }
  return members;
}

using Work = std::map<std::string, int>;  // what a member does: (place inside it, op) → how often

// How much of a member's work another one does too, 1 for all of it. The other may do more: the first layer of a T5
// makes the position bias of all.
double shared_work(const Work& work, const Work& other) {
  int shared = 0, all = 0;
  for (const auto& [what, count] : work) {
    const auto at = other.find(what);
    shared += std::min(count, at == other.end() ? 0 : at->second);
    all += count;
  }
  return all == 0 ? 0 : static_cast<double>(shared) / all;
}

constexpr double kSameWork = 0.6;  // a first or last layer may do a little less
constexpr int kLeastNodes = 2;

std::vector<NodeId> forward_nodes(const Graph& graph) {
  std::vector<NodeId> nodes;
  for (NodeId id : graph.order()) {
    if (graph.node(id).op == Op::kYieldOp) break;
    nodes.push_back(id);
  }
  return nodes;
}

// Lists whose members do the same work.
std::map<std::string, bool> repeated_lists(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::map<std::string, std::map<int, Work>> lists;
  for (NodeId id : nodes) {
    const Node& node = graph.node(id);
    if (is_view(node.op)) continue;
    for (const Member& member : members_of(node.origin.module))
      ++lists[member.list][member.index][concat(member.rest, " ", name(node.op))];
  }
  std::map<std::string, bool> repeated;
  for (const auto& [list, members] : lists) {
    // Against the member in the middle: the first and the last may differ.
    bool same = members.size() >= 2;
    auto middle = members.begin();
    std::advance(middle, static_cast<std::ptrdiff_t>(members.size() / 2));
    int nodes_of_middle = 0;
    for (const auto& [what, count] : middle->second) nodes_of_middle += count;
    same = same && nodes_of_middle >= kLeastNodes;
    for (const auto& [index, work] : members) same = same && shared_work(middle->second, work) >= kSameWork;
    repeated[list] = same;
  }
  return repeated;
}

Layers layers_from_origins(const Graph& graph, const std::vector<NodeId>& nodes) {
  const std::map<std::string, bool> repeated = repeated_lists(graph, nodes);
  Layers result;
  result.layer_of.assign(graph.node_capacity(), -1);
  std::map<std::string, int32_t> by_path;
  for (NodeId id : nodes)
    for (const Member& member : members_of(graph.node(id).origin.module)) {
      if (const auto known = repeated.find(member.list); known == repeated.end() || !known->second) continue;
      const auto [at, is_new] = by_path.emplace(member.path, static_cast<int32_t>(result.layers.size()));
      if (is_new) result.layers.push_back({member.path, {}});
      result.layers[static_cast<size_t>(at->second)].nodes.push_back(id);
      result.layer_of[id.at()] = at->second;
      break;
    }
  return result;
}

bool is_norm(Op op) { return op == Op::kLayerNormalization || op == Op::kSimplifiedLayerNormalization; }
bool is_attention(Op op) { return op == Op::kAttention || op == Op::kSoftmax || name(op) == "BiasSoftmax"; }
bool is_residual(Op op) { return op == Op::kAdd || name(op) == "BiasDropout"; }

class Structure {
 public:
  Structure(const Graph& graph, const std::vector<NodeId>& nodes) : graph_(graph), nodes_(nodes) {
    position_.assign(graph.node_capacity(), -1);
    for (size_t i = 0; i < nodes.size(); ++i) position_[nodes[i].at()] = static_cast<int32_t>(i);
  }

  // A layer opens with a norm over the residual stream whose result reaches attention before it is added back.
  Layers run() {
    std::vector<int32_t> openings;
    for (NodeId id : nodes_)
      if (is_norm(graph_.node(id).op) && opens_layer(id)) openings.push_back(position_[id.at()]);
    Layers result;
    result.layer_of.assign(graph_.node_capacity(), -1);
    for (size_t i = 0; i < openings.size(); ++i) {
      const int32_t end = i + 1 < openings.size() ? openings[i + 1] : end_of_last(openings.back());
      Layer layer{concat("layer ", i), {}};
      for (int32_t p = openings[i]; p < end; ++p) {
        layer.nodes.push_back(nodes_[static_cast<size_t>(p)]);
        result.layer_of[layer.nodes.back().at()] = static_cast<int32_t>(i);
      }
      result.layers.push_back(std::move(layer));
    }
    return result;
  }

 private:
  // The forward nodes that read the value or a view of it.
  void readers(ValueId value, std::vector<NodeId>& found) const {
    for (NodeId user : graph_.value(value).users) {
      if (position_[user.at()] < 0) continue;
      if (is_view(graph_.node(user).op)) {
        readers(graph_.node(user).outputs[0], found);
      } else {
        found.push_back(user);
      }
    }
  }

  // The Add that takes the norm's input past the norm, or -1.
  int32_t residual_add(NodeId norm) const {
    std::vector<NodeId> around;
    readers(base_of_views(graph_, graph_.node(norm).inputs[0]), around);
    int32_t first = -1;
    for (NodeId id : around) {
      if (is_residual(graph_.node(id).op) && position_[id.at()] > position_[norm.at()] &&
          (first < 0 || position_[id.at()] < first))
        first = position_[id.at()];
    }
    return first;
  }

  bool opens_layer(NodeId norm) const {
    const int32_t add = residual_add(norm);
    if (add < 0) return false;
    std::vector<NodeId> pending = {norm};
    std::vector<bool> seen(graph_.node_capacity(), false);
    while (!pending.empty()) {
      const NodeId id = pending.back();
      pending.pop_back();
      for (ValueId output : graph_.node(id).outputs) {
        if (!output) continue;
        for (NodeId user : graph_.value(output).users) {
          const int32_t at = position_[user.at()];
          if (at < 0 || at >= add || seen[user.at()]) continue;
          if (is_attention(graph_.node(user).op)) return true;
          seen[user.at()] = true;
          pending.push_back(user);
        }
      }
    }
    return false;
  }

  // The last layer ends where its second residual sum has been made: at the first norm after it that no residual goes
  // around, or at the end.
  int32_t end_of_last(int32_t opening) const {
    for (size_t p = static_cast<size_t>(opening) + 1; p < nodes_.size(); ++p)
      if (is_norm(graph_.node(nodes_[p]).op) && residual_add(nodes_[p]) < 0) return static_cast<int32_t>(p);
    return static_cast<int32_t>(nodes_.size());
  }

  const Graph& graph_;
  const std::vector<NodeId>& nodes_;
  std::vector<int32_t> position_;
};

}  // namespace

Layers find_layers(const Graph& graph) {
  const std::vector<NodeId> nodes = forward_nodes(graph);
  const bool has_origins =
      std::any_of(nodes.begin(), nodes.end(), [&](NodeId id) { return !graph.node(id).origin.module.empty(); });
  return has_origins ? layers_from_origins(graph, nodes) : Structure(graph, nodes).run();
}

}  // namespace lowtide
