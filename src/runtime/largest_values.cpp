#include "runtime/largest_values.h"

#include <algorithm>

#include "base/text.h"

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

// The step at which most of the arena is in use.
size_t peak_step(const Program& program, const Binding& binding, int64_t& peak_bytes) {
  std::vector<int64_t> changes(program.steps.size() + 1, 0);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    if (!is_planned(buffer)) continue;
    changes[static_cast<size_t>(buffer.first)] += binding.buffer_bytes[i];
    changes[static_cast<size_t>(buffer.last) + 1] -= binding.buffer_bytes[i];
  }
  size_t peak = 0;
  int64_t live = 0;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    live += changes[i];
    if (const int64_t used = live + binding.steps[i].scratch_bytes; used > peak_bytes) {
      peak_bytes = used;
      peak = i;
    }
  }
  return peak;
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
  int64_t peak_bytes = 0;
  const size_t peak = peak_step(program, binding, peak_bytes);
  std::vector<Held> values;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    const auto step = static_cast<int32_t>(peak);
    const bool is_output = buffer.kind == BufferKind::kOutput;
    if (!is_output && !(is_planned(buffer) && buffer.first <= step && step <= buffer.last)) continue;
    values.push_back({binding.buffer_bytes[i], concat("%", buffer.name, ": ", is_output ? "output " : "",
                                                      made_by(program, binding, static_cast<int32_t>(i)))});
  }
  if (program.steps.empty()) return "";
  if (const int64_t scratch = binding.steps[peak].scratch_bytes; scratch > 0)
    values.push_back({scratch, concat("scratch of ", program.steps[peak].node)});
  std::stable_sort(values.begin(), values.end(),
                   [](const Held& a, const Held& b) { return a.size_bytes > b.size_bytes; });
  values.resize(std::min(values.size(), kMost));
  return concat("\nthe largest values of the step, at its peak of ", peak_bytes, " bytes in ", program.steps[peak].node,
                ":", join(values, "", [](std::ostream& out, const Held& value) {
                  out << "\n  " << value.text << ", " << value.size_bytes << " bytes";
                }));
}

}  // namespace lowtide
