#include "bind/planned_sizes.h"

#include <algorithm>

#include "base/size_code.h"

namespace lowtide {

std::vector<CountedSize> counted_sizes(const Program& program) {
  std::vector<CountedSize> found;
  for (size_t i = 0; i < program.step_symbols.size(); ++i) {
    const ProgramStep& step = program.steps[static_cast<size_t>(program.step_symbols[i].step)];
    const int64_t* without = step.attrs.has("without") ? &step.attrs.dim("without") : nullptr;
    if (without == nullptr || step.inputs.size() < 2 || step.inputs[1] < 0) continue;
    const ProgramOperand& counted = program.operands[static_cast<size_t>(step.inputs[1])];
    const ProgramBuffer& buffer = program.buffers[static_cast<size_t>(counted.buffer)];
    const std::vector<int64_t>& code = program.expressions[static_cast<size_t>(*without)];
    const bool is_number = code.size() == 2 && code[0] == kSizePush;
    if (buffer.kind == BufferKind::kCaller && buffer.source >= 0 && counted.dtype == DType::kI64 && is_number)
      found.push_back({i, static_cast<int32_t>(buffer.source), code[1]});
  }
  return found;
}

bool fit_symbols(const Program& program, std::span<const int64_t> symbol_values) {
  const size_t count = program.symbols.size();
  return symbol_values.size() == count || symbol_values.size() == count + counted_sizes(program).size();
}

std::vector<int64_t> planned_sizes(const Program& program, std::span<const int64_t> symbol_values) {
  const size_t count = program.symbols.size();
  std::vector<int64_t> values(symbol_values.begin(), symbol_values.begin() + static_cast<std::ptrdiff_t>(count));
  const std::span<const int64_t> bounds = symbol_values.subspan(count);
  const std::vector<CountedSize> counted = bounds.empty() ? std::vector<CountedSize>() : counted_sizes(program);
  values.resize(count + program.step_symbols.size(), 0);
  for (size_t i = 0; i < program.step_symbols.size(); ++i) {
    int64_t& most = values[count + i];
    most = run_size_code(program.expressions[static_cast<size_t>(program.step_symbols[i].high)], values);
    for (size_t j = 0; j < counted.size(); ++j)
      if (counted[j].step_symbol == i) most = std::min(most, bounds[j]);
  }
  return values;
}

}  // namespace lowtide
