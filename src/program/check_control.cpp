#include "program/check_control.h"

#include <algorithm>

#include "base/check.h"
#include "base/size_code.h"

namespace lowtide {

namespace {

class ControlChecker {
 public:
  explicit ControlChecker(const Program& program) : p_(program), loop_of_(program.steps.size(), -1) {}

  void run() {
    check_devices();
    check_loops();
    check_waits();
    check_step_symbols();
    for (const ProgramInput& input : p_.inputs) check_known(input, 0);
    for (const ProgramInput& input : p_.gradient_inputs) check_known(input, forward_end(p_));
    for (int32_t gradient : p_.gradients) check_known(gradient);
    for (const ProgramUpdate& update : p_.updates) check_known(update.operand);
    for (const ProgramOutput& output : p_.outputs) check_operand(output.operand, forward_end(p_), -1, output.name);
    for (size_t i = 0; i < p_.steps.size(); ++i) check_step(p_.steps[i], static_cast<int32_t>(i));
  }

 private:
  const ProgramOperand& operand(int32_t id) const { return p_.operands[static_cast<size_t>(id)]; }
  const ProgramBuffer& buffer_of(int32_t id) const { return p_.buffers[static_cast<size_t>(operand(id).buffer)]; }
  int32_t region_of(int32_t step) const {
    int32_t region = 0;
    while (p_.regions[static_cast<size_t>(region)].end <= step) ++region;
    return region;
  }
  template <class Visit>
  static void for_each_operand(const ProgramStep& step, Visit&& visit) {
    for (int32_t id : step.inputs)
      if (id >= 0) visit(id, false);
    for (int32_t id : step.outputs)
      if (id >= 0) visit(id, true);
  }

  void check_devices() const {
    LT_USER_CHECK(ErrorKind::kInvalidProgram, !p_.devices.empty(), "a program without the host's memory");
    for (const ProgramBuffer& buffer : p_.buffers)
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    buffer.device >= 0 && buffer.device < static_cast<int32_t>(p_.devices.size()) &&
                        (buffer.device == 0 || buffer.kind == BufferKind::kArena),
                    buffer.name, " lies on device ", buffer.device, " of ", p_.devices.size(),
                    ", where only an arena may");
  }

  void check_loops() {
    int32_t at = 0;
    for (size_t i = 0; i < p_.loops.size(); ++i) {
      const ProgramLoop& loop = p_.loops[i];
      const bool fits = loop.first > at && loop.end >= loop.first && loop.end <= static_cast<int32_t>(p_.steps.size());
      LT_USER_CHECK(ErrorKind::kInvalidProgram, fits && loop.block_rows > 0, "loop ", i, " has the steps ", loop.first,
                    " to ", loop.end, " in blocks of ", loop.block_rows, ", expected some after step ", at);
      const ProgramStep& own = p_.steps[static_cast<size_t>(loop.first - 1)];
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    own.kind == StepKind::kLoop && own.index == static_cast<int32_t>(i) &&
                        region_of(loop.first - 1) == region_of(std::max(loop.end, loop.first) - 1),
                    "the steps of loop ", i, " do not follow its own, or leave its region");
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    loop.rows >= 0 && loop.rows < static_cast<int32_t>(p_.expressions.size()), "loop ", i,
                    " has as many rows as expression ", loop.rows);
      check_expression(loop.rows, loop.first - 1, -1, "a loop's rows");
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    loop.batch_rows >= -1 && loop.batch_rows < static_cast<int32_t>(p_.expressions.size()), "loop ", i,
                    " has batches of as many rows as expression ", loop.batch_rows);
      if (loop.batch_rows >= 0) check_expression(loop.batch_rows, loop.first - 1, -1, "a loop's batches");
      for (int32_t step = loop.first; step < loop.end; ++step)
        loop_of_[static_cast<size_t>(step)] = static_cast<int32_t>(i);
      check_lifetimes(loop);
      at = loop.end;
    }
  }

  // A buffer lives as long as a loop that touches it, or is made and used up in one block.
  void check_lifetimes(const ProgramLoop& loop) const {
    for (int32_t i = loop.first; i < loop.end; ++i)
      for_each_operand(p_.steps[static_cast<size_t>(i)], [&](int32_t id, bool writes) {
        const ProgramBuffer& buffer = buffer_of(id);
        if (buffer.kind != BufferKind::kArena && buffer.kind != BufferKind::kGradient) return;
        const bool spans = buffer.first < loop.first && buffer.last >= loop.end - 1;
        const bool inside = buffer.first >= loop.first && buffer.last < loop.end && (writes || buffer.first < i);
        LT_USER_CHECK(ErrorKind::kInvalidProgram, spans || inside, "step ", i, " touches ", buffer.name,
                      ", which lives neither in one block of its loop nor as long as the loop");
      });
  }

  // What a begun call reads stays as it is, and what it writes is nobody else's, until the wait.
  void check_waits() const {
    std::vector<int32_t> waits(p_.steps.size(), -1);
    for (size_t i = 0; i < p_.steps.size(); ++i) {
      const ProgramStep& wait = p_.steps[i];
      if (wait.kind != StepKind::kWait) continue;
      const int32_t end = static_cast<int32_t>(i);
      const bool begun =
          wait.index >= 0 && wait.index < end && p_.steps[static_cast<size_t>(wait.index)].kind == StepKind::kBegin;
      LT_USER_CHECK(ErrorKind::kInvalidProgram, begun && waits[static_cast<size_t>(wait.index)] < 0, "step ", i,
                    " waits for step ", wait.index, ", which begins nothing or is waited for already");
      waits[static_cast<size_t>(wait.index)] = end;
    }
    for (size_t i = 0; i < p_.steps.size(); ++i)
      if (p_.steps[i].kind == StepKind::kBegin) check_wait(static_cast<int32_t>(i), waits[i]);
  }

  void check_wait(int32_t begin, int32_t wait) const {
    LT_USER_CHECK(ErrorKind::kInvalidProgram, wait >= 0 && (begin < forward_end(p_)) == (wait < forward_end(p_)),
                  "nothing waits for step ", begin, " before forward or backward ends");
    LT_USER_CHECK(ErrorKind::kInvalidProgram,
                  loop_of_[static_cast<size_t>(begin)] < 0 && loop_of_[static_cast<size_t>(wait)] < 0, "step ", begin,
                  " begins or is waited for in a loop");
    for_each_operand(p_.steps[static_cast<size_t>(begin)], [&](int32_t id, bool writes) {
      const ProgramBuffer& buffer = buffer_of(id);
      const bool planned = buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !planned || buffer.last >= wait, "step ", begin, " touches ",
                    buffer.name, " until step ", wait, ", but it lives until step ", buffer.last);
      for (int32_t i = begin + 1; i < wait; ++i)
        for_each_operand(p_.steps[static_cast<size_t>(i)], [&](int32_t other, bool other_writes) {
          LT_USER_CHECK(ErrorKind::kInvalidProgram,
                        operand(other).buffer != operand(id).buffer || !(writes || other_writes), "step ", i,
                        " touches ", buffer.name, ", which step ", begin, " is at work on until step ", wait);
        });
    });
  }

  void check_step_symbols() const {
    for (size_t i = 0; i < p_.step_symbols.size(); ++i) {
      const StepSymbol& symbol = p_.step_symbols[i];
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    symbol.step >= 0 && symbol.step < static_cast<int32_t>(p_.steps.size()) && symbol.operand >= 0 &&
                        symbol.operand < static_cast<int32_t>(p_.operands.size()) && symbol.high >= 0 &&
                        symbol.high < static_cast<int32_t>(p_.expressions.size()),
                    "size ", symbol.name, " is written by step ", symbol.step, " as operand ", symbol.operand);
      const ProgramStep& step = p_.steps[static_cast<size_t>(symbol.step)];
      const ProgramOperand& written = operand(symbol.operand);
      const bool is_output = std::any_of(step.outputs.begin(), step.outputs.end(),
                                         [&](int32_t id) { return id >= 0 && operand(id).buffer == written.buffer; });
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    (step.kind == StepKind::kKernel || step.kind == StepKind::kHostCall) && is_output &&
                        written.dtype == DType::kI64 && written.sizes.empty() &&
                        buffer_of(symbol.operand).device == 0 && loop_of_[static_cast<size_t>(symbol.step)] < 0,
                    "size ", symbol.name, " is no i64 that step ", symbol.step, " writes on the host, once");
      for (const size_t used : symbols_of(symbol.high))
        LT_USER_CHECK(ErrorKind::kInvalidProgram, used < p_.symbols.size() + i, "the most of size ", symbol.name,
                      " depends on a later size");
    }
  }

  std::vector<size_t> symbols_of(ExpressionId id) const {
    const std::vector<int64_t>& code = p_.expressions[static_cast<size_t>(id)];
    std::vector<size_t> used;
    for (size_t at = 0; at < code.size(); ++at)
      if (code[at] == kSizePush) {
        ++at;
      } else if (code[at] == kSizeSymbol) {
        used.push_back(static_cast<size_t>(code[++at]));
      }
    return used;
  }

  // Every symbol that it depends on has its value before `step`, in `loop` (or -1).
  void check_expression(ExpressionId id, int32_t step, int32_t loop, const std::string& what) const {
    for (size_t used : symbols_of(id)) {
      if (used < p_.symbols.size()) continue;
      used -= p_.symbols.size();
      const bool known = used < p_.step_symbols.size()
                             ? p_.step_symbols[used].step < step
                             : static_cast<int32_t>((used - p_.step_symbols.size()) / 2) == loop;
      LT_USER_CHECK(ErrorKind::kInvalidProgram, known, what, " depends on a size that is not known at step ", step);
    }
  }

  void check_operand(int32_t id, int32_t step, int32_t loop, const std::string& what) const {
    check_expression(operand(id).offset, step, loop, what);
    for (ExpressionId size : operand(id).sizes) check_expression(size, step, loop, what);
    for (ExpressionId stride : operand(id).strides) check_expression(stride, step, loop, what);
  }

  // Before `step`.
  void check_known(const ProgramInput& input, int32_t step) const {
    for (ExpressionId size : input.sizes) check_expression(size, step, -1, input.name);
    for (ExpressionId stride : input.strides) check_expression(stride, step, -1, input.name);
  }
  // Before any step.
  void check_known(int32_t id) const { check_operand(id, 0, -1, buffer_of(id).name); }

  void check_step(const ProgramStep& step, int32_t index) const {
    const int32_t loop = loop_of_[static_cast<size_t>(index)];
    const bool on_host = step.kind != StepKind::kKernel && step.kind != StepKind::kEmit;
    for_each_operand(step, [&](int32_t id, bool) {
      check_operand(id, index, loop, step.node);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !on_host || buffer_of(id).device == 0, "step ", index, " (", step.node,
                    ") looks at ", buffer_of(id).name, ", which is not the host's");
    });
    for (const auto& [name, value] : step.attrs) {
      if (const int64_t* id = std::get_if<int64_t>(&value))
        check_expression(static_cast<ExpressionId>(*id), index, loop, step.node);
      if (const auto* ids = std::get_if<std::vector<int64_t>>(&value))
        for (int64_t id : *ids) check_expression(static_cast<ExpressionId>(id), index, loop, step.node);
    }
    const bool is_own = step.kind == StepKind::kLoop && step.index >= 0 &&
                        step.index < static_cast<int32_t>(p_.loops.size()) &&
                        p_.loops[static_cast<size_t>(step.index)].first == index + 1;
    LT_USER_CHECK(ErrorKind::kInvalidProgram, step.kind != StepKind::kLoop || is_own, "step ", index, " is of loop ",
                  step.index, ", which does not begin there");
    LT_USER_CHECK(ErrorKind::kInvalidProgram,
                  loop < 0 || step.kind == StepKind::kKernel || step.kind == StepKind::kHostCall, "step ", index, " (",
                  step.node, ") cannot run for each block of a loop");
    LT_USER_CHECK(ErrorKind::kInvalidProgram, loop < 0 || step.kind != StepKind::kHostCall || step.index < 0, "step ",
                  index, " (", step.node, ") keeps a context, of which a loop would make several");
  }

  const Program& p_;
  std::vector<int32_t> loop_of_;  // by step; -1: none
};

}  // namespace

void check_control(const Program& program) { ControlChecker(program).run(); }

}  // namespace lowtide
