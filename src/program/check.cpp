#include "base/check.h"

#include <algorithm>

#include "base/size_code.h"
#include "program/check_control.h"

namespace lowtide {

namespace {

// One message for all: what, which index, of how many.
void check_index(int64_t index, size_t count, const char* what) {
  LT_USER_CHECK(ErrorKind::kInvalidProgram, index >= 0 && index < static_cast<int64_t>(count), what, " ", index, " of ",
                count);
}

class Checker {
 public:
  explicit Checker(const Program& program) : p_(program) {}

  void run() {
    const int32_t steps = static_cast<int32_t>(p_.steps.size());
    check_symbols();
    for (const ProgramInput& input : p_.inputs) check_sizes(input.sizes, input.strides, input.name);
    for (const ProgramInput& input : p_.gradient_inputs) check_sizes(input.sizes, input.strides, input.name);
    for (int32_t output : p_.gradient_outputs) check_index(output, p_.outputs.size(), "gradient of output");
    for (const ProgramBuffer& buffer : p_.buffers) check_buffer(buffer, steps);
    for (const ProgramOperand& operand : p_.operands) {
      check_index(operand.buffer, p_.buffers.size(), "operand's buffer");
      check_expression(operand.offset);
      check_sizes(operand.sizes, operand.strides, p_.buffers[static_cast<size_t>(operand.buffer)].name);
    }
    check_regions(steps);
    for (int32_t i = 0; i < steps; ++i) check_step(p_.steps[static_cast<size_t>(i)], i);
    for (const ProgramOutput& output : p_.outputs) {
      check_index(output.operand, p_.operands.size(), "output's operand");
      const ProgramBuffer& buffer = buffer_of(output.operand);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, buffer.kind == BufferKind::kOutput || is_input(buffer), "output ",
                    output.name, " lies in ", buffer.name, ", which is gone when it is read");
    }
    for (const ProgramUpdate& update : p_.updates) {
      check_index(update.operand, p_.operands.size(), "update's operand");
      check_index(update.input, p_.inputs.size(), "updated input");
      const ProgramBuffer& buffer = buffer_of(update.operand);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !is_incoming(buffer), "the update of input ", update.input, " is ",
                    buffer.name, ", a gradient");
    }
    LT_USER_CHECK(ErrorKind::kInvalidProgram, p_.gradients.size() == p_.gradient_targets.size(), p_.gradients.size(),
                  " gradients for ", p_.gradient_targets.size(), " targets");
    for (int32_t gradient : p_.gradients) {
      check_index(gradient, p_.operands.size(), "gradient's operand");
      const ProgramBuffer& buffer = buffer_of(gradient);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, buffer.kind == BufferKind::kGradient, "a gradient lies in ",
                    buffer.name, ", which is no gradient's");
    }
    for (int32_t target : p_.gradient_targets) check_index(target, p_.inputs.size(), "gradient's input");
    check_handing_out();
    check_pack_order();
    check_control(p_);
  }

 private:
  const ProgramBuffer& buffer_of(int32_t operand) const {
    return p_.buffers[static_cast<size_t>(p_.operands[static_cast<size_t>(operand)].buffer)];
  }
  static bool is_input(const ProgramBuffer& buffer) { return buffer.kind == BufferKind::kCaller && buffer.source >= 0; }
  static bool is_incoming(const ProgramBuffer& buffer) {
    return buffer.kind == BufferKind::kCaller && buffer.source < 0;
  }

  void check_regions(int32_t steps) const {
    LT_USER_CHECK(ErrorKind::kInvalidProgram, !p_.regions.empty(), "a program without regions");
    int32_t at = 0;
    for (const ProgramRegion& region : p_.regions) {
      LT_USER_CHECK(ErrorKind::kInvalidProgram, region.first == at && region.end >= at && region.end <= steps,
                    "the region ", region.name, " has the steps ", region.first, " to ", region.end, " of ", steps,
                    ", expected to begin at ", at);
      at = region.end;
    }
    LT_USER_CHECK(ErrorKind::kInvalidProgram, at == steps, "the regions end at step ", at, " of ", steps);
  }

  struct LastTouches {
    std::vector<int32_t> of_buffers, of_inputs;  // the last step that does, or -1
  };
  LastTouches last_touches() const {
    LastTouches last{std::vector<int32_t>(p_.buffers.size(), -1), std::vector<int32_t>(p_.inputs.size(), -1)};
    const auto touch = [&](const std::vector<int32_t>& operands, int32_t step) {
      for (int32_t id : operands) {
        if (id < 0) continue;
        last.of_buffers[static_cast<size_t>(p_.operands[static_cast<size_t>(id)].buffer)] = step;
        if (is_input(buffer_of(id))) last.of_inputs[static_cast<size_t>(buffer_of(id).source)] = step;
      }
    };
    for (size_t i = 0; i < p_.steps.size(); ++i) {
      touch(p_.steps[i].inputs, static_cast<int32_t>(i));
      touch(p_.steps[i].outputs, static_cast<int32_t>(i));
    }
    return last;
  }

  // Each gradient leaves once, by a region of backward that ends after its last write and while its bytes are there.
  void check_handing_out() const {
    std::vector<int32_t> emitted(p_.gradients.size(), -1);
    for (size_t i = 0; i < p_.steps.size(); ++i)
      if (p_.steps[i].kind == StepKind::kEmit)
        emitted[static_cast<size_t>(p_.steps[i].index)] = static_cast<int32_t>(i);
    const auto [of_buffers, of_inputs] = last_touches();
    std::vector<bool> handed_out(p_.gradients.size());
    for (const ProgramRegion& region : p_.regions)
      for (int32_t gradient : region.gradients) {
        check_index(gradient, p_.gradients.size(), "region's gradient");
        const size_t at = static_cast<size_t>(gradient);
        const ProgramBuffer& buffer = buffer_of(p_.gradients[at]);
        LT_USER_CHECK(ErrorKind::kInvalidProgram,
                      !handed_out[at] && &region != &p_.regions.front() && emitted[at] >= 0 &&
                          emitted[at] < region.end && buffer.last >= region.end - 1,
                      "the region ", region.name, " cannot hand out gradient ", gradient, " in ", buffer.name,
                      ": it is handed out already, not ready, or gone");
        // Whoever takes a gradient may write into it, and into what it is the gradient of.
        const auto own = static_cast<size_t>(p_.operands[static_cast<size_t>(p_.gradients[at])].buffer);
        const auto target = static_cast<size_t>(p_.gradient_targets[at]);
        LT_USER_CHECK(ErrorKind::kInvalidProgram, std::max(of_buffers[own], of_inputs[target]) < region.end,
                      "the region ", region.name, " cannot hand out gradient ", gradient, " in ", buffer.name,
                      ": a later step touches it, or what it is the gradient of");
        handed_out[at] = true;
      }
    for (size_t i = 0; i < handed_out.size(); ++i)
      LT_USER_CHECK(ErrorKind::kInvalidProgram, handed_out[i], "no region hands out gradient ", i);
  }

  void check_pack_order() const {
    std::vector<bool> seen(p_.buffers.size() + p_.steps.size());
    for (int32_t index : p_.pack_order) {
      check_index(index, seen.size(), "packed buffer");
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !seen[static_cast<size_t>(index)], "the packing order names buffer ",
                    index, " twice");
      seen[static_cast<size_t>(index)] = true;
    }
  }

  void check_symbols() const {
    LT_USER_CHECK(ErrorKind::kInvalidProgram,
                  p_.symbol_low.size() == p_.symbols.size() && p_.symbol_high.size() == p_.symbols.size(), "ranges of ",
                  p_.symbol_low.size(), " for ", p_.symbols.size(), " sizes");
    for (const SymbolSource& symbol : p_.symbols) {
      check_index(symbol.input, p_.inputs.size(), "size's input");
      const ProgramInput& input = p_.inputs[static_cast<size_t>(symbol.input)];
      if (symbol.dim != SymbolSource::kNumber) check_index(symbol.dim, input.sizes.size(), "size's dim");
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    symbol.dim != SymbolSource::kNumber || (input.dtype == DType::kI64 && input.sizes.empty()), "size ",
                    symbol.name, " is the number in ", input.name, ", which is no i64 of one element");
    }
    for (size_t i = 0; i < p_.expressions.size(); ++i) {
      LT_USER_CHECK(ErrorKind::kInvalidProgram, p_.expressions[i].size() < 10000, "size code ", i, " is too long");
      check_size_code(p_.expressions[i], symbol_count(p_));
    }
  }

  void check_expression(ExpressionId id) const { check_index(id, p_.expressions.size(), "expression"); }

  void check_sizes(const std::vector<ExpressionId>& sizes, const std::vector<ExpressionId>& strides,
                   const std::string& name) const {
    LT_USER_CHECK(ErrorKind::kInvalidProgram, sizes.size() == strides.size() && sizes.size() <= 8, name, " has ",
                  sizes.size(), " sizes and ", strides.size(), " strides");
    for (ExpressionId id : sizes) check_expression(id);
    for (ExpressionId id : strides) check_expression(id);
  }

  void check_buffer(const ProgramBuffer& buffer, int32_t steps) const {
    check_expression(buffer.size_bytes);
    switch (buffer.kind) {
      case BufferKind::kCaller:
        if (buffer.source >= 0) {
          check_index(buffer.source, p_.inputs.size(), "buffer's input");
        } else {
          check_index(-(buffer.source + 1), p_.gradient_inputs.size(), "buffer's incoming gradient");
        }
        break;
      case BufferKind::kConstant:
        LT_USER_CHECK(
            ErrorKind::kInvalidProgram,
            buffer.source >= 0 && buffer.source < static_cast<int64_t>(p_.constants.size()) && buffer.source % 64 == 0,
            buffer.name, " lies at byte ", buffer.source, " of ", p_.constants.size(),
            " constant bytes, expected a multiple of 64 in them");
        break;
      case BufferKind::kArena:
      case BufferKind::kGradient:
        LT_USER_CHECK(ErrorKind::kInvalidProgram,
                      buffer.first >= 0 && buffer.first <= buffer.last && buffer.last < steps, buffer.name,
                      " lives from step ", buffer.first, " to ", buffer.last, " of ", steps);
        break;
      case BufferKind::kOutput: break;
    }
  }

  static bool is_list(const AttrList<int64_t>::Value* value) {
    return value != nullptr && std::holds_alternative<std::vector<int64_t>>(*value);
  }

  void check_step(const ProgramStep& step, int32_t index) const {
    auto check_operand = [&](int32_t operand) {
      if (operand < 0) return;
      check_index(operand, p_.operands.size(), "step's operand");
      const ProgramBuffer& buffer = buffer_of(operand);
      const bool planned = buffer.kind == BufferKind::kArena || buffer.kind == BufferKind::kGradient;
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !planned || (buffer.first <= index && index <= buffer.last), "step ",
                    index, " (", step.node, ") touches ", buffer.name, ", which lives from step ", buffer.first, " to ",
                    buffer.last);
    };
    // The bytes of a caller's tensor are there in forward or in backward, or in both where backward keeps it.
    const bool backward = index >= forward_end(p_);
    auto is_there = [&](const ProgramBuffer& buffer) {
      if (is_incoming(buffer)) return backward;
      return !is_input(buffer) || !backward || p_.inputs[static_cast<size_t>(buffer.source)].saved;
    };
    for (int32_t operand : step.inputs) {
      check_operand(operand);
      LT_USER_CHECK(ErrorKind::kInvalidProgram, operand < 0 || is_there(buffer_of(operand)), "step ", index, " (",
                    step.node, ") reads ", buffer_of(std::max(operand, 0)).name, ", which is not there in its region");
    }
    for (int32_t operand : step.outputs) {
      check_operand(operand);
      if (operand < 0) continue;
      const BufferKind kind = buffer_of(operand).kind;
      LT_USER_CHECK(ErrorKind::kInvalidProgram, kind != BufferKind::kCaller && kind != BufferKind::kConstant, "step ",
                    index, " (", step.node, ") writes into ", buffer_of(operand).name, ", which is not the plan's");
    }
    for (const auto& [name, value] : step.attrs) {
      if (const int64_t* id = std::get_if<int64_t>(&value))
        check_index(*id, p_.expressions.size(), "attribute's expression");
      if (const auto* ids = std::get_if<std::vector<int64_t>>(&value))
        for (int64_t id : *ids) check_index(id, p_.expressions.size(), "attribute's expression");
    }
    if (step.kind == StepKind::kEmit) check_index(step.index, p_.gradients.size(), "emitted gradient");
    if (step.kind == StepKind::kKernel && step.index >= 0) {
      check_index(step.index, p_.gradient_inputs.size(), "incoming gradient");
      // Left out, its result must be there already.
      const bool in_place = step.outputs.size() == 1 && step.outputs[0] >= 0 &&
                            std::any_of(step.inputs.begin(), step.inputs.end(), [&](int32_t input) {
                              return input >= 0 && p_.operands[static_cast<size_t>(input)].buffer ==
                                                       p_.operands[static_cast<size_t>(step.outputs[0])].buffer;
                            });
      LT_USER_CHECK(ErrorKind::kInvalidProgram, in_place, "step ", index, " (", step.node,
                    ") depends on an incoming gradient, but is no sum in place");
    }
    if (step.kind == StepKind::kInspect) {
      const bool reads_one = step.inputs.size() == 1 && step.inputs[0] >= 0 && step.outputs.empty();
      const bool has_records = is_list(step.attrs.find("records")) && is_list(step.attrs.find("places")) &&
                               step.attrs.ints("records").size() == step.attrs.ints("places").size();
      LT_USER_CHECK(ErrorKind::kInvalidProgram, reads_one && has_records, "step ", index, " (", step.node,
                    ") is to inspect one operand for a list of records, each with its place");
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !step.attrs.has("sources") || is_list(step.attrs.find("sources")),
                    "step ", index, " (", step.node, "): its sources are no list");
    }
    if (step.kind == StepKind::kBegin)
      LT_USER_CHECK(ErrorKind::kInvalidProgram, !step.target.empty() && step.index < 0, "step ", index, " (", step.node,
                    ") begins a call of nothing, or one with a context");
    if (step.kind == StepKind::kHostCall) {
      if (step.index >= 0 || step.target.empty()) check_index(step.index, static_cast<size_t>(p_.contexts), "context");
      const AttrList<int64_t>::Value* count = step.attrs.find("num_grads");
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    !step.target.empty() || (count != nullptr && std::holds_alternative<int64_t>(*count)), "step ",
                    index, " (", step.node, ") does not say how many gradients it takes");
    }
  }

  const Program& p_;
};

}  // namespace

void check(const Program& program) { Checker(program).run(); }

}  // namespace lowtide
