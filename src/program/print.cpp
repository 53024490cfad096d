#include <charconv>
#include <sstream>

#include "base/text.h"
#include "program/text.h"

namespace lowtide {

std::string_view name(BufferKind kind) {
  constexpr std::string_view kNames[] = {"caller", "arena", "gradient", "output", "constant"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view name(StepKind kind) {
  constexpr std::string_view kNames[] = {"kernel", "emit", "bind", "host_call", "inspect", "loop", "begin", "wait"};
  return kNames[static_cast<size_t>(kind)];
}

uint64_t checksum(std::string_view text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      constexpr char kDigits[] = "0123456789abcdef";
      result += "\\x";
      result += kDigits[static_cast<unsigned char>(c) >> 4];
      result += kDigits[static_cast<unsigned char>(c) & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string number(double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

template <class Items>
std::string list(const Items& items) {
  return concat("[", join(items, " "), "]");
}

std::string quoted_list(const std::vector<std::string>& items) {
  return concat("[", join(items, " ", [](std::ostream& out, const std::string& x) { out << quoted(x); }), "]");
}

// Attributes carry a letter for their type: b bool, e expression, f float, s string, t dtype, es fs ss lists.
std::string attr_text(const AttrValue<int64_t>& value) {
  struct Writer {
    std::string operator()(bool v) const { return v ? "b true" : "b false"; }
    std::string operator()(int64_t v) const { return concat("e ", v); }
    std::string operator()(double v) const { return concat("f ", number(v)); }
    std::string operator()(const std::string& v) const { return concat("s ", quoted(v)); }
    std::string operator()(DType v) const { return concat("t ", name(v)); }
    std::string operator()(const std::vector<int64_t>& v) const { return concat("es ", list(v)); }
    std::string operator()(const std::vector<double>& v) const {
      return concat("fs [", join(v, " ", [](std::ostream& out, double x) { out << number(x); }), "]");
    }
    std::string operator()(const std::vector<std::string>& v) const { return concat("ss ", quoted_list(v)); }
  };
  return std::visit(Writer(), value);
}

void print_input(std::ostream& out, const char* what, const ProgramInput& input) {
  out << what << " " << quoted(input.name) << " " << name(input.dtype) << " " << list(input.sizes) << " "
      << list(input.strides) << " " << input.saved << " " << input.flexible << "\n";
}

}  // namespace

std::string print(const Program& program) {
  std::ostringstream out;
  out << "lowtide program " << kProgramVersion << " " << quoted(program.name) << "\n";
  for (size_t i = 0; i < program.symbols.size(); ++i) {
    const SymbolSource& symbol = program.symbols[i];
    out << "symbol " << quoted(symbol.name) << " " << symbol.input << " ";
    if (symbol.dim == SymbolSource::kNumber) {
      out << "number";
    } else {
      out << "dim " << symbol.dim;
    }
    out << " " << program.symbol_low[i] << " " << program.symbol_high[i] << "\n";
  }
  for (const StepSymbol& symbol : program.step_symbols)
    out << "step_symbol " << quoted(symbol.name) << " " << symbol.step << " " << symbol.operand << " " << symbol.low
        << " " << symbol.high << "\n";
  for (const ProgramLoop& loop : program.loops)
    if (loop.batch_rows < 0) {
      out << "loop " << loop.first << " " << loop.end << " " << loop.rows << " " << loop.block_rows << "\n";
    } else {
      out << "loop_of_batches " << loop.first << " " << loop.end << " " << loop.rows << " " << loop.block_rows << " "
          << loop.batch_rows << "\n";
    }
  out << "devices " << quoted_list(program.devices) << "\n";
  for (const auto& code : program.expressions) out << "expression " << list(code) << "\n";
  for (const ProgramInput& input : program.inputs) print_input(out, "input", input);
  for (size_t i = 0; i < program.gradient_inputs.size(); ++i) {
    print_input(out, "incoming", program.gradient_inputs[i]);
    out << "of " << program.gradient_outputs[i] << "\n";
  }
  for (const ProgramBuffer& buffer : program.buffers)
    out << "buffer " << quoted(buffer.name) << " " << name(buffer.kind) << " " << buffer.size_bytes << " "
        << buffer.first << " " << buffer.last << " " << buffer.source << " " << buffer.device << "\n";
  for (const ProgramOperand& operand : program.operands)
    out << "operand " << operand.buffer << " " << name(operand.dtype) << " " << operand.offset << " "
        << list(operand.sizes) << " " << list(operand.strides) << "\n";
  auto print_step = [&](const ProgramStep& step) {
    out << "step " << name(step.kind) << " " << quoted(step.kernel) << " " << list(step.inputs) << " "
        << list(step.outputs) << " " << step.index << " " << quoted(step.target) << " " << step.needs_grad << " "
        << quoted(step.node) << "\n";
    for (const auto& [key, value] : step.attrs) out << "attr " << quoted(key) << " " << attr_text(value) << "\n";
  };
  for (const ProgramRegion& region : program.regions) {
    out << "region " << quoted(region.name) << " " << list(region.gradients) << "\n";
    for (int32_t i = region.first; i < region.end; ++i) print_step(program.steps[static_cast<size_t>(i)]);
  }
  for (const ProgramOutput& output : program.outputs)
    out << "output " << quoted(output.name) << " " << output.operand << " " << output.saved << "\n";
  for (const ProgramUpdate& update : program.updates) out << "update " << update.operand << " " << update.input << "\n";
  for (size_t i = 0; i < program.gradients.size(); ++i)
    out << "gradient " << program.gradients[i] << " " << program.gradient_targets[i] << "\n";
  out << "contexts " << program.contexts << "\n";
  out << "constants " << quoted(program.constants) << "\n";
  out << "pack_order " << list(program.pack_order) << "\n";
  std::string text = std::move(out).str();
  return text + concat("end ", checksum(text), "\n");
}

}  // namespace lowtide
