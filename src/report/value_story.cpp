#include "report/value_story.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "ir/print.h"
#include "memory/compress/cost.h"
#include "report/json_text.h"

namespace lowtide {

namespace {

struct Fate {
  std::string_view name;
  std::string why;
};

Fate fate_of(const MemoryContext& context, ValueId value) {
  const Graph& graph = context.graph;
  const StashAnalysis& stash = context.stash;
  const NodeId producer = graph.value(stash.base(value)).producer;
  if (!producer) return {"input", "the caller's: backward finds it where it is"};
  if (!stash.in_forward(producer)) return {"backward", "made in backward"};
  if (stash.is_free(value)) return {"output", "an output: the caller keeps it, and backward finds it there"};
  if (stash.is_rematerialised(value)) return {"rebuilt", "made again in backward by default: it costs next to nothing"};
  const Stash* kept = stash.find(value);
  if (kept == nullptr)
    return {"freed", "nothing in backward reads it: its bytes end behind its last reader in forward"};
  const Node& node = graph.node(producer);
  if (is_call(node.op) && !context.is_pure_call(node))
    return {"blocked",
            concat(node.target, " runs again only where lowtide.ortmodule.declare_pure says that it only computes")};
  if (kept->pinned) return {"blocked", "an autograd context of PyTorch's may hold views of its bytes"};
  return {"stash", "kept for backward unless a plan makes it again"};
}

// Letters to insert, remove or replace.
size_t edits(std::string_view from, std::string_view to) {
  std::vector<size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < to.size(); ++j) {
      const size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::string nearest_values(const Graph& graph, std::string_view name) {
  std::vector<std::pair<size_t, std::string_view>> known;
  for (NodeId id : graph.order())
    for (ValueId output : graph.node(id).outputs)
      if (output) known.emplace_back(edits(name, graph.value(output).name), graph.value(output).name);
  const auto end = known.begin() + std::min<std::ptrdiff_t>(std::ssize(known), 3);
  std::partial_sort(known.begin(), end, known.end());
  known.erase(end, known.end());
  return join(known, ", ", [](std::ostream& out, const auto& each) { out << "%" << each.second; });
}

}  // namespace

std::string value_story(const MemoryContext& context, const Prices& prices, const DimValues& dims,
                        std::string_view name) {
  const Graph& graph = context.graph;
  if (name.starts_with('%')) name.remove_prefix(1);
  const ValueId value = graph.find_value(name);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, value.valid(), "no value of the step is called %", name,
                "; the nearest are ", nearest_values(graph, name));
  const ValueId owner = context.stash.base(value);
  const NodeId producer = graph.value(owner).producer;
  const Fate fate = fate_of(context, value);
  const TensorType& type = graph.type(owner);
  JsonText json;
  json.begin_object().member("value").text(graph.value(value).name);
  json.member("node").text(producer ? describe(graph, producer) : "");
  json.member("module").text(producer ? graph.node(producer).origin.module : "");
  json.member("line").text(producer ? graph.node(producer).origin.line : "");
  json.member("bytes").integer(evaluate(numel(type.shape), dims) * size_bytes(type.dtype));
  json.member("ms").real(producer ? prices.milliseconds(graph, producer, dims) : 0);
  // In fewer bits, where it can wait for backward so.
  ValueRanges ranges(graph);
  const Stash* kept = context.stash.find(value);
  const bool may_wait = kept != nullptr && !kept->pinned;
  const std::optional<Width> width = may_wait ? narrower(graph, ranges, owner) : std::nullopt;
  json.member("packed_bytes").integer(width ? evaluate(packed_bytes(numel(type.shape), width->bits), dims) : 0);
  json.member("packing_ms").real(width ? packing_milliseconds(type, *width, dims, prices) : 0);
  json.member("fate").text(fate.name).member("why").text(fate.why);
  json.member("from").begin_list();
  if (producer)
    for (ValueId input : graph.node(producer).inputs)
      if (input) json.text(graph.value(input).name);
  json.end_list().member("needed_by").begin_list();
  const std::vector<ValueId> reads = kept != nullptr ? kept->reads : std::vector<ValueId>{value};
  std::set<NodeId> told;
  for (ValueId read : reads)
    for (NodeId user : graph.value(read).users)
      if (!context.stash.in_forward(user) && !is_yield(graph.node(user).op) && told.insert(user).second)
        json.text(describe(graph, user));
  json.end_list().end_object();
  return json.str();
}

}  // namespace lowtide
