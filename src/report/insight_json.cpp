#include "base/text.h"
#include "report/clusters.h"
#include "report/insight_source.h"
#include "report/json_text.h"

namespace lowtide {
namespace {

class Writer {
 public:
  Writer(const InsightSource& source, const DimValues& dims) : source_(source), dims_(dims) {
    for (const Stash& stash : source.stashes) stash_of_[stash.value] = &stash;
  }

  std::string write(std::span<const PlanRow> rows, int64_t peak_without, int64_t peak_with) {
    json_.begin_object();
    json_.member("config").text(join(source_.requests, ",", write_request)).member("level").integer(source_.level);
    json_.member("dims").begin_object();
    for (const auto& [name, value] : dims_) json_.member(name).integer(value);
    json_.end_object();
    json_.member("peak_without").integer(peak_without).member("peak_with").integer(peak_with);
    Dim stashed;
    for (const Stash& stash : source_.stashes) stashed = stashed + stash.bytes;
    size("stashed", stashed);
    requests();
    json_.member("rows").begin_list();
    for (const PlanRow& row : rows) plan(row);
    json_.end_list();
    const std::vector<bool> chosen = chosen_flags(source_);
    json_.member("candidates").begin_list();
    for (size_t i = 0; i < source_.candidates.size(); ++i)
      candidate(source_.candidates[i], source_.clusters[i], chosen[i]);
    json_.end_list().member("defaults").begin_list();
    for (const Candidate& each : source_.defaults) candidate(each, cluster_of(source_.graph, each), true);
    json_.end_list().end_object();
    return json_.str();
  }

 private:
  static void write_request(std::ostream& out, const MemoryRequest& request) { out << to_string(request); }

  // As a number and as text.
  void size(std::string_view name, const Dim& bytes) {
    json_.member(name).integer(value_at(bytes, dims_));
    json_.member(concat(name, "_symbolic")).text(symbolic_bytes(bytes));
  }

  void requests() {
    json_.member("requests").begin_list();
    for (const RequestOutcome& outcome : source_.selection.outcomes) {
      json_.begin_object().member("config").text(to_string(outcome.request));
      json_.member("found").integer(int64_t{outcome.found}).member("applied").integer(int64_t{outcome.applied});
      json_.end_object();
    }
    json_.end_list().member("warnings").begin_list();
    for (const std::string& warning : source_.selection.warnings) json_.text(warning);
    json_.end_list();
  }

  void plan(const PlanRow& row) {
    json_.begin_object().member("combination").text(row.combination);
    json_.member("frequency").integer(int64_t{row.frequency}).member("on").boolean(row.on);
    size("saving", row.saving);
    json_.member("peak_after").integer(row.peak_after).member("candidates").begin_list();
    for (const int32_t index : row.candidates) json_.integer(int64_t{index});
    json_.end_list().end_object();
  }

  void candidate(const Candidate& candidate, const std::string& cluster, bool on) {
    const Origin& origin = source_.graph.node(candidate.entry).origin;
    json_.begin_object().member("type").text(candidate.strategy->name).member("cluster").text(cluster);
    json_.member("on").boolean(on).member("node").text(node_name(candidate.entry));
    json_.member("module").text(origin.module).member("line").text(origin.line).member("layer");
    if (candidate.layer >= 0) {
      json_.text(source_.layers[static_cast<size_t>(candidate.layer)].path);
    } else {
      json_.null();
    }
    json_.member("outputs").begin_list();
    for (const GivenUp& given_up : candidate.outputs) output(given_up);
    json_.end_list();
    names("kept", candidate.kept);
    size("kept_bytes", candidate.kept_bytes);
    json_.member("nodes").begin_list();
    for (const NodeId node : candidate.nodes) json_.text(node_name(node));
    json_.end_list();
    size("saving", candidate.saving);
    json_.member("extra_flops").integer(value_at(candidate.extra_flops, dims_));
    json_.member("extra_bytes").integer(value_at(candidate.extra_bytes, dims_)).end_object();
  }

  void output(const GivenUp& output) {
    const Value& value = source_.graph.value(output.value);
    json_.begin_object().member("name").text(value.name).member("index").integer(int64_t{output.output_index});
    json_.member("dtype").text(name(value.type.dtype)).member("shape").begin_list();
    for (const Dim& dim : value.type.shape) json_.text(symbolic_size(dim));
    json_.end_list();
    size("bytes", output.bytes);
    json_.member("saved").real(output.saved);
    const auto stash = stash_of_.find(output.value);
    names("reads", stash == stash_of_.end() ? std::vector<ValueId>{} : stash->second->reads);
    json_.end_object();
  }

  void names(std::string_view member, const std::vector<ValueId>& values) {
    json_.member(member).begin_list();
    for (const ValueId value : values) json_.text(source_.graph.value(value).name);
    json_.end_list();
  }

  std::string node_name(NodeId node) const {
    for (const ValueId output : source_.graph.node(node).outputs)
      if (output.valid()) return source_.graph.value(output).name;
    return {};
  }

  const InsightSource& source_;
  const DimValues& dims_;
  std::map<ValueId, const Stash*> stash_of_;
  JsonText json_;
};

}  // namespace

std::string insight_json(const InsightSource& source, std::span<const PlanRow> rows, const DimValues& dims,
                         int64_t peak_without, int64_t peak_with) {
  return Writer(source, dims).write(rows, peak_without, peak_with);
}

}  // namespace lowtide
