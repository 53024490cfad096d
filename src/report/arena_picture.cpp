#include "report/arena_picture.h"

#include <vector>

#include "ir/description.h"
#include "report/json_text.h"

namespace lowtide {

namespace {

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct Rectangle {
  std::string_view name, kind;
  int32_t step = 0;  // that makes it
  int32_t first = 0, last = 0;
  int64_t offset = 0, bytes = 0;
  std::vector<int32_t> reads = {}, writes = {};
};

// An emit step hands a gradient out.
const char* how_made(const ProgramStep& step, const Description& told) {
  if (told.origin.kind == OriginKind::kGradient || step.kind == StepKind::kEmit) return "gradient";
  return told.origin.kind == OriginKind::kRecompute ? "recomputed" : "forward";
}

class Picture {
 public:
  Picture(const Program& program, const Binding& binding)
      : program_(program), binding_(binding), steps_(static_cast<int32_t>(program.steps.size())) {
    for (const ProgramStep& step : program.steps) told_.push_back(read_description(step.node));
    add_buffers();
    add_steps_own();
  }

  std::string write() {
    const MemoryReport& report = binding_.report;
    json_.begin_object().member("name").text(program_.name).member("dims").begin_object();
    for (size_t i = 0; i < program_.symbols.size(); ++i)
      json_.member(program_.symbols[i].name).integer(binding_.symbol_values[i]);
    json_.end_object();
    json_.member("peak_bytes").integer(report.peak_bytes).member("arena_bytes").integer(report.arena_bytes);
    json_.member("gradient_bytes").integer(report.gradient_bytes);
    json_.member("output_bytes").integer(report.output_bytes).member("external_bytes").integer(report.external_bytes);
    json_.member("lower_bound_bytes").integer(report.lower_bound_bytes);
    json_.member("forward_end").integer(static_cast<int64_t>(forward_end(program_)));
    write_steps();
    json_.member("buffers").begin_list();
    for (const Rectangle& each : rectangles_) write(each);
    json_.end_list().end_object();
    return json_.str();
  }

 private:
  void add_buffers() {
    const size_t count = program_.buffers.size();
    std::vector<std::vector<int32_t>> reads(count), writes(count);
    // Each step once, though it may read several places of a buffer.
    auto note = [&](std::vector<std::vector<int32_t>>& of, const std::vector<int32_t>& operands, int32_t step) {
      for (int32_t id : operands) {
        if (id < 0) continue;
        std::vector<int32_t>& list = of[static_cast<size_t>(program_.operands[static_cast<size_t>(id)].buffer)];
        if (list.empty() || list.back() != step) list.push_back(step);
      }
    };
    for (int32_t i = 0; i < steps_; ++i) {
      note(reads, program_.steps[static_cast<size_t>(i)].inputs, i);
      note(writes, program_.steps[static_cast<size_t>(i)].outputs, i);
    }
    int64_t above = binding_.report.arena_bytes;
    for (size_t i = 0; i < count; ++i) {
      const ProgramBuffer& buffer = program_.buffers[i];
      const bool is_output = buffer.kind == BufferKind::kOutput;
      if (!is_output && binding_.packing.offsets[i] < 0) continue;  // the caller's, or a constant
      if (buffer.device != 0) continue;                             // in another arena
      const int64_t bytes = padded(binding_.buffer_bytes[i]);
      Rectangle each{.name = buffer.name,
                     .kind = kind_of(buffer),
                     .step = writes[i].empty() ? buffer.first : writes[i].front(),
                     .first = buffer.first,
                     .last = is_output ? steps_ - 1 : buffer.last,
                     .offset = is_output ? above : binding_.packing.offsets[i],
                     .bytes = bytes,
                     .reads = std::move(reads[i]),
                     .writes = std::move(writes[i])};
      if (is_output) above += bytes;
      rectangles_.push_back(std::move(each));
    }
  }

  std::string_view kind_of(const ProgramBuffer& buffer) const {
    if (buffer.kind == BufferKind::kGradient) return "gradient";
    if (buffer.kind == BufferKind::kOutput) return "output";
    const int32_t yield = forward_end(program_);
    return buffer.first < yield && buffer.last >= yield ? "stash" : "temporary";
  }

  // What a step needs for itself while it runs.
  void add_steps_own() {
    const int64_t above = binding_.report.arena_bytes + binding_.report.output_bytes;
    for (int32_t i = 0; i < steps_; ++i) {
      const BoundStep& step = binding_.steps[static_cast<size_t>(i)];
      const int64_t offset = binding_.packing.scratch_offsets[static_cast<size_t>(i)];
      const std::string_view name = told_[static_cast<size_t>(i)].what;
      if (step.device == 0 && offset >= 0) add_own(name, "scratch", i, offset, step.scratch_bytes);
      if (step.kernel == nullptr || !step.kernel->library_bytes) continue;
      if (const int64_t bytes = step.kernel->library_bytes(bound_call(binding_, step)); bytes > 0)
        add_own(name, "library", i, above, bytes);
    }
  }

  void add_own(std::string_view name, std::string_view kind, int32_t step, int64_t offset, int64_t bytes) {
    rectangles_.push_back(
        {.name = name, .kind = kind, .step = step, .first = step, .last = step, .offset = offset, .bytes = bytes});
  }

  void write_steps() {
    std::vector<int64_t> live(static_cast<size_t>(steps_) + 1, 0);
    for (const Rectangle& each : rectangles_) {
      live[static_cast<size_t>(each.first)] += padded(each.bytes);
      live[static_cast<size_t>(each.last) + 1] -= padded(each.bytes);
    }
    json_.member("steps").begin_list();
    int64_t now = 0;
    for (size_t i = 0; i < told_.size(); ++i) {
      now += live[i];
      json_.begin_object()
          .member("what")
          .text(told_[i].what)
          .member("made")
          .text(how_made(program_.steps[i], told_[i]));
      json_.member("module").text(told_[i].origin.module).member("line").text(told_[i].origin.line);
      json_.member("live_bytes").integer(now).end_object();
    }
    json_.end_list();
  }

  void write(const Rectangle& each) {
    const auto maker = static_cast<size_t>(each.step);
    json_.begin_object().member("name").text(each.name).member("kind").text(each.kind);
    json_.member("made")
        .text(how_made(program_.steps[maker], told_[maker]))
        .member("step")
        .integer(static_cast<int64_t>(each.step));
    json_.member("first").integer(static_cast<int64_t>(each.first));
    json_.member("last").integer(static_cast<int64_t>(each.last));
    json_.member("offset").integer(each.offset).member("bytes").integer(each.bytes);
    write("reads", each.reads);
    write("writes", each.writes);
    json_.end_object();
  }

  void write(std::string_view name, const std::vector<int32_t>& steps) {
    json_.member(name).begin_list();
    for (int32_t step : steps) json_.integer(static_cast<int64_t>(step));
    json_.end_list();
  }

  const Program& program_;
  const Binding& binding_;
  const int32_t steps_;
  std::vector<Description> told_;  // by step
  std::vector<Rectangle> rectangles_;
  JsonText json_;
};

}  // namespace

std::string arena_picture(const Program& program, const Binding& binding) { return Picture(program, binding).write(); }

}  // namespace lowtide
