// Emitter: where backward may stop for its caller, and what it hands out there.

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "emit/emitter.h"

namespace lowtide {

// By gradient: the last step that touches it or the tensor that it is the gradient of. Whoever takes it behind that
// step may write into both, as an optimizer in a hook does.
std::vector<int32_t> Emitter::ready_steps() const {
  std::vector<int32_t> last(program_.buffers.size(), -1);
  const auto touch = [&](const std::vector<int32_t>& operands, int32_t step) {
    for (int32_t id : operands)
      if (id >= 0) last[static_cast<size_t>(program_.operands[static_cast<size_t>(id)].buffer)] = step;
  };
  size_t loop = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(program_.steps.size()); ++i) {
    const ProgramStep& step = program_.steps[static_cast<size_t>(i)];
    while (loop < program_.loops.size() && program_.loops[loop].end <= i) ++loop;
    const bool in_loop = loop < program_.loops.size() && program_.loops[loop].first <= i;
    const int32_t behind = in_loop ? program_.loops[loop].end - 1 : i;
    const ProgramStep& at_work = step.kind == StepKind::kWait ? program_.steps[static_cast<size_t>(step.index)] : step;
    touch(at_work.inputs, behind);
    touch(at_work.outputs, behind);
  }
  std::vector<int32_t> of_inputs(program_.inputs.size(), -1);
  for (size_t b = 0; b < program_.buffers.size(); ++b)
    if (const ProgramBuffer& buffer = program_.buffers[b]; buffer.kind == BufferKind::kCaller && buffer.source >= 0)
      of_inputs[static_cast<size_t>(buffer.source)] = last[b];
  std::vector<int32_t> ready;
  for (size_t i = 0; i < program_.gradients.size(); ++i) {
    const ProgramOperand& gradient = program_.operands[static_cast<size_t>(program_.gradients[i])];
    ready.push_back(std::max(last[static_cast<size_t>(gradient.buffer)],
                             of_inputs[static_cast<size_t>(program_.gradient_targets[i])]));
  }
  return ready;
}

void Emitter::cut_backward() {
  if (program_.regions.size() < 2) return;
  const std::vector<int32_t> ready = ready_steps();
  std::vector<int32_t> order(ready.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return ready[static_cast<size_t>(a)] < ready[static_cast<size_t>(b)]; });
  const auto bytes_of = [&](int32_t gradient) {
    const PlacedOperand& operand = operands_[static_cast<size_t>(program_.gradients[static_cast<size_t>(gradient)])];
    const Dim elements = numel(operand.sizes);
    return elements.is_constant() ? elements.constant() * size_bytes(operand.dtype) : 0;
  };
  int64_t bytes = 0, bytes_left = 0, bucket_bytes = options_.first_bucket_bytes;
  for (int32_t gradient : order) bytes_left += bytes_of(gradient);
  for (size_t i = 0; i < order.size(); ++i) {
    const auto gradient = static_cast<size_t>(order[i]);
    program_.regions.back().gradients.push_back(order[i]);
    bytes += bytes_of(order[i]);
    bytes_left -= bytes_of(order[i]);
    const bool others_come_later = i + 1 < order.size() && ready[static_cast<size_t>(order[i + 1])] > ready[gradient];
    if (bytes < bucket_bytes || bytes_left < options_.first_bucket_bytes || !others_come_later) continue;
    const int32_t end = ready[gradient] + 1;
    program_.regions.push_back({concat("backward ", program_.regions.size()), end, program_.regions.back().end, {}});
    program_.regions[program_.regions.size() - 2].end = end;
    bytes = 0;
    bucket_bytes = options_.bucket_bytes;
  }
  for (ValuePlace& place : value_places_)
    while (place.region > 0 && program_.regions[static_cast<size_t>(place.region)].end < place.step) ++place.region;
}

}  // namespace lowtide
