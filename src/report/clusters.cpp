#include "report/clusters.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace lowtide {

std::string_view cluster_name(const Node& node) {
  if (is_aten_call(node.op)) return node.target;
  return name(node.op);
}

std::string cluster_of(const Graph& graph, const Candidate& candidate) {
  if (candidate.nodes.empty()) return concat(name(graph.node(candidate.entry).op), "+");
  return join(candidate.nodes, "",
              [&](std::ostream& out, NodeId node) { out << cluster_name(graph.node(node)) << "+"; });
}

std::vector<std::string> clusters_of(const Graph& graph, std::span<const Candidate> candidates) {
  std::vector<std::string> clusters;
  for (const Candidate& candidate : candidates) clusters.push_back(cluster_of(graph, candidate));
  return clusters;
}

std::vector<std::string> op_types(std::string_view cluster) {
  std::vector<std::string> types;
  for (size_t at = 0; at < cluster.size();) {
    const size_t end = std::min(cluster.find('+', at), cluster.size());
    if (end > at) types.emplace_back(cluster.substr(at, end - at));
    at = end + 1;
  }
  return types;
}

static bool moves_no_bytes(const std::string& type) {
  const std::optional<Op> op = find_op(type);
  return op && is_view(*op);
}

static std::string plain_name(const std::string& type) {
  if (type == "Gemm" || type == "FusedMatMul") return "MatMul";
  if (type == "BiasGelu" || type == "FastGelu") return "Gelu";
  if (type == "BiasSoftmax") return "Softmax";
  if (type == "BiasDropout" || type == "BitmaskDropout" || type == "BitmaskBiasDropout") return "Dropout";
  return type;
}

std::string canonical_cluster(std::string_view cluster) {
  std::string canonical, last;
  for (const std::string& type : op_types(cluster)) {
    if (moves_no_bytes(type)) continue;
    const std::string plain = plain_name(type);
    if (plain == "Add" && last == "MatMul") continue;  // the bias of a linear layer
    canonical += plain + "+";
    last = plain;
  }
  return canonical;
}

std::vector<std::string> absorbed_by(const Graph& graph, std::string_view cluster) {
  std::set<std::string> wanted;
  for (const std::string& type : op_types(canonical_cluster(cluster))) wanted.insert(type);
  std::set<std::string> found;
  if (wanted.empty()) return {};
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (is_yield(node.op)) break;
    std::set<std::string> inside;
    for (const std::string& type : op_types(concat(node.origin.note, "+", info(node.op).parts)))
      inside.insert(plain_name(type));
    if (std::includes(inside.begin(), inside.end(), wanted.begin(), wanted.end())) found.emplace(cluster_name(node));
  }
  return {found.begin(), found.end()};
}

}  // namespace lowtide
