// Writes what UpstreamRows has found.
#include <algorithm>
#include <set>

#include "ir/data_sizes.h"
#include "passes/upstream_rows.h"

namespace lowtide {

// The shape with its dims [0, lead) as one of `rows`.
static Shape with_rows(const Shape& shape, int64_t lead, const Dim& rows) {
  Shape result{rows};
  result.insert(result.end(), shape.begin() + lead, shape.end());
  return result;
}

class UpstreamRows::Writer {
 public:
  Writer(const UpstreamRows& plan, Graph& graph, ValueId condition, Dim count)
      : plan_(plan), graph_(graph), b_(before(graph, plan.reader_)) {
    conditions_[0] = condition;
    counts_[0] = std::move(count);
  }

  ValueId write() {
    for (auto at = plan_.found_.rbegin(); at != plan_.found_.rend(); ++at) write(*at);
    const ValueId result = chosen(plan_.value_, {});
    if (restore()) sort();
    return result;
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
    const Shape shape = with_rows(graph_.type(whole).shape, found.rows.lead, count(found.rows.frame));
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
    const Rows& most = plan_.asked_.at(value).rows;
    const auto written = written_.find({value, most});
    const bool is_whole = most == rows || written == written_.end();
    b_.set_origin(graph_.node(plan_.reader_).origin);
    const ValueId all =
        is_whole ? b_.reshape(value, with_rows(shape, rows.lead, numel(leading(shape, rows.lead)))) : written->second;
    const ValueId is_chosen = is_whole ? condition(rows.frame) : condition_among(rows.frame, most.frame);
    return at->second = b_.op(Op::kCompress, {all, is_chosen}, {{"size", count(rows.frame)}});
  }

  // On the rows of `outer`: which are those of `inner`.
  ValueId condition_among(size_t inner, size_t outer) {
    ValueId& result = conditions_among_[{inner, outer}];
    if (!result) result = b_.op(Op::kCompress, {condition(inner), condition(outer)}, {{"size", count(outer)}});
    return result;
  }

  const Dim& count(size_t frame) {
    if (counts_.find(frame) == counts_.end()) condition(frame);
    return counts_.at(frame);
  }

  ValueId condition(size_t index) {
    if (const auto at = conditions_.find(index); at != conditions_.end()) return at->second;
    const Frame& frame = plan_.frames_[index];
    if (!frame.mask) {
      counts_[index] = count(frame.from);
      return conditions_[index] = condition_of_slice(frame, index);
    }
    const ValueId result = b_.op(Op::kOr, {condition(frame.from), shown_by(frame.mask)});
    const std::string symbol = fresh_size(graph_, "attended");
    b_.op(Op::kDataSize, {b_.op(Op::kCountTrue, {result})},
          {{"symbol", symbol}, {"low", Dim(0)}, {"high", b_.shape(result)[0]}});
    counts_[index] = Dim::symbol(symbol);
    return conditions_[index] = result;
  }

  // Which keys a query looks at.
  ValueId shown_by(ValueId mask) {
    const Shape shape = b_.shape(mask);
    if (!shape[1].is(1) || !shape[2].is(1))
      mask = b_.cast(b_.reduce(Op::kReduceMax, b_.cast(mask, DType::kF32), {1, 2}, false), DType::kBool);
    return b_.reshape(mask, {shape[0] * shape[3]});
  }

  // On the rows that a slice was taken of: true in places of its rows alone.
  ValueId condition_of_slice(const Frame& frame, size_t index) {
    const Node& slice = graph_.node(frame.slice);
    const int64_t lead = lead_of(index);
    const Shape from = leading(graph_.type(slice.inputs[0]).shape, lead),
                to = leading(graph_.type(slice.outputs[0]).shape, lead);
    const ValueId inner = b_.reshape(condition(frame.from), to);
    const ValueId nowhere = b_.full(from, 0, DType::kBool);
    const ValueId whole = b_.op(Op::kSliceScatter, {nowhere, inner}, slice.attrs);
    return b_.reshape(whole, {numel(from)});
  }

  int64_t lead_of(size_t frame) const {
    const auto at = std::find_if(plan_.found_.begin(), plan_.found_.end(),
                                 [&](const Found& found) { return found.node == plan_.frames_[frame].slice; });
    return at->rows.lead;
  }

  // Which of all rows the chosen ones are.
  ValueId places(const Rows& rows) {
    ValueId& places = places_[rows.frame];
    if (!places)
      places =
          b_.reshape(b_.op(Op::kNonZero, {condition(rows.frame)}, {{"size", count(rows.frame)}}), {count(rows.frame)});
    return places;
  }

  // Attention reads what was computed for some rows from a place for each; whether there is any.
  bool restore() {
    std::set<NodeId> found;
    for (const Found& each : plan_.found_) found.insert(each.node);
    const std::set<ValueId> values(plan_.restored_.begin(), plan_.restored_.end());
    bool any = false;
    for (const ValueId value : values) {
      if (!found.count(graph_.value(value).producer)) continue;
      const Rows& rows = plan_.asked_.at(value).rows;
      const ValueId is_there = condition(rows.frame);
      const Shape shape = b_.shape(value);
      b_.set_origin(graph_.node(graph_.value(value).producer).origin);
      const ValueId zeros = b_.full(with_rows(shape, rows.lead, b_.shape(is_there)[0]), 0, b_.dtype(value));
      const ValueId placed = b_.op(Op::kMaskedScatter, {zeros, is_there, written_.at({value, rows})});
      graph_.replace_uses(value, b_.reshape(placed, shape));
      any = true;
    }
    return any;
  }

  // Nodes before their readers, and before all the sizes that these name.
  void sort() {
    const std::vector<NodeId> before = graph_.order();
    for (const DataSize& size : data_sizes(graph_))
      if (std::any_of(counts_.begin(), counts_.end(),
                      [&](const auto& each) { return each.second == Dim::symbol(size.symbol); }))
        place(size.node);
    for (NodeId id : before) place(id);
    graph_.set_order(std::move(order_));
  }

  void place(NodeId id) {
    if (!placed_.insert(id).second) return;
    for (const ValueId input : graph_.node(id).inputs)
      if (input && graph_.value(input).producer) place(graph_.value(input).producer);
    order_.push_back(id);
  }

  const UpstreamRows& plan_;
  Graph& graph_;
  Builder b_;
  std::map<std::pair<ValueId, Rows>, ValueId> written_;
  std::map<size_t, ValueId> conditions_, places_;  // by frame
  std::map<size_t, Dim> counts_;
  std::map<std::pair<size_t, size_t>, ValueId> conditions_among_;
  std::set<NodeId> placed_;
  std::vector<NodeId> order_;
};

ValueId UpstreamRows::write(Graph& graph, ValueId condition, const Dim& count) const {
  return Writer(*this, graph, condition, count).write();
}

}  // namespace lowtide
