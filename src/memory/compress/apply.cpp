#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "memory/compress/compress.h"
#include "memory/compress/width.h"
#include "ops/builder.h"

namespace lowtide {

namespace {

class Rewriter {
 public:
  Rewriter(Graph& graph, const MemoryContext& context) : graph_(graph), context_(context), ranges_(context.graph) {
    const std::vector<NodeId>& order = graph.order();
    positions_.assign(graph.node_capacity(), -1);
    for (size_t i = 0; i < order.size(); ++i) positions_[order[i].at()] = static_cast<int32_t>(i);
    yield_position_ = positions_[graph.yield().at()];
  }

  void compress(ValueId value) {
    find_readers(value);
    if (readers_.empty()) return;
    const std::optional<Width> width = narrower(context_.graph, ranges_, value);
    LT_CHECK(width, "%", graph_.value(value).name, " does not get smaller");
    unpacked_ = {{value, unpack(value, pack(value, *width), *width)}};
    for (const auto& [position, reader] : readers_)
      for (size_t i = 0; i < graph_.node(reader).inputs.size(); ++i)
        if (const ValueId read = graph_.node(reader).inputs[i]; shows_.contains(read))
          graph_.set_operand(reader, i, in_backward(read));
    drop_unread_views();
  }

 private:
  int32_t position(NodeId node) const { return node.at() < positions_.size() ? positions_[node.at()] : -1; }

  // The value and the views of it that forward makes over the same bytes; who reads one of them in backward.
  void find_readers(ValueId value) {
    shows_ = {value};
    views_.clear();
    readers_.clear();
    for (std::vector<ValueId> pending{value}; !pending.empty();) {
      const ValueId shown = pending.back();
      pending.pop_back();
      for (NodeId user : graph_.value(shown).users) {
        if (position(user) > yield_position_) {
          readers_.emplace(position(user), user);
        } else if (is_view_of(user, value) && shows_.insert(graph_.node(user).outputs[0]).second) {
          views_.push_back(user);
          pending.push_back(graph_.node(user).outputs[0]);
        }
      }
    }
  }
  bool is_view_of(NodeId id, ValueId value) const {
    const Node& node = graph_.node(id);
    if (!is_view(node.op) || !node.outputs[0] || node.outputs[0].at() >= context_.graph.value_count()) return false;
    return context_.stash.base(node.outputs[0]) == value;
  }

  // Images that lie channels-last in memory are packed in that order: they need not be turned.
  bool is_channels_last(ValueId value) const {
    const Op op = graph_.node(graph_.value(value).producer).op;
    return has_trait(op, Trait::kImages) && graph_.type(value).shape.size() == 4;
  }

  Origin origin_of(NodeId id) const {
    Origin origin = graph_.node(id).origin;
    origin.kind = OriginKind::kRecompute;
    return origin;
  }
  Builder builder_for(ValueId value, NodeId before) {
    Builder builder(graph_);
    builder.set_origin(origin_of(graph_.value(value).producer));
    builder.insert_before(before);
    return builder;
  }

  ValueId pack(ValueId value, const Width& width) {
    const NodeId producer = graph_.value(value).producer;
    const auto at = std::find(graph_.order().begin(), graph_.order().end(), producer);
    const std::string& base = graph_.value(value).name;
    Builder builder = builder_for(value, *(at + 1));
    ValueId rows = value;
    if (is_channels_last(value)) rows = builder.named(base + "_channels_last").transpose(value, {0, 2, 3, 1});
    return builder.named(base + "_packed").op(Op::kPackBits, {rows}, {{"bits", width.bits}, {"low", width.low}});
  }

  ValueId unpack(ValueId value, ValueId packed, const Width& width) {
    const TensorType type = graph_.type(value);
    const std::string name = graph_.value(value).name + "_unpacked";
    Builder builder = builder_for(value, readers_.begin()->second);
    const bool turned = is_channels_last(value);
    Attrs attrs{{"bits", Dim(width.bits)}, {"low", Dim(width.low)}, {"to", type.dtype}, {"shape", type.shape}};
    if (!turned) return builder.named(name).op(Op::kUnpackBits, {packed}, attrs);
    attrs.set("shape", Shape{type.shape[0], type.shape[2], type.shape[3], type.shape[1]});
    const ValueId rows = builder.named(name + "_channels_last").op(Op::kUnpackBits, {packed}, attrs);
    return builder.named(name).transpose(rows, {0, 3, 1, 2});
  }

  // The unpacked value, or the same view of it; views stand right behind it.
  ValueId in_backward(ValueId shown) {
    if (const auto at = unpacked_.find(shown); at != unpacked_.end()) return at->second;
    const NodeId view = graph_.value(shown).producer;
    const ValueId source = in_backward(graph_.node(view).inputs[0]);
    Builder builder = builder_for(shown, readers_.begin()->second);
    builder.named(graph_.value(shown).name + "_unpacked");
    return unpacked_[shown] = builder.op(graph_.node(view).op, {source}, graph_.node(view).attrs);
  }

  // Forward made them for backward alone.
  void drop_unread_views() {
    for (size_t i = views_.size(); i-- > 0;) {
      const ValueId shown = graph_.node(views_[i]).outputs[0];
      if (graph_.value(shown).users.empty() && !graph_.is_output(shown)) graph_.remove(views_[i]);
    }
  }

  Graph& graph_;
  const MemoryContext& context_;
  ValueRanges ranges_;
  std::vector<int32_t> positions_;  // by node, before the rewriting
  int32_t yield_position_ = 0;

  // Of the value being compressed.
  std::set<ValueId> shows_;
  std::vector<NodeId> views_;                     // each behind what it views
  std::set<std::pair<int32_t, NodeId>> readers_;  // by position
  std::map<ValueId, ValueId> unpacked_;           // forward's value → backward's
};

}  // namespace

void compress_stashes(Graph& graph, const MemoryContext& context, std::span<const Candidate* const> chosen) {
  Rewriter rewriter(graph, context);
  for (const Candidate* candidate : chosen)
    for (const GivenUp& output : candidate->outputs) rewriter.compress(output.value);
}

}  // namespace lowtide
