#include "passes/upstream_rows.h"

#include <algorithm>

#include "passes/token_region.h"

namespace lowtide {

static Shape behind(const Shape& shape, int64_t lead) { return {shape.begin() + lead, shape.end()}; }

UpstreamRows::UpstreamRows(const Graph& graph, NodeId reader, ValueId value, bool through_attention)
    : graph_(graph), value_(value), reader_(reader), through_attention_(through_attention) {
  ask(value, {});
  const std::vector<NodeId>& order = graph.order();
  for (auto at = std::find(order.rbegin(), order.rend(), reader); at != order.rend(); ++at)
    if (*at != reader) visit(*at);
}

void UpstreamRows::ask(ValueId value, const Rows& rows, size_t readers) {
  Asked& asked = asked_.try_emplace(value, Asked{rows}).first->second;
  asked.readers += readers;
  if (rows.lead == asked.rows.lead && includes(asked.rows.frame, rows.frame)) return;
  if (rows.lead != asked.rows.lead || !includes(rows.frame, asked.rows.frame)) asked.differs = true;
  asked.rows = rows;
}

bool UpstreamRows::includes(size_t outer, size_t inner) const {
  while (outer != inner && frames_[outer].mask) outer = frames_[outer].from;
  return outer == inner;
}

size_t UpstreamRows::frame_with(size_t frame, ValueId mask) {
  for (size_t outer = frame; frames_[outer].mask; outer = frames_[outer].from)
    if (frames_[outer].mask == mask) return frame;
  for (size_t i = 0; i < frames_.size(); ++i)
    if (frames_[i].from == frame && frames_[i].mask == mask) return i;
  frames_.push_back({frame, NodeId{}, mask});
  return frames_.size() - 1;
}

void UpstreamRows::ask_of_attention(const Node& node, const Rows& rows) {
  if (!through_attention_ || node.op != Op::kTranspose || rows.lead != 2) return;
  const std::vector<int64_t> perm = node.attrs.is("perm");
  const Value& heads = graph_.value(node.inputs[0]);
  if (perm[0] != 0 || perm[1] != 2 || !heads.producer) return;
  if (heads.users.size() != 1 || graph_.is_output(node.inputs[0])) return;
  const std::optional<TokenRegion> region = token_region(graph_, heads.producer);
  if (!region) return;
  const size_t frame = frame_with(rows.frame, region->mask);
  for (const TokenRegion::Product& product : region->products) {
    ask(product.value, {product.lead, frame}, product.readers);
    restored_.push_back(product.value);
  }
}

void UpstreamRows::visit(NodeId id) {
  const Node& node = graph_.node(id);
  if (node.outputs.empty() || !node.outputs[0]) return;
  const auto at = asked_.find(node.outputs[0]);
  if (at == asked_.end() || at->second.differs) return;
  if (at->second.readers != graph_.value(node.outputs[0]).users.size() || graph_.is_output(node.outputs[0])) return;
  for (size_t i = 1; i < node.outputs.size(); ++i)
    if (node.outputs[i] && is_read(graph_, node.outputs[i])) return;
  const Rows rows = at->second.rows;
  std::optional<std::vector<std::optional<Rows>>> operands = operands_of(node, rows);
  if (!operands) return ask_of_attention(node, rows);
  for (size_t i = 0; i < operands->size(); ++i)
    if ((*operands)[i]) ask(node.inputs[i], *(*operands)[i]);
  has_product_ = has_product_ || info(node.op).category == OpCategory::kGemm;
  found_.push_back({id, rows, std::move(*operands)});
}

std::optional<UpstreamRows::Rows> UpstreamRows::rows_of_reshape(const Shape& from, const Shape& to,
                                                                const Rows& rows) const {
  const Dim count = numel(leading(to, rows.lead)), each = numel(behind(to, rows.lead));
  for (int64_t lead = 1; lead <= rank(from); ++lead)
    if (numel(leading(from, lead)) == count && numel(behind(from, lead)) == each) return Rows{lead, rows.frame};
  return std::nullopt;
}

// Operands align at their last dims.
std::optional<std::vector<std::optional<UpstreamRows::Rows>>> UpstreamRows::broadcast_operands(const Node& node,
                                                                                               const Rows& rows) const {
  const Shape& result = graph_.type(node.outputs[0]).shape;
  std::vector<std::optional<Rows>> operands;
  for (const ValueId input : node.inputs) {
    operands.emplace_back();
    if (!input) continue;
    const Shape& shape = graph_.type(input).shape;
    const int64_t missing = rank(result) - rank(shape), lead = rows.lead - missing;
    if (lead <= 0) continue;
    const Shape found = leading(shape, lead);
    if (missing == 0 && found == leading(result, lead)) {
      operands.back() = Rows{lead, rows.frame};
    } else if (!std::all_of(found.begin(), found.end(), [](const Dim& dim) { return dim.is(1); })) {
      return std::nullopt;
    }
  }
  const bool any = std::any_of(operands.begin(), operands.end(), [](const auto& each) { return each.has_value(); });
  return any ? std::optional(operands) : std::nullopt;
}

std::optional<std::vector<std::optional<UpstreamRows::Rows>>> UpstreamRows::operands_of(const Node& node,
                                                                                        const Rows& rows) {
  std::vector<std::optional<Rows>> operands(node.inputs.size());
  const Shape& result = graph_.type(node.outputs[0]).shape;
  const Shape none, &first = node.inputs.empty() || !node.inputs[0] ? none : graph_.type(node.inputs[0]).shape;
  if (rows.lead > rank(result)) return std::nullopt;
  const auto first_alone = [&](Rows asked) {
    operands[0] = asked;
    return std::optional(operands);
  };
  switch (node.op) {
    case Op::kReshape:
    case Op::kSqueeze:
    case Op::kUnsqueeze: {
      const std::optional<Rows> from = rows_of_reshape(first, result, rows);
      return from ? first_alone(*from) : std::nullopt;
    }
    case Op::kIdentity:
    case Op::kDetach: return first_alone(rows);
    case Op::kTranspose: {
      const std::vector<int64_t> perm = node.attrs.is("perm");
      for (int64_t i = 0; i < rows.lead; ++i)
        if (perm[static_cast<size_t>(i)] != i) return std::nullopt;
      return first_alone(rows);
    }
    case Op::kSlice:
      if (node.attrs.i("axis") >= rows.lead) return first_alone(rows);
      frames_.push_back({rows.frame, graph_.value(node.outputs[0]).producer, ValueId{}});
      return first_alone({rows.lead, frames_.size() - 1});
    case Op::kDropout: return node.inputs.size() == 1 ? first_alone(rows) : std::nullopt;
    case Op::kLayerNormalization:
    case Op::kSimplifiedLayerNormalization:
    case Op::kSoftmax:
    case Op::kLogSoftmax: return node.attrs.i("axis") >= rows.lead ? first_alone(rows) : std::nullopt;
    case Op::kReduceSum:
    case Op::kReduceMean:
    case Op::kReduceMax:
    case Op::kReduceMin: return node.attrs.is("axes").front() >= rows.lead ? first_alone(rows) : std::nullopt;
    case Op::kGather:
      if (node.attrs.i("axis") != 0 || rows.lead > rank(graph_.type(node.inputs[1]).shape)) return std::nullopt;
      operands[1] = rows;
      return operands;
    case Op::kMatMul:
    case Op::kFusedMatMul:
      if (graph_.type(node.inputs[1]).shape.size() != 2 || node.attrs.b("transA", false)) return std::nullopt;
      return rows.lead < rank(first) ? first_alone(rows) : std::nullopt;
    case Op::kGemm: {
      if (node.attrs.b("transA") || rows.lead != 1) return std::nullopt;
      operands[0] = rows;
      if (operands.size() < 3 || !node.inputs[2]) return operands;
      const Shape& bias = graph_.type(node.inputs[2]).shape;
      if (rank(bias) == 2 && !bias[0].is(1)) operands[2] = rows;
      return operands;
    }
    case Op::kRotaryEmbedding: return std::nullopt;
    default: return info(node.op).category == OpCategory::kPointwise ? broadcast_operands(node, rows) : std::nullopt;
  }
}

}  // namespace lowtide
