#include "runtime/largest_values.h"

#include <algorithm>

#include "base/text.h"
#include "pack/problem.h"

namespace lowtide {
namespace {

constexpr size_t kMost = 10;

struct Held {
  int64_t size_bytes = 0;
  std::string text;
};

bool is_planned(const ProgramBuffer& buffer) {
  return buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
}

// The first step that writes the buffer, and what it writes there.
std::string made_by(const Program& program, const Binding& binding, int32_t buffer) {
  for (const ProgramStep& step : program.steps) {
    for (int32_t id : step.outputs) {
      if (id < 0 || program.operands[static_cast<size_t>(id)].buffer != buffer) continue;
      const TensorRef made = bind_operand(program, binding, id);
      const std::span<const int64_t> sizes(made.sizes, static_cast<size_t>(made.rank));
      return concat(name(made.dtype), "[", join(sizes, ", "), "] of ", step.node);
    }
  }
  return "that no step writes";
}

}  // namespace

std::string largest_values(const Program& program, const Binding& binding) {
  if (program.steps.empty()) return "";
  const int32_t step = std::max(0, most_live(packing_problem(program, binding, {}, false)).step);
  const size_t peak = static_cast<size_t>(step);
  std::vector<Held> values;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    const bool is_output = buffer.kind == BufferKind::kOutput;
    if (!is_output && !(is_planned(buffer) && buffer.device == 0 && buffer.first <= step && step <= buffer.last))
      continue;
    values.push_back({binding.buffer_bytes[i], concat("%", buffer.name, ": ", is_output ? "output " : "",
                                                      made_by(program, binding, static_cast<int32_t>(i)))});
  }
  if (const int64_t scratch = binding.steps[peak].scratch_bytes; scratch > 0)
    values.push_back({scratch, concat("scratch of ", program.steps[peak].node)});
  std::stable_sort(values.begin(), values.end(),
                   [](const Held& a, const Held& b) { return a.size_bytes > b.size_bytes; });
  values.resize(std::min(values.size(), kMost));
  return concat("\nthe largest values of the step, at its peak of ", binding.report.peak_bytes, " bytes in ",
                program.steps[peak].node, ":", join(values, "", [](std::ostream& out, const Held& value) {
                  out << "\n  " << value.text << ", " << value.size_bytes << " bytes";
                }));
}

}  // namespace lowtide
