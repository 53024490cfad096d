// The names that users give to what is recomputed, and what they mean on a graph whose fusions differ from the
// ORTModule's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "memory/strategy.h"

namespace lowtide {

// The op type as users of ORTModule know it: "FastGelu" is GELU in its tanh form.
std::string_view cluster_name(const Node& node);

// The op types of the nodes that run again, in topological order, each followed by '+': "Cast+Where+Softmax+". Where
// none does, that of the node whose stash is given up.
std::string cluster_of(const Graph& graph, const Candidate& candidate);
std::vector<std::string> clusters_of(const Graph& graph, std::span<const Candidate> candidates);

// "Cast+Where+Softmax+" → {"Cast", "Where", "Softmax"}.
std::vector<std::string> op_types(std::string_view cluster);

// Equal for clusters that name the same work: views move no bytes, MatMul, Gemm and FusedMatMul (with their bias) are
// one product, a bias belongs to what it is fused into, and either form of GELU is one.
std::string canonical_cluster(std::string_view cluster);

// The op types of the nodes into which passes fused what the cluster names ("Attention"), each once.
std::vector<std::string> absorbed_by(const Graph& graph, std::string_view cluster);

}  // namespace lowtide
