#include "runtime/probe.h"

#include <memory>
#include <utility>

namespace lowtide {

TensorRef locate(const RunView& run, int32_t operand) {
  const ProgramOperand& view = run.program.operands[static_cast<size_t>(operand)];
  TensorRef ref = bind_operand(run.program, run.binding, operand);
  char* const base = run.bases[static_cast<size_t>(view.buffer)];
  ref.data =
      base == nullptr ? nullptr : base + run.binding.values[static_cast<size_t>(view.offset)] * size_bytes(view.dtype);
  return ref;
}

namespace {

bool is_hosts(const Program& program, int32_t operand) {
  const int32_t buffer = program.operands[static_cast<size_t>(operand)].buffer;
  return program.buffers[static_cast<size_t>(buffer)].device == 0;
}

struct Probes {
  std::vector<Probe> probes;
  Observer observer;
  size_t next = 0;

  // The region before this one may not have been run to its end.
  void begin(int32_t region) {
    for (next = 0; next < probes.size() && probes[next].region < region;) ++next;
  }
  void show(const RunView& run, int32_t step) {
    for (; next < probes.size(); ++next) {
      const Probe& probe = probes[next];
      if (probe.region != run.region || probe.step > step) return;
      if (!is_hosts(run.program, probe.operand)) continue;
      if (const TensorRef tensor = locate(run, probe.operand); tensor.data != nullptr || tensor.numel() == 0)
        observer(probe.name, tensor);
    }
  }
};

}  // namespace

StepHooks probe_hooks(std::vector<Probe> probes, Observer observer) {
  // Shared by the three functions of the hooks, and by copies of them.
  auto shown = std::make_shared<Probes>(Probes{std::move(probes), std::move(observer)});
  StepHooks hooks;
  hooks.begin = [shown](const RunView& run) { shown->begin(run.region); };
  hooks.before = [shown](const RunView& run, int32_t step) { shown->show(run, step); };
  hooks.end = [shown](const RunView& run) {
    shown->show(run, run.program.regions[static_cast<size_t>(run.region)].end);
  };
  return hooks;
}

}  // namespace lowtide
