#include "session/step_check.h"

#include <algorithm>

#include "base/check.h"
#include "emit/storage.h"
#include "ir/verify.h"
#include "ops/packed_heads.h"
#include "ops/rules.h"

namespace lowtide {

namespace {

int64_t value_of(const Binding& binding, int64_t expression) { return binding.values[static_cast<size_t>(expression)]; }

Shape evaluated(const Binding& binding, const std::vector<ExpressionId>& expressions) {
  Shape shape;
  for (ExpressionId id : expressions) shape.emplace_back(value_of(binding, id));
  return shape;
}

// The numbers of a bound list as the graph has them.
Attrs graph_attrs(const BoundAttrs& bound) {
  Attrs result;
  for (const auto& [name, value] : bound)
    std::visit(
        [&, &name = name](const auto& held) {
          using Held = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<Held, std::vector<int64_t>>) {
            result.set(name, Shape(held.begin(), held.end()));
          } else if constexpr (std::is_same_v<Held, int64_t>) {
            result.set(name, Dim(held));
          } else {
            result.set(name, held);
          }
        },
        value);
  return result;
}

class StepChecker {
 public:
  StepChecker(const Program& program, const Binding& binding) : program_(program), binding_(binding) {}

  // The step as a graph of one node, which the graph's own checks know how to read.
  void run(const ProgramStep& step) {
    const Kernel* kernel = find_kernel(step.kernel);
    LT_USER_CHECK(ErrorKind::kInvalidProgram, kernel != nullptr, "this build has no kernel ", step.kernel);
    try {
      check_types(step, *kernel);
      check_layouts(step, *kernel);
      check_sharing(step, *kernel);
    } catch (const Error& error) {
      LT_USER_FAIL(ErrorKind::kInvalidProgram, step.kernel, " cannot run ", step.node, ": ", error.what());
    }
  }

 private:
  const ProgramOperand& operand(int32_t id) const { return program_.operands[static_cast<size_t>(id)]; }

  TensorType type_of(int32_t id) const { return {operand(id).dtype, evaluated(binding_, operand(id).sizes)}; }

  void check_types(const ProgramStep& step, const Kernel& kernel) const {
    Graph graph("step");
    std::vector<ValueId> inputs;
    for (int32_t id : step.inputs)
      inputs.push_back(id < 0 ? ValueId{}
                              : graph.add_input(concat("x", inputs.size()), type_of(id), InputKind::kInput));
    std::vector<TensorType> types;
    std::vector<bool> wanted;
    for (int32_t id : step.outputs) {
      types.push_back(id < 0 ? TensorType{DType::kF32, {}} : type_of(id));
      wanted.push_back(id >= 0);
    }
    graph.add_node(kernel.op, std::move(inputs), std::move(types), graph_attrs(bind_attrs(binding_, step.attrs)), {},
                   {}, {}, wanted);
    verify(graph);
    verify_types(graph);
    const bool makes_all = std::find(wanted.begin(), wanted.end(), false) == wanted.end();
    const bool makes_some = std::find(wanted.begin(), wanted.end(), true) != wanted.end();
    LT_USER_CHECK(ErrorKind::kInvalidProgram, makes_all || (makes_some && info(kernel.op).max_outputs > 1),
                  "it has no output");
  }

  OperandInfo info_of(int32_t id) const {
    if (id < 0) return {};
    const Shape shape = evaluated(binding_, operand(id).sizes);
    OperandInfo info{operand(id).dtype, static_cast<int>(shape.size()), true,
                     layout_of(shape, evaluated(binding_, operand(id).strides))};
    for (size_t i = 0; i < shape.size(); ++i) info.sizes[i] = shape[i].constant();
    return info;
  }

  bool may_write(OutputLayout rule, const ProgramOperand& output, Layout layout) const {
    const Shape sizes = evaluated(binding_, output.sizes), strides = evaluated(binding_, output.strides);
    switch (rule) {
      case OutputLayout::kRowMajor: return false;
      case OutputLayout::kChannelsLast:
      case OutputLayout::kFollowsInput: return layout == Layout::kChannelsLast;
      case OutputLayout::kHeadsLast:
        return sizes.size() == 4 && same_strides(sizes, strides, heads_last_strides(sizes));
      case OutputLayout::kAsAsked: return is_dense(sizes, strides);
    }
    return false;
  }

  void check_layouts(const ProgramStep& step, const Kernel& kernel) const {
    std::vector<OperandInfo> inputs, outputs;
    for (int32_t id : step.inputs) inputs.push_back(info_of(id));
    for (int32_t id : step.outputs) outputs.push_back(info_of(id));
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Accept accept = kernel.rules.input(i);
      const Layout layout = inputs[i].layout;
      const bool fits =
          !inputs[i].present || accept == Accept::kAny || accept == Accept::kAnyRepeated ||
          layout == Layout::kRowMajor ||
          (accept == Accept::kInnerDense ? layout == Layout::kInnerDense
                                         : accept != Accept::kRowMajor && layout == Layout::kChannelsLast);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, fits, "operand ", i, " has strides that it cannot read");
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].present) continue;
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    outputs[i].layout == Layout::kRowMajor ||
                        may_write(kernel.rules.output(i).layout, operand(step.outputs[i]), outputs[i].layout),
                    "output ", i, " has strides that it cannot write");
    }
    const BoundAttrs attrs = bind_attrs(binding_, step.attrs);
    const KernelQuery query{kernel.op, inputs, outputs, &attrs};
    const char* refusal = kernel.supports ? kernel.supports(query) : nullptr;
    LT_USER_CHECK(ErrorKind::kInvalidProgram, refusal == nullptr, "it refuses: ", refusal ? refusal : "");
  }

  struct Place {
    int32_t buffer;
    DType dtype;
    Dim offset;
    Shape sizes, strides;
  };
  Place place_of(const ProgramOperand& of) const {
    return {of.buffer, of.dtype, value_of(binding_, of.offset), evaluated(binding_, of.sizes),
            evaluated(binding_, of.strides)};
  }
  // Of three (ops/packed_heads.h); of any other, that of none.
  Place part_of(const ProgramStep& step, const ProgramOperand& packed, int part) const {
    const Place whole = place_of(packed);
    const int64_t axis = bind_attrs(binding_, step.attrs).i("packed");
    const bool is_packed = whole.sizes.size() == 5 && (axis == 2 || axis == 3) && part >= 0 && part < 3;
    if (!is_packed) return {-1, whole.dtype, 0, {}, {}};
    const Strided lies = parts_of_packed_heads(whole.sizes, axis)[static_cast<size_t>(part)];
    const Shape sizes = heads_of_packed(whole.sizes, axis);
    return {whole.buffer, whole.dtype, whole.offset + lies.offset, sizes, lies.strides};
  }

  // Same offset, sizes and strides in one buffer.
  static bool same_place(const Place& a, const Place& b) {
    return a.buffer == b.buffer && a.offset == b.offset && size_bytes(a.dtype) == size_bytes(b.dtype) &&
           a.sizes == b.sizes && a.strides == b.strides;
  }
  bool same_place(const ProgramOperand& a, const ProgramOperand& b) const {
    return same_place(place_of(a), place_of(b));
  }
  bool same_place(const ProgramOperand& a, const Place& b) const { return same_place(place_of(a), b); }

  void check_sharing(const ProgramStep& step, const Kernel& kernel) const {
    for (size_t o = 0; o < step.outputs.size(); ++o) {
      if (step.outputs[o] < 0) continue;
      const ProgramOperand& output = operand(step.outputs[o]);
      const OutputRule rule = kernel.rules.output(o);
      bool shares = false, in_place = false;
      for (size_t i = 0; i < step.inputs.size(); ++i) {
        if (step.inputs[i] < 0 || operand(step.inputs[i]).buffer != output.buffer) continue;
        const int input = static_cast<int>(i);
        shares = true;
        if (rule.takes_whole_of >= 0 && step.attrs.has("packed")) {
          const bool is_part = same_place(operand(step.inputs[i]), part_of(step, output, input - rule.takes_whole_of));
          LT_USER_CHECK(ErrorKind::kInvalidProgram, is_part, "operand ", i, " lies across output ", o);
          in_place = true;
          continue;
        }
        LT_USER_CHECK(ErrorKind::kInvalidProgram, same_place(operand(step.inputs[i]), output), "output ", o,
                      " lies across operand ", i);
        in_place = in_place || rule.takes == input || rule.else_takes == input;
      }
      LT_USER_CHECK(ErrorKind::kInvalidProgram, in_place || !shares, "output ", o, " would overwrite an operand");
      for (size_t other = 0; other < o; ++other)
        LT_USER_CHECK(ErrorKind::kInvalidProgram,
                      step.outputs[other] < 0 || operand(step.outputs[other]).buffer != output.buffer, "outputs ",
                      other, " and ", o, " share a buffer");
    }
  }

  const Program& program_;
  const Binding& binding_;
};

}  // namespace

void check_steps(const Program& program, const Binding& binding) {
  // Steps are checked once, at the sizes that they have now.
  LT_USER_CHECK(ErrorKind::kInvalidProgram, program.loops.empty() && program.step_symbols.empty(),
                "a stored plan whose sizes change while it runs");
  StepChecker checker(program, binding);
  for (const ProgramStep& step : program.steps)
    if (step.kind == StepKind::kKernel) checker.run(step);
}

}  // namespace lowtide
