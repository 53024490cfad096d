#include "runtime/guard.h"

#include <cstring>

#include "base/check.h"

namespace lowtide {

namespace {

constexpr unsigned char kCanary = 0xA5;
constexpr unsigned char kPoison = 0xFF;  // a NaN in every float type

// Of one buffer in the arena, canaries included: [begin, end) in units of 64 bytes.
struct Extent {
  int64_t begin = 0, end = 0;
};

class Guard {
 public:
  explicit Guard(const RunView& run) : run_(run) {}

  void before(int32_t index) {
    for (size_t b = 0; b < run_.program.buffers.size(); ++b)
      if (in_arena(b) && buffer(b).first == index) occupy(b, index);
    const BoundStep& step = run_.binding.steps[static_cast<size_t>(index)];
    for (int32_t i = step.first; i < step.first + step.inputs + step.outputs; ++i) {
      const int32_t touched = run_.binding.ref_buffers[static_cast<size_t>(i)];
      if (touched >= 0 && in_arena(static_cast<size_t>(touched))) check_owner(static_cast<size_t>(touched), index);
    }
  }

  void after(int32_t index) {
    // A buffer that lives as long as a loop dies with the loop's own step, which ends behind the last block.
    const ProgramLoop* own = nullptr;
    const ProgramLoop* around = nullptr;
    for (const ProgramLoop& loop : run_.program.loops) {
      if (loop.first == index + 1) own = &loop;
      if (loop.first <= index && index < loop.end) around = &loop;
    }
    for (size_t b = 0; b < run_.program.buffers.size(); ++b) {
      if (!in_arena(b) || buffer(b).first > index) continue;
      const bool dies_here = last(b) == index && (around == nullptr || buffer(b).first >= around->first);
      const bool dies_with_loop = own != nullptr && last(b) > index && last(b) < own->end;
      if (dies_here || dies_with_loop) release(b, index);
    }
  }

 private:
  const ProgramBuffer& buffer(size_t b) const { return run_.program.buffers[b]; }
  int32_t last(size_t b) const { return run_.packing.last[b]; }
  const std::string& node(int32_t index) const { return run_.program.steps[static_cast<size_t>(index)].node; }
  bool in_arena(size_t b) const { return run_.packing.offsets[b] >= 0 && buffer(b).device == 0; }
  int64_t bytes(size_t b) const { return run_.binding.buffer_bytes[b]; }

  Extent extent(size_t b) const {
    const char* const base = run_.bases[b];
    const int64_t kept = run_.packing.kept_bytes, size = run_.packing.arenas[0].size_bytes;
    const bool is_above = run_.above != nullptr && base >= run_.above && base < run_.above + (size - kept);
    const int64_t offset = is_above ? kept + (base - run_.above) : base - run_.arena;
    return {(offset - kCanaryBytes) / 64, (offset + bytes(b) + kCanaryBytes + 63) / 64};
  }

  void occupy(size_t b, int32_t index) {
    const Extent at = extent(b);
    LT_CHECK(at.begin >= 0 && at.end <= static_cast<int64_t>(run_.owners.size()), "guard: %", buffer(b).name,
             " leaves the arena at step ", index, ", ", node(index));
    for (int64_t i = at.begin; i < at.end; ++i) {
      int32_t& owner = run_.owners[static_cast<size_t>(i)];
      if (owner >= 0)
        LT_FAIL("guard: %", buffer(b).name, " is placed over the living %", buffer(static_cast<size_t>(owner)).name,
                " at step ", index, ", ", node(index));
      owner = static_cast<int32_t>(b);
    }
    std::memset(run_.bases[b] - kCanaryBytes, kCanary, kCanaryBytes);
    std::memset(run_.bases[b], kPoison, static_cast<size_t>(bytes(b)));
    std::memset(run_.bases[b] + bytes(b), kCanary, kCanaryBytes);
  }

  void check_owner(size_t b, int32_t index) const {
    const Extent at = extent(b);
    for (int64_t i = at.begin; i < at.end; ++i)
      LT_CHECK(run_.owners[static_cast<size_t>(i)] == static_cast<int32_t>(b), "guard: step ", index, ", ", node(index),
               " touches %", buffer(b).name, " whose bytes belong to another buffer by now");
  }

  void release(size_t b, int32_t index) {
    const char* ends[2] = {run_.bases[b] - kCanaryBytes, run_.bases[b] + bytes(b)};
    for (const char* canary : ends)
      for (int64_t i = 0; i < kCanaryBytes; ++i)
        LT_CHECK(static_cast<unsigned char>(canary[i]) == kCanary, "guard: somebody wrote past the ends of %",
                 buffer(b).name, "; its last step is ", index, ", ", node(index));
    const Extent at = extent(b);
    for (int64_t i = at.begin; i < at.end; ++i) run_.owners[static_cast<size_t>(i)] = -1;
  }

  const RunView& run_;
};

}  // namespace

StepHooks guard_hooks() {
  StepHooks hooks;
  hooks.begin = [](const RunView& run) {
    if (run.owners.empty()) run.owners.assign(static_cast<size_t>(run.packing.arenas[0].size_bytes / 64 + 1), -1);
  };
  hooks.before = [](const RunView& run, int32_t step) { Guard(run).before(step); };
  hooks.after = [](const RunView& run, int32_t step) { Guard(run).after(step); };
  return hooks;
}

}  // namespace lowtide
