#include "report/plan_report.h"

#include <iomanip>
#include <sstream>

#include "base/text.h"

namespace lowtide {

static const char* kind_name(BufferKind kind) {
  switch (kind) {
    case BufferKind::kCaller: return "caller";
    case BufferKind::kArena: return "arena";
    case BufferKind::kGradient: return "gradient";
    case BufferKind::kOutput: return "output";
    case BufferKind::kConstant: return "constant";
  }
  return "?";
}

std::string plan_text(const Program& program, const Binding& binding) {
  const MemoryReport& report = binding.report;
  std::ostringstream out;
  out << "plan of @" << program.name;
  for (size_t i = 0; i < program.symbols.size(); ++i)
    out << (i == 0 ? " at " : ", ") << program.symbols[i].name << "=" << binding.symbol_values[i];
  out << "\npeak " << report.peak_bytes << " bytes = arena " << report.arena_bytes << " (of it gradients "
      << report.gradient_bytes << ") + outputs " << report.output_bytes << " + external " << report.external_bytes
      << "\nlower bound of the arena " << report.lower_bound_bytes << ", waste "
      << report.arena_bytes - report.lower_bound_bytes << " bytes (" << std::fixed << std::setprecision(2)
      << (report.lower_bound_bytes > 0 ? 100.0 * static_cast<double>(report.arena_bytes - report.lower_bound_bytes) /
                                             static_cast<double>(report.lower_bound_bytes)
                                       : 0.0)
      << " %)\n\nbuffers (kind, first..last step, bytes, offset)\n";
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    if (buffer.kind == BufferKind::kCaller || buffer.kind == BufferKind::kConstant) continue;
    out << "  %" << buffer.name << ": " << kind_name(buffer.kind) << " " << buffer.first << ".." << buffer.last << " "
        << binding.buffer_bytes[i];
    if (binding.packing.offsets[i] >= 0) out << " @" << binding.packing.offsets[i];
    out << "\n";
  }
  out << "\nsteps\n";
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& step = program.steps[i];
    for (const ProgramRegion& region : program.regions)
      if (i > 0 && region.first == static_cast<int32_t>(i)) out << "  -- " << region.name << " --\n";
    auto names = [&](const std::vector<int32_t>& operands) {
      return join(operands, ", ", [&](std::ostream& text, int32_t id) {
        if (id < 0) {
          text << "_";
        } else {
          text << "%" << program.buffers[static_cast<size_t>(program.operands[static_cast<size_t>(id)].buffer)].name;
        }
      });
    };
    if (step.kind == StepKind::kLoop) {
      const ProgramLoop& loop = program.loops[static_cast<size_t>(step.index)];
      out << "  " << i << ": loop over steps " << loop.first << " to " << loop.end - 1 << "  // " << step.node << "\n";
      continue;
    }
    if (step.kind == StepKind::kWait) {
      out << "  " << i << ": wait for step " << step.index << "  // " << step.node << "\n";
      continue;
    }
    const char* what = step.kind == StepKind::kEmit    ? "emit"
                       : step.kind == StepKind::kBind  ? "bind"
                       : step.kind == StepKind::kBegin ? "begin"
                                                       : "call";
    out << "  " << i << ": " << (step.kind == StepKind::kKernel ? step.kernel : concat(what, " ", step.target)) << " ("
        << names(step.inputs) << ") -> (" << names(step.outputs) << ")  // " << step.node << "\n";
  }
  return out.str();
}

}  // namespace lowtide
