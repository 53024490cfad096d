#include "bind/run_symbols.h"

#include <algorithm>

#include "base/size_code.h"

namespace lowtide {

namespace {

class UseFinder {
 public:
  UseFinder(const Program& program, Binding& binding) : program_(program), binding_(binding) {}

  // Of `count` symbols from `first` on.
  SymbolUse find(size_t first, size_t count) {
    SymbolUse use;
    depends_.assign(program_.expressions.size(), false);
    for (size_t i = 0; i < program_.expressions.size(); ++i) {
      const std::vector<int64_t>& code = program_.expressions[i];
      for (size_t at = 0; at < code.size(); ++at) {
        if (code[at] != kSizePush && code[at] != kSizeSymbol) continue;
        const bool is_symbol = code[at++] == kSizeSymbol;
        const size_t symbol = static_cast<size_t>(code[at]);
        if (is_symbol && symbol >= first && symbol < first + count) depends_[i] = true;
      }
      if (depends_[i]) use.expressions.push_back(static_cast<int32_t>(i));
    }
    for (size_t i = 0; i < program_.steps.size(); ++i) visit(i, use);
    return use;
  }

 private:
  bool depends(int64_t expression) const { return depends_[static_cast<size_t>(expression)]; }
  bool any_depends(const std::vector<ExpressionId>& expressions) const {
    return std::any_of(expressions.begin(), expressions.end(), [&](ExpressionId id) { return depends(id); });
  }

  void visit(size_t index, SymbolUse& use) const {
    BoundStep& bound = binding_.steps[index];
    bool changes = false;
    for (int32_t ref = bound.first; ref < bound.first + bound.inputs + bound.outputs; ++ref) {
      const int32_t id = binding_.ref_operands[static_cast<size_t>(ref)];
      if (id < 0) continue;
      const ProgramOperand& operand = program_.operands[static_cast<size_t>(id)];
      const bool resized = any_depends(operand.sizes) || any_depends(operand.strides);
      if (resized || depends(operand.offset)) use.refs.push_back(ref);
      changes = changes || resized;
    }
    for (const auto& [name, value] : program_.steps[index].attrs) {
      const int64_t* id = std::get_if<int64_t>(&value);
      const auto* ids = std::get_if<std::vector<int64_t>>(&value);
      if ((id != nullptr && depends(*id)) ||
          (ids != nullptr && std::any_of(ids->begin(), ids->end(), [&](int64_t each) { return depends(each); }))) {
        use.attrs.emplace_back(&value, const_cast<BoundAttrs::Value*>(bound.attrs.find(name)));
        changes = true;
      }
    }
    if (changes) use.steps.push_back(static_cast<int32_t>(index));
  }

  const Program& program_;
  Binding& binding_;
  std::vector<bool> depends_;  // by expression
};

// In place: nothing is allocated.
void bind_again(const Binding& binding, const BoundAttrs::Value& source, BoundAttrs::Value& bound) {
  auto value_of = [&](int64_t id) { return binding.values[static_cast<size_t>(id)]; };
  if (const int64_t* id = std::get_if<int64_t>(&source)) bound = value_of(*id);
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&source))
    std::transform(ids->begin(), ids->end(), std::get<std::vector<int64_t>>(bound).begin(), value_of);
}

}  // namespace

std::vector<SymbolUse> find_uses(const Program& program, Binding& binding) {
  UseFinder finder(program, binding);
  std::vector<SymbolUse> uses;
  for (size_t i = 0; i < program.step_symbols.size(); ++i) uses.push_back(finder.find(program.symbols.size() + i, 1));
  for (size_t i = 0; i < program.loops.size(); ++i) uses.push_back(finder.find(loop_symbol(program, i), 2));
  return uses;
}

KernelStatus set_symbols(const Program& program, Binding& binding, const SymbolUse& use, size_t first,
                         std::span<const int64_t> values, std::span<char* const> bases) {
  std::copy(values.begin(), values.end(), binding.all_symbols.begin() + static_cast<std::ptrdiff_t>(first));
  for (int32_t id : use.expressions)
    binding.values[static_cast<size_t>(id)] =
        run_size_code(program.expressions[static_cast<size_t>(id)], binding.all_symbols);
  for (int32_t index : use.refs) {
    const size_t at = static_cast<size_t>(index);
    const ProgramOperand& operand = program.operands[static_cast<size_t>(binding.ref_operands[at])];
    const size_t buffer = static_cast<size_t>(operand.buffer);
    TensorRef& ref = binding.refs[at];
    ref = bind_operand(program, binding, binding.ref_operands[at]);
    const int64_t offset = binding.values[static_cast<size_t>(operand.offset)];
    const int64_t bytes = size_bytes(operand.dtype);
    if (offset < 0 || (extent(ref) > 0 && (offset + extent(ref)) * bytes > binding.buffer_bytes[buffer]))
      return "an operand leaves its buffer with the sizes that steps found";
    binding.ref_offsets[at] = offset * bytes;
    if (bases[buffer] != nullptr) {
      ref.data = bases[buffer] + binding.ref_offsets[at];
    } else {  // a gradient that comes later, perhaps to where the last one was
      for (Relocations& relocations : binding.relocations) relocations.forget(buffer);
    }
  }
  for (const auto& [source, bound] : use.attrs) bind_again(binding, *source, *bound);
  for (int32_t index : use.steps) {
    BoundStep& step = binding.steps[static_cast<size_t>(index)];
    if (step.kernel == nullptr) continue;
    const BoundCall call = bound_call(binding, step);
    if (step.broadcasts && !operands_broadcast(call)) return "the sizes that steps found do not broadcast";
    if (step.kernel->scratch_bytes && step.kernel->scratch_bytes(call) > step.scratch_bytes)
      return "its kernel needs more scratch with the sizes that steps found than with the most they may be";
    if (step.kernel->prepare) step.kernel->prepare(call, step.state);
  }
  return nullptr;
}

}  // namespace lowtide
