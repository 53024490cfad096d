// A Program at given sizes: expressions evaluated, buffers packed, operands resolved. Made in milliseconds, kept per
// set of sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bind/report.h"
#include "kernels/device.h"
#include "pack/problem.h"
#include "program/program.h"

namespace lowtide {

struct Arena {
  int64_t size_bytes = 0;
  int64_t lower_bound_bytes = 0;  // the largest sum of what lives at the same time
};

// Where gradients lie: in the arena to the end of backward, or (where PyTorch still holds the last step's) in a block
// of their own. In both cases, those that are used up where they are handed out are in the arena until then.
struct Placement {
  bool separate = false;
  std::vector<bool> used_up;  // by gradient; empty: none is
  bool in_two = false;        // the host's arena, with `separate`: see Packing::kept_bytes
  friend bool operator==(const Placement&, const Placement&) = default;
};

// Of gradients that lie in no arena.
struct GradientBlock {
  int64_t size_bytes = 0;
  int32_t taken = 0;  // the region before which it is there
  int32_t left = 0;   // the region that hands out the last of it
};

struct GradientPlace {
  int32_t block = -1;  // -1: in an arena
  int64_t offset = 0;
};

// Offsets of the planned buffers, each in its device's arena.
struct Packing {
  Placement placement;
  std::vector<Arena> arenas;             // by device
  std::vector<int64_t> offsets;          // by buffer; -1: in no arena
  std::vector<int64_t> scratch_offsets;  // by step, in its device's arena; -1: none
  std::vector<GradientBlock> gradient_blocks;
  std::vector<GradientPlace> gradient_places;  // by buffer
  std::vector<int32_t> last;                   // by buffer: the last step of its life
  int64_t gradient_block_bytes = 0;            // of all of them
  // Of the host's arena, where it is two blocks: what backward needs of forward lies below, what only one of them needs
  // lies above, which nobody needs in between.
  int64_t kept_bytes = 0;
  int64_t passing_bytes() const { return arenas[0].size_bytes - kept_bytes; }
  // Of the host's arenas and gradient blocks, where so many forwards are pending at once.
  int64_t host_bytes(const Program& program, int64_t forwards) const;
};

struct Binding;

// What an Inspect step was asked for: lists in its attributes.
struct Inspection {
  const std::vector<int64_t>* records = nullptr;
  const std::vector<int64_t>* places = nullptr;
  const std::vector<int64_t>* sources = nullptr;  // incoming gradients that it comes from; none: of forward
};

// One step's operands are refs[first .. first + inputs + outputs).
struct BoundStep {
  const Kernel* kernel = nullptr;
  int32_t first = 0;
  int32_t inputs = 0;
  int32_t outputs = 0;
  BoundAttrs attrs;
  Inspection inspection;
  int64_t scratch_bytes = 0, least_scratch_bytes = 0;
  size_t grads = 0;    // of a call's backward: how many of its inputs are gradients
  int32_t device = 0;  // whose memory the kernel works in
  bool broadcasts = false;
  int32_t symbol = -1;    // of Program::step_symbols: the one that it writes
  void* state = nullptr;  // what its kernel was prepared to
};

// Of a loop's blocks, the last of which may have fewer. `value`: of an expression.
template <class Value>
int64_t block_rows(const ProgramLoop& loop, Value value) {
  return loop.batch_rows < 0 ? loop.block_rows : rows_of_block(loop.block_rows, value(loop.batch_rows));
}

// What follows from a step symbol or from a loop's two symbols.
struct SymbolUse {
  std::vector<int32_t> expressions;
  std::vector<int32_t> refs;                                                   // that move or change sizes
  std::vector<std::pair<const BoundAttrs::Value*, BoundAttrs::Value*>> attrs;  // of the Program, and bound
  std::vector<int32_t> steps;                                                  // to be prepared again
};

// Kernels' states lie in whole lines of the cache.
struct alignas(64) StateLine {
  std::byte bytes[64];
};

struct BoundGradient {
  TensorRef ref;
  int32_t buffer = 0;
  int64_t offset = 0;  // bytes into the buffer
};

// The operands of one region, by the buffer that they lie in. From step to step most buffers stay where they
// are, and an operand is written again only when its buffer has moved.
class Relocations {
 public:
  Relocations() = default;
  Relocations(const Binding& binding, size_t first_ref, size_t end_ref);
  void apply(Binding& binding, std::span<char* const> bases);
  // The buffer's operands are written again by the next apply.
  void forget(size_t buffer) { bases_[buffer] = nullptr; }

 private:
  std::vector<int32_t> first_;  // by buffer, in refs_
  std::vector<int32_t> refs_;
  std::vector<char*> bases_;  // by buffer: where its operands are now
};

struct Binding {
  std::vector<int64_t> symbol_values;  // of Program::symbols
  int threads = 1;                     // that scratch is for
  std::vector<int64_t> all_symbols;    // and of steps and loops: the most that they may be, then what they are
  std::vector<int64_t> values;         // of expressions
  std::vector<int64_t> buffer_bytes;   // by buffer
  std::vector<TensorRef> refs;         // operands of steps; data pointers are relocated before each region
  std::vector<int32_t> ref_operands;   // by ref; -1: absent
  std::vector<int32_t> ref_buffers;    // by ref; -1: absent
  std::vector<int64_t> ref_offsets;    // bytes into the buffer
  std::vector<BoundStep> steps;
  std::vector<StateLine> states;            // of prepared kernels
  std::vector<int64_t> most;                // by step symbol: the highest value that is planned for
  std::vector<SymbolUse> symbol_uses;       // by step symbol, then by loop
  std::vector<TensorRef> inputs, incoming;  // what the caller's tensors have to be; at most, of sizes that steps write
  std::vector<BoundGradient> gradients;
  std::vector<Relocations> relocations;          // by region
  Packing packing;                               // gradients in the arena to the end
  std::vector<std::unique_ptr<Packing>> others;  // made when first needed
  std::vector<int32_t> pack_order;
  MemoryReport report;
};

// How many records the Inspect steps make.
size_t count_records(const Program& program);

// Sizes of the operand `id` as a tensor without bytes.
TensorRef bind_operand(const Program& program, const Binding& binding, int32_t id);

// Whether the inputs broadcast to the first output: pointwise kernels trust them to.
bool operands_broadcast(const KernelCall& call);

// The elements from a tensor's first to its last: more than numel where strides leave gaps. Requires: a resolved
// tensor.
int64_t extent(const TensorRef& tensor);

// The call of a step, without scratch and random key: as a run of its kernel gets it, and as preparing it does.
KernelCall step_call(const Binding& binding, const BoundStep& step);
BoundCall bound_call(const Binding& binding, const BoundStep& step);

// The ints of program attributes are expressions.
BoundAttrs bind_attrs(const Binding& binding, const AttrList<int64_t>& attrs);

// `known_order`: of an earlier binding; empty: search thoroughly. `guard`: room for canaries around each buffer.
// `check_steps`, `devices`: as ExecutorOptions has them.
std::unique_ptr<Binding> bind_program(const Program& program, std::vector<int64_t> symbol_values,
                                      std::span<const int32_t> known_order, bool guard,
                                      const StepCheck& check_steps = {}, std::span<const Device* const> devices = {});

// The packing problem of one device's arena: planned buffers, then scratch of steps. Recorded plans in
// benchmarks/plans/ are written from it.
Problem packing_problem(const Program& program, const Binding& binding, const Placement& placement, bool guard,
                        int32_t device = 0);
const Packing& packing_with(const Program& program, Binding& binding, bool guard, const Placement& placement);

constexpr int64_t kCanaryBytes = 64;

}  // namespace lowtide
