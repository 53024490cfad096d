// A Program: the frozen result of planning, plain data. It runs without the graph, the ops and the planner.
//
// Integers that depend on input sizes are expressions: postfix code over the symbols (base/size_code.h), kept once each
// in `expressions` and referred to by index. Binding evaluates them all, packs the buffers and runs the steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "opset/attrs.h"

namespace lowtide {

using ExpressionId = int32_t;

// Where a buffer's bytes live (design, section 6).
enum class BufferKind : uint8_t {
  kCaller,    // a tensor of the caller's: input, parameter, buffer, incoming gradient
  kArena,     // stashes and temporaries, planned
  kGradient,  // planned in the arena, handed to the caller by an emit step
  kOutput,    // a block of its own from the pool; may outlive everything
  kConstant,  // bytes of the Program
};

struct ProgramBuffer {
  std::string name;  // of the value that it was made for
  BufferKind kind = BufferKind::kArena;
  ExpressionId size_bytes = 0;
  // First and last step that touches it (closed interval); of the planned kinds only.
  int32_t first = 0;
  int32_t last = 0;
  // kCaller: index into `inputs` (>= 0), or -1 - index into `gradient_inputs`. kConstant: byte offset into `constants`.
  // kOutput and kGradient: none.
  int64_t source = 0;
  int32_t device = 0;  // in `devices`; only an arena may be another's than the host's
};

// A view of a buffer: what a step reads or writes.
struct ProgramOperand {
  int32_t buffer = 0;
  DType dtype = DType::kF32;
  ExpressionId offset = 0;  // elements
  std::vector<ExpressionId> sizes;
  std::vector<ExpressionId> strides;
};

enum class StepKind : uint8_t {
  kKernel,    // run `kernel`
  kEmit,      // gradient `index` is final
  kBind,      // a base pointer changes (region `index`); reserved for offloading
  kHostCall,  // Aten, PythonOp or CallGrad through the call handler
  kInspect,   // statistics of the operand, for each of the `records`; `places` order those of all steps
  kLoop,      // the steps of loop `index`, which follow, for each block of its rows
  kBegin,     // a host call that goes on while the next steps run
  kWait,      // until the call that step `index` began has ended; what that step touches lives until then
};

struct ProgramStep {
  StepKind kind = StepKind::kKernel;
  std::string kernel;            // name in the kernel lists
  std::vector<int32_t> inputs;   // operands, -1: absent
  std::vector<int32_t> outputs;  // operands, -1: nobody wants it
  AttrList<int64_t> attrs;       // every integer is an ExpressionId
  // kEmit: gradient; kHostCall: context slot (or -1); kKernel: the incoming gradient without which the step is left
  // out, since it only adds it in place (or -1). kLoop: in `loops`. kWait: the step that began.
  int32_t index = -1;
  std::string target;       // kHostCall: what is called; empty for the backward of a call
  uint32_t needs_grad = 0;  // kHostCall: bit i: input i needs a gradient
  std::string node;         // the graph node and its place, for errors and traces: "Gemm (fc2, train.py:41)"
};

struct ProgramInput {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<ExpressionId> sizes;
  std::vector<ExpressionId> strides;
  bool saved = false;     // backward reads it again
  bool flexible = false;  // a user input: other strides than the planned ones are copied, not refused
};

// A module output: a view of a buffer (kOutput, kCaller or kConstant).
struct ProgramOutput {
  std::string name;
  int32_t operand = 0;
  bool saved = false;  // backward reads its bytes
};

struct ProgramUpdate {
  int32_t operand = 0;  // the new value
  int32_t input = 0;    // whose bytes it replaces once forward has succeeded
};

// Steps that run without the host between them. Control goes back to it at the region's end, with the gradients that
// are ready there. Their bytes are the caller's from then on; those of a buffer that dies before the program's end only
// until the next region begins.
struct ProgramRegion {
  std::string name;   // "forward", "backward"
  int32_t first = 0;  // steps [first, end)
  int32_t end = 0;
  std::vector<int32_t> gradients;  // handed out at the end
};

// A size that is known when a step begins: of an input, or the number in an i64 input of one element.
struct SymbolSource {
  static constexpr int32_t kNumber = -1;
  std::string name;
  int32_t input = 0;
  int32_t dim = 0;  // or kNumber
};

// A size that a step writes as an i64: the count of valid labels. Buffers are planned for the most that it may be, the
// steps after it run with what it is.
struct StepSymbol {
  std::string name;
  int32_t step = 0;
  int32_t operand = 0;  // of one element, one of the step's outputs
  int64_t low = 0;
  ExpressionId high = 0;  // of symbols before this one
};

// Steps that run once for each block of rows, 0 to `rows`; the last block may be shorter. Two symbols are theirs alone:
// the first row of the block and its rows.
struct ProgramLoop {
  int32_t first = 0;  // steps [first, end), after the loop's own
  int32_t end = 0;
  ExpressionId rows = 0;
  int64_t block_rows = 0;  // a multiple of the kernels' canonical block of rows, so that sums over rows stay the same
  ExpressionId batch_rows = -1;  // blocks are of whole batches, each of so many rows, and larger if need be; -1: none
};

struct Program {
  std::string name;
  std::vector<SymbolSource> symbols;
  std::vector<int64_t> symbol_low, symbol_high;  // the range that the plan is valid for
  std::vector<StepSymbol> step_symbols;
  std::vector<ProgramLoop> loops;
  std::vector<std::string> devices = {"host"};  // the first is the host's memory
  // Over `symbols`, then `step_symbols`, then two for each of `loops`.
  std::vector<std::vector<int64_t>> expressions;
  std::vector<ProgramInput> inputs;
  std::vector<ProgramInput> gradient_inputs;  // incoming gradients, in YieldOp's order
  std::vector<int32_t> gradient_outputs;      // which module output each of them belongs to
  std::vector<ProgramBuffer> buffers;
  std::vector<ProgramOperand> operands;
  std::vector<ProgramStep> steps;
  // One after another, all steps. The first is forward, at its end the outputs are ready; the others are backward.
  std::vector<ProgramRegion> regions;
  std::vector<ProgramOutput> outputs;
  std::vector<ProgramUpdate> updates;
  std::vector<int32_t> gradients;         // operand of gradient i
  std::vector<int32_t> gradient_targets;  // input of gradient i
  int32_t contexts = 0;                   // context slots
  std::string constants;                  // bytes; every constant is 64-byte aligned
  // In which order buffers and scratch packed best when planning: indices of buffers, behind them those of steps.
  std::vector<int32_t> pack_order;
};

inline size_t symbol_count(const Program& program) {
  return program.symbols.size() + program.step_symbols.size() + 2 * program.loops.size();
}
// The symbol of a loop's first row; that of the block's rows is the next.
inline size_t loop_symbol(const Program& program, size_t loop) {
  return program.symbols.size() + program.step_symbols.size() + 2 * loop;
}

// The step at which backward begins, or the number of steps.
inline int32_t forward_end(const Program& program) { return program.regions.empty() ? 0 : program.regions[0].end; }

// Sets the first and last step of every planned buffer from what the steps touch: a buffer that a loop touches and does
// not itself make and use up in one block lives as long as the loop, what a begun call touches lives until its wait,
// gradients live to the end of the region that hands them out.
void set_lifetimes(Program& program);

// Throws Error(kInvalidProgram) naming what is wrong: indices, lifetimes, size code, unknown kernel kinds. A loaded
// Program passes before it runs.
void check(const Program& program);

// The text form: what plan_text() shows begins with it, what save writes is it. parse_program(print(p)) prints the
// same.
std::string print(const Program& program);
Program parse_program(std::string_view text);

}  // namespace lowtide
