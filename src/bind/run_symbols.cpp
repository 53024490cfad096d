#include "bind/run_symbols.h"

#include <algorithm>
#include <limits>

#include "base/size_code.h"

namespace lowtide {

namespace {

// What depends on several symbols is set with the last of them: until then the others' values are of another step.
class UseFinder {
 public:
  UseFinder(const Program& program, Binding& binding)
      : program_(program), binding_(binding), uses_(program.step_symbols.size() + program.loops.size()) {}

  std::vector<SymbolUse> find() {
    for (size_t i = 0; i < program_.expressions.size(); ++i) last_.push_back(visit_expression(i));
    for (size_t i = 0; i < program_.steps.size(); ++i) visit_step(i);
    return std::move(uses_);
  }

 private:
  // Steps write sizes outside of loops: a block's numbers come later than any of them.
  int32_t later(int32_t a, int32_t b) const {
    const auto step = [&](int32_t use) {
      if (use < 0) return -1;
      const auto at = static_cast<size_t>(use);
      return at < program_.step_symbols.size() ? program_.step_symbols[at].step : std::numeric_limits<int32_t>::max();
    };
    return step(a) < step(b) ? b : a;
  }

  int32_t last_of(const std::vector<ExpressionId>& expressions, int32_t last) const {
    for (ExpressionId id : expressions) last = later(last, last_[static_cast<size_t>(id)]);
    return last;
  }

  // The last use that the expression depends on, or -1.
  int32_t visit_expression(size_t index) {
    const std::vector<int64_t>& code = program_.expressions[index];
    int32_t last = -1;
    for (size_t at = 0; at < code.size(); ++at) {
      if (code[at] != kSizePush && code[at] != kSizeSymbol) continue;
      const bool is_symbol = code[at++] == kSizeSymbol;
      size_t symbol = static_cast<size_t>(code[at]);
      if (!is_symbol || symbol < program_.symbols.size()) continue;
      symbol -= program_.symbols.size();
      const size_t steps = program_.step_symbols.size();
      const size_t use = symbol < steps ? symbol : steps + (symbol - steps) / 2;
      std::vector<int32_t>& expressions = uses_[use].expressions;
      if (expressions.empty() || expressions.back() != static_cast<int32_t>(index))
        expressions.push_back(static_cast<int32_t>(index));
      last = later(last, static_cast<int32_t>(use));
    }
    return last;
  }

  void visit_step(size_t index) {
    BoundStep& bound = binding_.steps[index];
    int32_t last_change = -1;
    for (int32_t ref = bound.first; ref < bound.first + bound.inputs + bound.outputs; ++ref) {
      const int32_t id = binding_.ref_operands[static_cast<size_t>(ref)];
      if (id < 0) continue;
      const ProgramOperand& operand = program_.operands[static_cast<size_t>(id)];
      const int32_t resized = last_of(operand.strides, last_of(operand.sizes, -1));
      const int32_t last = later(resized, last_[static_cast<size_t>(operand.offset)]);
      if (last >= 0) uses_[static_cast<size_t>(last)].refs.push_back(ref);
      if (resized >= 0) last_change = later(last_change, last);  // only then the ref has its sizes
    }
    for (const auto& [name, value] : program_.steps[index].attrs) {
      const int64_t* id = std::get_if<int64_t>(&value);
      const auto* ids = std::get_if<std::vector<int64_t>>(&value);
      int32_t last = id != nullptr ? last_[static_cast<size_t>(*id)] : -1;
      if (ids != nullptr)
        for (int64_t each : *ids) last = later(last, last_[static_cast<size_t>(each)]);
      if (last < 0) continue;
      uses_[static_cast<size_t>(last)].attrs.emplace_back(&value,
                                                          const_cast<BoundAttrs::Value*>(bound.attrs.find(name)));
      last_change = later(last_change, last);
    }
    if (last_change >= 0) uses_[static_cast<size_t>(last_change)].steps.push_back(static_cast<int32_t>(index));
  }

  const Program& program_;
  Binding& binding_;
  std::vector<SymbolUse> uses_;
  std::vector<int32_t> last_;  // by expression
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
  return UseFinder(program, binding).find();
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
    if (least_scratch_bytes(*step.kernel, call) > step.scratch_bytes)
      return "its kernel needs more scratch with the sizes that steps found than with the most they may be";
    if (step.kernel->prepare) step.kernel->prepare(call, step.state);
  }
  return nullptr;
}

}  // namespace lowtide
