// A kernel: a function on strided tensors. Planning chooses one per node from the static lists (best first, reference
// last); the executor calls it. Kernels never throw and never allocate but from `scratch`.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "opset/attrs.h"
#include "opset/op.h"

namespace lowtide {

constexpr int kMaxRank = 8;

// Sizes and strides in elements; stride 0 repeats. data may be null only if numel is 0, the operand is absent (dtype
// kContext never appears) or one that OperandRules::may_lack names.
struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int32_t rank = 0;
  bool present = false;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  int64_t numel() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= sizes[i];
    return product;
  }
  bool is_row_major() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (sizes[i] != 1 && strides[i] != expected) return false;
      expected *= sizes[i];
    }
    return true;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// What a run of a kernel gets. Output buffers may be any bytes before; outputs that nobody wants are not `present`.
// Sizes and strides are those that it was prepared for: layouts, and how they are walked, are in its state.
struct KernelCall {
  std::span<const TensorRef> inputs;
  std::span<const TensorRef> outputs;
  void* scratch = nullptr;  // 64-byte aligned, `scratch_bytes` as the kernel's scratch function asked
  int64_t scratch_bytes = 0;
  uint64_t random_key = 0;      // of this forward; a random op combines it with its `stream`
  const void* state = nullptr;  // what the kernel's `prepare` made of these operands and attributes
};

// What a kernel gets once, when its operands are bound: no data yet, but the attributes, which a run cannot look up.
struct BoundCall : KernelCall {
  const BoundAttrs* attrs = nullptr;
};

// nullptr: done. Else a message of static storage or of the thread: the user's data is wrong (an index out of range);
// nothing of the caller's was written.
using KernelStatus = const char*;
using KernelFunction = KernelStatus (*)(const KernelCall&);
using PrepareFunction = void (*)(const BoundCall&, void* state);
using ScratchFunction = int64_t (*)(const BoundCall&);

// What the planner tells a kernel before choosing it. Sizes may be symbolic there, so only ranks, dtypes, attributes
// and layout classes.
enum class Layout : uint8_t {
  kRowMajor,      // dense, last dim fastest
  kChannelsLast,  // dense, dim 1 fastest (N H W C in memory, or N L C)
  kInnerDense,    // last dim has stride 1 (or size 1); the others any
  kStrided,       // anything, stride 0 included
};
constexpr int64_t kUnknownSize = -1;
struct OperandInfo {
  DType dtype = DType::kF32;
  int rank = 0;
  bool present = false;
  Layout layout = Layout::kRowMajor;
  // By dim: what the plan knows of it.
  std::array<int64_t, kMaxRank> sizes = [] {
    std::array<int64_t, kMaxRank> none;
    none.fill(kUnknownSize);
    return none;
  }();
};
struct KernelQuery {
  Op op;
  std::span<const OperandInfo> inputs;
  std::span<const OperandInfo> outputs;
  // Attribute lookup without Dims: names that are symbolic in the graph are missing here.
  const BoundAttrs* attrs;
};
using SupportsFunction = const char* (*)(const KernelQuery&);

// What an op computes in that may convert as it reads and writes (ops.def: LT_CONVERTS); `otherwise` if it does not.
inline DType computed_dtype(const BoundAttrs& attrs, DType otherwise) {
  return attrs.get_or<DType>("computes", otherwise);
}

// What a kernel accepts of an input's layout; the plan inserts a Copy step where an operand does not comply.
enum class Accept : uint8_t {
  kRowMajor,
  kDense,  // row-major or channels-last, the same for all inputs of that rule and rank
  kInnerDense,
  kAny,
  kAnyRepeated,   // any, but what serves all of dim 0 of [B, H, S, D] is best read with a last stride of 0 or 1
  kChannelsLast,  // where of rank 4; else row-major
};

// How the plan lays out an output. Of rank 4 alone, and kFollowsInput of rank 3 too: others are row-major.
enum class OutputLayout : uint8_t {
  kRowMajor,
  kChannelsLast,
  kFollowsInput,  // channels-last where the first input of the output's shape is; else row-major
  kHeadsLast,     // [B, H, S, D] lies as [B, S, H, D], so that merging the heads afterwards is a view
  kAsAsked,       // dense, in whatever order of dims the step is made for
};

struct OutputRule {
  OutputLayout layout = OutputLayout::kRowMajor;
  // The input whose bytes the output may take over (same dtype, sizes and strides), and a second choice; -1: none.
  int8_t takes = -1;
  int8_t else_takes = -1;
  // The output holds three parts (ops/packed_heads.h) and may take over the bytes that three inputs, from this one on,
  // are those parts of. -1: none.
  int8_t takes_whole_of = -1;
  // The output is the sum of the inputs: where one of them is an incoming gradient that the caller sends none of and
  // the output has taken the other's bytes, the step has nothing to do.
  bool is_sum_of_inputs = false;
};

// What a kernel asks of its operands and may do with their bytes: all that planning and checking know of them.
struct OperandRules {
  std::array<Accept, 7> inputs = {};
  std::array<OutputRule, 3> outputs = {};
  // An input without which the kernel does its work as if it were zeros: where it is an incoming gradient that the
  // caller sends none of, its data is null, and no zeros are made. -1: none.
  int8_t may_lack = -1;

  // The last rule serves all further inputs; further outputs are row-major, in bytes of their own.
  Accept input(size_t i) const { return inputs[std::min(i, inputs.size() - 1)]; }
  OutputRule output(size_t o) const { return o < outputs.size() ? outputs[o] : OutputRule{}; }
};

// Which of its results a kernel computes from the same numbers in the same order, whether it runs for all rows at once
// or for some rows at a time: what lets a plan run it in blocks of rows with the same bits.
constexpr int64_t kSumBlockRows = 256;
// Of blocks that are whole batches as well, the least of so many rows or more.
inline int64_t rows_of_block(int64_t block_rows, int64_t batch_rows) {
  const int64_t unit = std::lcm(std::max<int64_t>(batch_rows, 1), kSumBlockRows);
  return (block_rows + unit - 1) / unit * unit;
}
enum class RowWork : uint8_t {
  kWhole,     // none
  kElements,  // all; operands broadcast like numpy
  kRows,      // rows along the dims before attribute `axis`; operands of fewer dims serve all rows
  kProducts,  // rows of the first operand, and batches; sums over rows, in blocks of a multiple of kSumBlockRows
  kSums,      // sums over rows, in such blocks
  kDrawn,     // all, each with a number that is drawn for it: attribute "first_element" is the first one's
  kHeads,     // of attention, whole batches of as many rows as there are queries: dim 0 of each operand that has them;
              // "first_element" of the scores
  kHeadsGrad,
};

struct Kernel {
  Op op;
  const char* name;      // "cpu.attention", unique; a Program names its kernels by it
  const char* provider;  // cpu, blas, aten, reference
  KernelFunction run;
  // Resolves once what stays the same from run to run: attributes, layouts, blocking. Gets bound operands without data;
  // writes plain bytes at `state`, which `run` then reads. nullptr: there is nothing to prepare. See
  // kernels/prepared.h.
  PrepareFunction prepare = nullptr;
  size_t state_bytes = 0;
  size_t state_bytes_each = 0;  // and so many for each operand, absent ones too
  // nullptr: takes it; else the reason for refusing. Called at planning.
  SupportsFunction supports = nullptr;
  OperandRules rules = {};
  // Bytes of scratch for one call with these (bound) operands; nullptr: none.
  ScratchFunction scratch_bytes = nullptr;
  // With so many the call still works, by no bit another, at some loss of speed: no more than scratch_bytes, no fewer
  // for larger operands. nullptr: it needs all.
  ScratchFunction least_scratch_bytes = nullptr;
  // Bytes that a library allocates and frees again within one call (PyTorch's convolution): part of the plan's peak.
  // nullptr: none.
  ScratchFunction library_bytes = nullptr;
  RowWork row_work = RowWork::kWhole;
};

inline size_t state_bytes_of(const Kernel& kernel, const KernelCall& call) {
  return kernel.state_bytes + kernel.state_bytes_each * (call.inputs.size() + call.outputs.size());
}

// Best first, reference last. Every op but views, calls and control has at least a reference kernel.
std::span<const Kernel> kernels_of(Op op);
const Kernel* find_kernel(std::string_view name);
std::span<const Kernel> all_kernels();

}  // namespace lowtide
