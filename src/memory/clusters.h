// The names that users give to what is recomputed, and what they mean on a graph whose fusions differ from the
// ORTModule's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace lowtide {

// "Cast+Where+Softmax+" → {"Cast", "Where", "Softmax"}.
std::vector<std::string> op_types(std::string_view cluster);

// Equal for clusters that name the same work: views move no bytes, MatMul, Gemm and FusedMatMul (with their bias) are
// one product, a bias belongs to what it is fused into, and either form of GELU is one.
std::string canonical_cluster(std::string_view cluster);

// The op types of the nodes into which passes fused what the cluster names ("Attention"), each once.
std::vector<std::string> absorbed_by(const Graph& graph, std::string_view cluster);

}  // namespace lowtide
