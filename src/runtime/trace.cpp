#include "runtime/trace.h"

#include "base/text.h"

namespace lowtide {

static std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + '"';
}

StepHooks Trace::hooks() {
  StepHooks hooks;
  hooks.before = [this](const RunView&, int32_t) { step_begin_ = Clock::now(); };
  hooks.after = [this](const RunView& run, int32_t index) {
    const Clock::time_point end = Clock::now();
    const ProgramStep& step = run.program.steps[static_cast<size_t>(index)];
    events_.push_back({step.node, step.kind == StepKind::kKernel ? step.kernel : step.target, index, step_begin_, end});
  };
  return hooks;
}

std::string Trace::json() const {
  auto micros = [](Clock::duration span) { return std::chrono::duration<double, std::micro>(span).count(); };
  return concat("{\"traceEvents\": [\n",
                join(events_, ",\n",
                     [&](std::ostream& out, const Event& event) {
                       out << "{\"name\": " << quoted(event.name) << ", \"cat\": " << quoted(event.kernel)
                           << ", \"ph\": \"X\", \"pid\": 0, \"tid\": 0, \"ts\": " << micros(event.begin - start_)
                           << ", \"dur\": " << micros(event.end - event.begin)
                           << ", \"args\": {\"step\": " << event.step << "}}";
                     }),
                "\n]}\n");
}

}  // namespace lowtide
