#include "memory/layers.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

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

// The number that a text is, or -1.
int number_of(const std::string& text) {
  const bool is_number = !text.empty() && text.size() < 7 &&
                         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? std::stoi(text) : -1;
}

// The members that a path goes through, outermost first.
std::vector<Member> list_members(const std::string& path) {
  std::vector<Member> members;
  size_t begin = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    if (const int index = number_of(path.substr(begin, end - begin)); index >= 0)
      members.push_back({begin == 0 ? "" : path.substr(0, begin - 1), index, path.substr(0, end), path.substr(end)});
    begin = end + 1;
  }
  return members;
}

// Of modules that run several times ("albert.layer@2": its third call), the calls that a path goes through: one of
// "albert.layer" and, as its first, one of those without a number.
class Calls {
 public:
  Calls(const Graph& graph, const std::vector<NodeId>& nodes) {
    for (NodeId id : nodes) {
      const std::string& path = graph.node(id).origin.module;
      if (const size_t at = path.find('@'); at != std::string::npos) again_.insert(path.substr(0, at));
    }
  }

  std::vector<Member> operator()(const std::string& path) const {
    std::vector<Member> members;
    const size_t at = std::min(path.find('@'), path.size());
    for (size_t end = path.find('.'); end < at; end = path.find('.', end + 1)) add_first(path, end, members);
    if (at == path.size()) {
      add_first(path, at, members);
    } else {
      const size_t end = std::min(path.find('.', at), path.size());
      if (const int index = number_of(path.substr(at + 1, end - at - 1)); index >= 0)
        members.push_back({path.substr(0, at), index, path.substr(0, end), path.substr(end)});
    }
    return members;
  }

 private:
  void add_first(const std::string& path, size_t end, std::vector<Member>& members) const {
    const std::string module = path.substr(0, end);
    if (again_.contains(module)) members.push_back({module, 0, module, path.substr(end)});
  }

  std::set<std::string> again_;
};

using MembersOf = std::function<std::vector<Member>(const std::string&)>;

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
    if (is_yield(graph.node(id).op)) break;
    nodes.push_back(id);
  }
  return nodes;
}

// Lists whose members do the same work.
std::map<std::string, bool> repeated_lists(const Graph& graph, const std::vector<NodeId>& nodes,
                                           const MembersOf& members_of) {
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

Layers layers_from_origins(const Graph& graph, const std::vector<NodeId>& nodes, const MembersOf& members_of) {
  const std::map<std::string, bool> repeated = repeated_lists(graph, nodes, members_of);
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

bool is_norm(Op op) { return has_trait(op, Trait::kNorm); }
bool is_attention(Op op) { return has_trait(op, Trait::kAttentionScores); }
bool is_residual(Op op) { return has_trait(op, Trait::kResidual); }

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
  if (!has_origins) return Structure(graph, nodes).run();
  Layers layers = layers_from_origins(graph, nodes, list_members);
  // No list of layers, but perhaps one layer called many times.
  return layers.layers.empty() ? layers_from_origins(graph, nodes, Calls(graph, nodes)) : layers;
}

}  // namespace lowtide
