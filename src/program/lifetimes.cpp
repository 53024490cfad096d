#include <algorithm>

#include "program/program.h"

namespace lowtide {

namespace {

class Lifetimes {
 public:
  explicit Lifetimes(Program& program) : program_(program) {}

  void run() {
    const int32_t end = static_cast<int32_t>(program_.steps.size());
    for (ProgramBuffer& buffer : program_.buffers) {
      buffer.first = end;
      buffer.last = -1;
    }
    for (int32_t i = 0; i < end; ++i) {
      const ProgramStep& step = program_.steps[static_cast<size_t>(i)];
      touch_all(step, i);
      if (step.kind == StepKind::kWait) touch_all(program_.steps[static_cast<size_t>(step.index)], i);
    }
    for (const StepSymbol& symbol : program_.step_symbols) touch(symbol.operand, symbol.step);
    for (const ProgramLoop& loop : program_.loops) extend_over(loop);
    // Updates are written back when forward has succeeded.
    for (const ProgramUpdate& update : program_.updates) touch(update.operand, std::max(0, forward_end(program_) - 1));
    for (ProgramBuffer& buffer : program_.buffers) {
      // PyTorch may keep it.
      if (buffer.kind == BufferKind::kGradient) buffer.last = end - 1;
      if (buffer.last < 0) buffer.first = buffer.last = 0;
    }
  }

 private:
  ProgramBuffer& buffer_of(int32_t operand) {
    return program_.buffers[static_cast<size_t>(program_.operands[static_cast<size_t>(operand)].buffer)];
  }
  void touch(int32_t operand, int32_t step) {
    if (operand < 0) return;
    ProgramBuffer& buffer = buffer_of(operand);
    buffer.first = std::min(buffer.first, step);
    buffer.last = std::max(buffer.last, step);
  }
  void touch_all(const ProgramStep& step, int32_t at) {
    for (int32_t operand : step.inputs) touch(operand, at);
    for (int32_t operand : step.outputs) touch(operand, at);
  }

  // A buffer that one block of rows makes and uses up is made again in the next. Any other that the loop touches keeps
  // bytes from block to block, from before the loop, or for what comes after it.
  void extend_over(const ProgramLoop& loop) {
    std::vector<bool> seen(program_.buffers.size());
    for (int32_t i = loop.first; i < loop.end; ++i) {
      const ProgramStep& step = program_.steps[static_cast<size_t>(i)];
      auto visit = [&](int32_t operand, bool reads) {
        if (operand < 0) return;
        ProgramBuffer& buffer = buffer_of(operand);
        const size_t at = static_cast<size_t>(&buffer - program_.buffers.data());
        if (seen[at]) return;
        seen[at] = true;
        if (!reads && buffer.first == i && buffer.last < loop.end) return;
        buffer.first = std::min(buffer.first, loop.first - 1);
        buffer.last = std::max(buffer.last, loop.end - 1);
      };
      for (int32_t operand : step.inputs) visit(operand, true);
      for (int32_t operand : step.outputs) visit(operand, false);
    }
  }

  Program& program_;
};

}  // namespace

void set_lifetimes(Program& program) { Lifetimes(program).run(); }

}  // namespace lowtide
