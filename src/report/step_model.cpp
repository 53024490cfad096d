#include "report/step_model.h"

#include "ir/print.h"
#include "report/json_text.h"

namespace lowtide {

static void write_list(JsonText& json, std::string_view name, std::span<const int32_t> ids) {
  json.member(name).begin_list();
  for (int32_t id : ids) json.integer(id);
  json.end_list();
}

static void write_node(JsonText& json, const StepModel& model, size_t position, const std::string& description) {
  json.begin_object().member("node").text(description);
  write_list(json, "reads", model.reads[position]);
  write_list(json, "reads_again", model.reads_again[position]);
  write_list(json, "makes", model.makes[position]);
  json.member("takeovers").begin_list();
  for (const Takeover& takeover : model.takeovers[position])
    json.begin_list().integer(takeover.to).integer(takeover.from).end_list();
  json.end_list();
  json.member("scratch").integer(model.scratch[position]).member("copies").integer(model.copies[position]);
  json.member("ms").real(model.milliseconds[position]);
  json.member("is_kept_alive").boolean(model.is_kept_alive[position]).end_object();
}

std::string step_model_json(const StepModel& model, const Graph& graph) {
  JsonText json;
  json.begin_object().member("yield").integer(model.yield).member("other_bytes").integer(model.other_bytes);
  json.member("values").begin_list();
  for (const ModelValue& value : model.values) {
    json.begin_object().member("value").text(graph.value(value.value).name).member("bytes").integer(value.bytes);
    json.member("producer").integer(value.producer).member("held_until").integer(value.held_until);
    json.member("is_optional").boolean(value.is_optional).member("may_run_again").boolean(value.may_run_again);
    json.member("is_default").boolean(value.is_default).member("packed_bytes").integer(value.packed_bytes);
    json.member("packing_ms").real(value.packing_milliseconds).end_object();
  }
  json.end_list().member("nodes").begin_list();
  for (size_t position = 0; position < graph.order().size(); ++position)
    write_node(json, model, position, describe(graph, graph.order()[position]));
  json.end_list().member("fixed").begin_list();
  for (const FixedBytes& fixed : model.fixed)
    json.begin_list().integer(fixed.first).integer(fixed.last).integer(fixed.bytes).end_list();
  json.end_list().end_object();
  return json.str();
}

}  // namespace lowtide
