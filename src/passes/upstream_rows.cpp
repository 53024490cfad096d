#include "passes/upstream_rows.h"

#include <algorithm>
#include <numeric>

namespace lowtide {

static int64_t rank(const Shape& shape) { return static_cast<int64_t>(shape.size()); }

static Shape leading(const Shape& shape, int64_t lead) { return {shape.begin(), shape.begin() + lead}; }

static Shape behind(const Shape& shape, int64_t lead) { return {shape.begin() + lead, shape.end()}; }

// The shape with its dims [0, lead) as one of `rows`.
static Shape with_rows(const Shape& shape, int64_t lead, const Dim& rows) {
  Shape result{rows};
  result.insert(result.end(), shape.begin() + lead, shape.end());
  return result;
}

UpstreamRows::UpstreamRows(const Graph& graph, NodeId reader, ValueId value)
    : graph_(graph), value_(value), reader_(reader) {
  ask(value, {});
  const std::vector<NodeId>& order = graph.order();
  for (auto at = std::find(order.rbegin(), order.rend(), reader); at != order.rend(); ++at)
    if (*at != reader) visit(*at);
}

void UpstreamRows::ask(ValueId value, const Rows& rows) {
  Asked& asked = asked_.try_emplace(value, Asked{rows}).first->second;
  asked.differs = asked.differs || asked.rows != rows;
  ++asked.readers;
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
  if (!operands) return;
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
      frames_.push_back({rows.frame, NodeId{}});
      frames_.back().slice = graph_.value(node.outputs[0]).producer;
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

// ---- writing

class UpstreamRows::Writer {
 public:
  Writer(const UpstreamRows& plan, Graph& graph, ValueId condition, Dim count)
      : plan_(plan), graph_(graph), b_(before(graph, plan.reader_)), count_(std::move(count)) {
    conditions_[0] = condition;
  }

  ValueId write() {
    for (auto at = plan_.found_.rbegin(); at != plan_.found_.rend(); ++at) write(*at);
    return chosen(plan_.value_, {});
  }

 private:
  void write(const Found& found) {
    const Node& node = graph_.node(found.node);
    std::vector<ValueId> inputs = node.inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i]) continue;
      inputs[i] = found.operands[i] ? chosen(inputs[i], *found.operands[i]) : aligned(inputs[i], node, found.rows);
    }
    const ValueId whole = node.outputs[0];
    b_.set_origin(node.origin);
    ValueId& result = written_[{whole, found.rows}];
    const Shape shape = with_rows(graph_.type(whole).shape, found.rows.lead, count_);
    switch (node.op) {
      case Op::kReshape:
      case Op::kSqueeze:
      case Op::kUnsqueeze: result = b_.reshape(inputs[0], shape); return;
      case Op::kSlice:
        if (node.attrs.i("axis") < found.rows.lead) {
          result = inputs[0];
          return;
        }
        break;
      case Op::kDropout: inputs.push_back(places(found.rows)); break;
      default: break;
    }
    b_.named(graph_.value(whole).name);
    result = b_.op(node.op, std::move(inputs), attrs_of(node, found.rows.lead));
  }

  // Axes lie behind the rows, which are one dim now.
  static Attrs attrs_of(const Node& node, int64_t lead) {
    Attrs attrs = node.attrs;
    if (node.op == Op::kGather) return attrs;
    if (attrs.has("axis")) attrs.set("axis", attrs.dim("axis") - lead + 1);
    if (attrs.has("axes")) {
      std::vector<Dim> axes = attrs.ints("axes");
      for (Dim& axis : axes) axis = axis - lead + 1;
      attrs.set("axes", axes);
    }
    if (node.op == Op::kTranspose) {
      std::vector<Dim> perm{0};
      const std::vector<Dim> old = attrs.ints("perm");
      for (auto at = old.begin() + lead; at != old.end(); ++at) perm.push_back(*at - lead + 1);
      attrs.set("perm", perm);
    }
    return attrs;
  }

  // An operand that all rows share, with one dim in the place of theirs.
  ValueId aligned(ValueId value, const Node& node, const Rows& rows) {
    if (info(node.op).category != OpCategory::kPointwise) return value;
    const Shape& shape = b_.shape(value);
    const int64_t lead = rows.lead - (rank(graph_.type(node.outputs[0]).shape) - rank(shape));
    return lead <= 1 ? value : b_.reshape(value, with_rows(shape, lead, 1));
  }

  ValueId chosen(ValueId value, const Rows& rows) {
    const auto [at, is_new] = written_.try_emplace({value, rows});
    if (!is_new) return at->second;
    const Shape& shape = b_.shape(value);
    b_.set_origin(graph_.node(plan_.reader_).origin);
    const ValueId all = b_.reshape(value, with_rows(shape, rows.lead, numel(leading(shape, rows.lead))));
    at->second = b_.op(Op::kCompress, {all, condition(rows.frame)}, {{"size", count_}});
    return at->second;
  }

  // On the rows that a slice was taken of: true in places of its rows alone.
  ValueId condition(size_t index) {
    if (const auto at = conditions_.find(index); at != conditions_.end()) return at->second;
    const Frame& frame = plan_.frames_[index];
    const Node& slice = graph_.node(frame.slice);
    const int64_t lead = lead_of(index);
    const Shape from = leading(graph_.type(slice.inputs[0]).shape, lead),
                to = leading(graph_.type(slice.outputs[0]).shape, lead);
    const ValueId inner = b_.reshape(condition(frame.of_slice), to);
    const ValueId nowhere = b_.full(from, 0, DType::kBool);
    const ValueId whole = b_.op(Op::kSliceScatter, {nowhere, inner}, slice.attrs);
    return conditions_[index] = b_.reshape(whole, {numel(from)});
  }

  int64_t lead_of(size_t frame) const {
    const auto at = std::find_if(plan_.found_.begin(), plan_.found_.end(),
                                 [&](const Found& found) { return found.node == plan_.frames_[frame].slice; });
    return at->rows.lead;
  }

  // Which of all rows the chosen ones are.
  ValueId places(const Rows& rows) {
    ValueId& places = places_[rows.frame];
    if (!places) places = b_.reshape(b_.op(Op::kNonZero, {condition(rows.frame)}, {{"size", count_}}), {count_});
    return places;
  }

  const UpstreamRows& plan_;
  Graph& graph_;
  Builder b_;
  const Dim count_;
  std::map<std::pair<ValueId, Rows>, ValueId> written_;
  std::map<size_t, ValueId> conditions_, places_;  // by frame
};

ValueId UpstreamRows::write(Graph& graph, ValueId condition, const Dim& count) const {
  return Writer(*this, graph, condition, count).write();
}

}  // namespace lowtide
