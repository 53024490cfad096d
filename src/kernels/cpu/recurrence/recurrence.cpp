// Rows of a recurrent layer know nothing of each other: some of them at a time go through all steps, on one thread. The
// weight is packed once for all.
#include "kernels/cpu/dense.h"
#include "kernels/cpu/gemm/blocks.h"
#include "kernels/cpu/recurrence/recurrence_table.h"
#include "kernels/kernel_lines.h"
#include "kernels/reference/recurrent_states.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

using reference::Recurrent, reference::RecurrentBackward, reference::RecurrentForward;

// The gates of an LSTM are activated where they lie, and what flows into them goes there again.
constexpr OperandRules kGatesInPlace = {.outputs = {OutputRule{}, OutputRule{}, OutputRule{.takes = 0}}};
constexpr OperandRules kGatesGradInPlace = {.outputs = {OutputRule{.takes = 5}}};

template <class Number>
struct Layer {
  explicit Layer(const Recurrent& of)
      : steps(of.steps),
        rows(of.rows),
        units(of.units),
        width(of.cell().gates * of.units),
        kept(of.cell().kept * of.units),
        panels(rounded_up(recurrence_table().loops<Number>().packed(units, width), kLine)),
        back_panels(rounded_up(recurrence_table().loops<Number>().packed(width, units), kLine)) {
    // The more rows, the less often the weight goes by; the fewer, the more threads have some, all of them as many.
    const int64_t unit = recurrence_table().loops<Number>().row_unit;
    const int64_t wanted = unit * (rows <= 2 * unit ? 1 : rows <= 8 * unit ? 2 : rows <= 32 * unit ? 4 : 8);
    const int64_t tasks = rows <= wanted ? 1 : rounded_up((rows + wanted - 1) / wanted, 2);
    at_once = (rows + tasks - 1) / tasks;
    slot = rounded_up(at_once * (2 * units + width), kLine);
  }
  int64_t bytes(int64_t packed) const {
    return std::max<int64_t>(64, (packed + slot * parallel_threads()) * static_cast<int64_t>(sizeof(Number)));
  }
  int64_t tasks() const { return at_once == 0 ? 0 : (rows + at_once - 1) / at_once; }
  bool is_small() const { return 2.0 * static_cast<double>(steps * rows * width * units) < 4e6; }

  static constexpr int64_t kLine = 64 / sizeof(Number);
  int64_t steps, rows, units, width, kept;
  int64_t panels, back_panels;  // numbers of the packed weight, by which a state and a gradient is multiplied
  int64_t at_once, slot;
};

template <class Number>
Number* find(const TensorRef* tensor) {
  return tensor == nullptr ? nullptr : tensor->as<Number>();
}
template <class Number>
const Number* from(const KernelCall& call, size_t index) {
  return find<const Number>(input(call, index));
}
template <class Number>
Number* to(const KernelCall& call, size_t index) {
  return find<Number>(output(call, index));
}

template <class Number>
void copy_or_clear(const Number* source, int64_t count, Number* target) {
  if (target == nullptr) return;
  if (source == nullptr) {
    std::fill_n(target, count, Number(0));
  } else {
    std::copy_n(source, count, target);
  }
}
template <class Number>
Number* moved(Number* tensor, int64_t by) {
  return tensor == nullptr ? nullptr : tensor + by;
}

// Rows [first, first + count) of all steps.
struct SomeRows {
  const KernelCall& call;
  const Recurrent& layer;
  int64_t first, count;

  bool is_in(int64_t t, int64_t row) const { return t < layer.length(call, first + row); }
  // How many there are up to the last that has this step.
  int64_t to_last(int64_t t) const {
    int64_t end = count;
    while (end > 0 && !is_in(t, end - 1)) --end;
    return end;
  }
};

template <class Number>
void run_forward(const SomeRows& some, const Layer<Number>& sizes, const Number* panels, Number* slot) {
  const RecurrenceLoops<Number>& loops = recurrence_table().loops<Number>();
  const KernelCall& call = some.call;
  const int64_t units = sizes.units, width = sizes.width, kept = sizes.kept;
  Number *state = slot, *memory = state + sizes.at_once * units, *sums = memory + sizes.at_once * units;
  copy_or_clear(from<Number>(call, 2) + some.first * units, some.count * units, state);
  copy_or_clear(moved(from<Number>(call, 3), some.first * units), some.count * units, memory);
  Number *y = to<Number>(call, 0), *memories = to<Number>(call, 3), *activated = to<Number>(call, 2);
  for (int64_t turn = 0; turn < sizes.steps; ++turn) {
    const int64_t t = some.layer.step(turn), rows = some.to_last(t);
    if (rows > 0) loops.multiply(rows, width, units, state, units, panels, sums, false);
    for (int64_t row = 0; row < some.count; ++row) {
      const int64_t at = t * sizes.rows + some.first + row;
      if (some.is_in(t, row)) {
        loops.forward[static_cast<int>(some.layer.kind)](
            {from<Number>(call, 0) + at * width, sums + row * width, from<Number>(call, 4), state + row * units,
             memory + row * units, moved(y, at * units), moved(memories, at * units), moved(activated, at * kept)},
            units);
      } else {
        copy_or_clear<Number>(nullptr, units, moved(y, at * units));
        copy_or_clear<Number>(nullptr, units, moved(memories, at * units));
        copy_or_clear<Number>(nullptr, kept, moved(activated, at * kept));
      }
    }
  }
  copy_or_clear(state, some.count * units, moved(to<Number>(call, 1), some.first * units));
  copy_or_clear(memory, some.count * units, moved(to<Number>(call, 4), some.first * units));
}

template <class Number>
void run_backward(const SomeRows& some, const Layer<Number>& sizes, const Number* panels, Number* slot) {
  const RecurrenceLoops<Number>& loops = recurrence_table().loops<Number>();
  const KernelCall& call = some.call;
  const Recurrent& layer = some.layer;
  const int64_t units = sizes.units, width = sizes.width, kept = sizes.kept;
  Number *dstate = slot, *dmemory = dstate + sizes.at_once * units, *own = dmemory + sizes.at_once * units;
  copy_or_clear(moved(from<Number>(call, 7), some.first * units), some.count * units, dstate);
  copy_or_clear(moved(from<Number>(call, 8), some.first * units), some.count * units, dmemory);
  const Number *dy = from<Number>(call, 6), *y = from<Number>(call, 0), *memories = from<Number>(call, 4);
  const Number *activated = from<Number>(call, 5), *state = from<Number>(call, 2), *memory = from<Number>(call, 3);
  Number *dgates = to<Number>(call, 0), *before = to<Number>(call, 3), *of_state = to<Number>(call, 4);
  for (int64_t turn = sizes.steps - 1; turn >= 0; --turn) {
    const int64_t t = layer.step(turn), rows = some.to_last(t), begin = t * sizes.rows + some.first;
    // What is multiplied by the weight: a result, or of one that is not wanted rows of our own.
    Number* result = layer.cell().splits_state ? of_state : dgates;
    Number* slopes = result != nullptr ? result + begin * width : own;
    for (int64_t row = 0; row < some.count; ++row) {
      const int64_t at = begin + row, index = some.first + row;
      if (!some.is_in(t, row)) {
        copy_or_clear<Number>(nullptr, width, moved(dgates, at * width));
        copy_or_clear<Number>(nullptr, width, slopes + row * width);
        copy_or_clear<Number>(nullptr, units, moved(before, at * units));
        continue;
      }
      const bool has_before = layer.has_before(t, layer.length(call, index));
      const int64_t earlier = layer.step_before(t) * sizes.rows + index;
      const Number* state_before = has_before ? y + earlier * units : state + index * units;
      const Number* memory_before = has_before ? moved(memories, earlier * units) : moved(memory, index * units);
      copy_or_clear(state_before, units, moved(before, at * units));
      loops.backward[static_cast<int>(layer.kind)](
          {moved(dy, at * units), y + at * units, moved(memories, at * units), moved(activated, at * kept),
           state_before, memory_before, dstate + row * units, dmemory + row * units,
           layer.cell().splits_state ? moved(dgates, at * width) : slopes + row * width, slopes + row * width},
          units);
    }
    if (rows > 0) loops.multiply(rows, units, width, slopes, width, panels, dstate, true);
  }
  copy_or_clear(dstate, some.count * units, moved(to<Number>(call, 1), some.first * units));
  copy_or_clear(dmemory, some.count * units, moved(to<Number>(call, 2), some.first * units));
}

// run(some rows, sizes, panels, slot)
template <class Number, class Run>
KernelStatus run_rows(const KernelCall& call, const Recurrent& layer, bool transposed, Run run) {
  if (const KernelStatus refused = layer.refusal(call)) return refused;
  const Layer<Number> sizes(layer);
  Number* panels = static_cast<Number*>(call.scratch);
  const int64_t packed = transposed ? sizes.panels : sizes.back_panels;
  const int64_t depth = transposed ? sizes.units : sizes.width, cols = transposed ? sizes.width : sizes.units;
  recurrence_table().loops<Number>().pack(from<Number>(call, 1), sizes.units, transposed, depth, cols, panels);
  const int64_t bytes = call.scratch_bytes - packed * static_cast<int64_t>(sizeof(Number));
  run_tasks<Number>(sizes.tasks(), std::max(sizes.slot, Layer<Number>::kLine), panels + packed, bytes, sizes.is_small(),
                    [&](int64_t task, Number* slot) {
                      const int64_t first = task * sizes.at_once;
                      run(SomeRows{call, layer, first, std::min(sizes.at_once, sizes.rows - first)}, sizes, panels,
                          slot);
                    });
  return nullptr;
}

bool is_f32(const TensorRef& tensor) { return tensor.dtype == DType::kF32; }

const char* supports_recurrence(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  return dtype == DType::kF32 || dtype == DType::kF64 ? nullptr : "neither f32 nor f64";
}

template <class Number>
int64_t scratch(const Recurrent& layer, bool is_forward) {
  const Layer<Number> sizes(layer);
  return sizes.bytes(is_forward ? sizes.panels : sizes.back_panels);
}
int64_t recurrence_scratch(const BoundCall& call) {
  const RecurrentForward layer(call);
  return is_f32(call.inputs[0]) ? scratch<float>(layer, true) : scratch<double>(layer, true);
}
int64_t recurrence_grad_scratch(const BoundCall& call) {
  const RecurrentBackward layer(call);
  return is_f32(call.inputs[0]) ? scratch<float>(layer, false) : scratch<double>(layer, false);
}

KernelStatus recurrence(const KernelCall& call, const RecurrentForward& layer) {
  return is_f32(call.inputs[0]) ? run_rows<float>(call, layer, true, run_forward<float>)
                                : run_rows<double>(call, layer, true, run_forward<double>);
}
KernelStatus recurrence_grad(const KernelCall& call, const RecurrentBackward& layer) {
  return is_f32(call.inputs[0]) ? run_rows<float>(call, layer, false, run_backward<float>)
                                : run_rows<double>(call, layer, false, run_backward<double>);
}

}  // namespace

std::span<const Kernel> recurrence_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/recurrence/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
