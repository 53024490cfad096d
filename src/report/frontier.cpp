#include "report/frontier.h"

#include <set>

#include "ir/print.h"
#include "memory/compress/cost.h"
#include "report/json_text.h"

namespace lowtide {

namespace {

// As many as a reader looks at.
constexpr size_t kMostNames = 8;

constexpr std::string_view kCompressed = "compressed";

class Writer {
 public:
  Writer(const PlanArchive& archive, const Graph& graph, const Prices& prices)
      : archive_(archive), graph_(graph), prices_(prices), ranges_(graph) {
    positions_.assign(graph.node_capacity(), -1);
    for (size_t i = 0; i < graph.order().size(); ++i) positions_[graph.order()[i].at()] = static_cast<int32_t>(i);
    yield_ = positions_[graph.yield().at()];
  }

  std::string run() {
    const std::vector<Rung>& rungs = archive_.rungs;
    json_.begin_object().member("dims").begin_object();
    for (const auto& [name, value] : archive_.dims) json_.member(name).integer(value);
    json_.end_object();
    json_.member("default_peak_bytes").integer(rungs.front().peak_bytes);
    json_.member("floor_bytes").integer(archive_.floor().peak_bytes);
    json_.member("knee").integer(static_cast<int64_t>(archive_.knee));
    json_.member("rungs").begin_list();
    for (size_t i = 0; i < rungs.size(); ++i) write(rungs[i], i + 1 < rungs.size() ? &rungs[i + 1] : nullptr);
    json_.end_list().end_object();
    return json_.str();
  }

 private:
  void write(const Rung& rung, const Rung* next) {
    json_.begin_object().member("peak_bytes").integer(rung.peak_bytes);
    json_.member("predicted_ms").real(rung.milliseconds);
    json_.member("extra_ms").real(rung.extra_milliseconds);
    json_.member("bound_extra_ms").real(rung.least_extra_milliseconds);
    const double mib = next == nullptr ? 0 : static_cast<double>(rung.peak_bytes - next->peak_bytes) / 1048576;
    json_.member("ms_per_mib").real(mib > 0 ? (next->milliseconds - rung.milliseconds) / mib : 0);
    json_.member("row_blocks").begin_list();
    for (const PricedRowBlocks& run : rung.row_blocks) write(run);
    json_.end_list().member("values").begin_list();
    again_.clear();
    again_.insert(rung.again.begin(), rung.again.end());
    for (const Candidate& recipe : rung.recipes) {
      const std::string_view what = recipe.strategy->is_default()            ? "rebuilt"
                                    : recipe.strategy == &strategy::compress ? kCompressed
                                                                             : "recomputed";
      for (const GivenUp& output : recipe.outputs) write(output.value, what);
      for (ValueId kept : recipe.kept) write(kept, "kept instead");
    }
    json_.end_list().end_object();
  }

  void write(const PricedRowBlocks& run) {
    const int64_t rows = evaluate(run.blocks.rows, archive_.dims);
    json_.begin_object().member("rows").integer(rows).member("block_rows").integer(run.blocks.block_rows);
    json_.member("steps").integer(run.blocks.end - run.blocks.first);
    json_.member("ms").real(extra_milliseconds({&run, 1}, archive_.dims)).end_object();
  }

  void write(ValueId value, std::string_view what) {
    const NodeId producer = graph_.value(value).producer;
    const Origin& origin = graph_.node(producer).origin;
    const TensorType& type = graph_.type(value);
    json_.begin_object().member("value").text(graph_.value(value).name).member("what").text(what);
    json_.member("bytes").integer(evaluate(numel(type.shape), archive_.dims) * size_bytes(type.dtype));
    json_.member("ms").real(what == kCompressed ? packing_milliseconds(type, narrower(graph_, ranges_, value).value(),
                                                                       archive_.dims, prices_)
                                                : prices_.milliseconds(graph_, producer, archive_.dims));
    json_.member("module").text(origin.module).member("line").text(origin.line);
    json_.member("node").text(describe(graph_, producer));
    json_.member("from").begin_list();
    std::set<ValueId> leaves;
    if (what != kCompressed) find_leaves(producer, leaves);
    size_t names = 0;
    for (ValueId leaf : leaves)
      if (names++ < kMostNames) json_.text(graph_.value(leaf).name);
    json_.end_list().member("needed_by").begin_list();
    names = 0;
    for (NodeId user : graph_.value(value).users)
      if (positions_[user.at()] > yield_ && names++ < kMostNames) json_.text(describe(graph_, user));
    json_.end_list().end_object();
  }

  // What is there, and is read when the node runs again.
  void find_leaves(NodeId node, std::set<ValueId>& leaves) const {
    std::set<NodeId> seen = {node};
    for (std::vector<NodeId> pending = {node}; !pending.empty();) {
      const NodeId at = pending.back();
      pending.pop_back();
      for (ValueId input : graph_.node(at).inputs) {
        if (!input) continue;
        const NodeId producer = graph_.value(input).producer;
        const bool runs_again = producer.valid() && (again_.contains(producer) || is_view(graph_.node(producer).op));
        if (!runs_again) {
          leaves.insert(input);
        } else if (seen.insert(producer).second) {
          pending.push_back(producer);
        }
      }
    }
  }

  const PlanArchive& archive_;
  const Graph& graph_;
  const Prices& prices_;
  ValueRanges ranges_;
  std::vector<int32_t> positions_;
  int32_t yield_ = 0;  // its position
  std::set<NodeId> again_;
  JsonText json_;
};

}  // namespace

std::string frontier_json(const PlanArchive& archive, const Graph& graph, const Prices& prices) {
  return Writer(archive, graph, prices).run();
}

}  // namespace lowtide
