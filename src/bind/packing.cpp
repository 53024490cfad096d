#include "bind/packing.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "pack/pack.h"
#include "pack/pack_in_two.h"
#include "pack/validator.h"

namespace lowtide {

namespace {

// Which buffers lie in an arena, and until when.
struct Lives {
  Lives(const Program& program, const Placement& placement) {
    for (const ProgramBuffer& buffer : program.buffers) {
      planned.push_back(buffer.kind == BufferKind::kArena ||
                        (buffer.kind == BufferKind::kGradient && !placement.separate));
      last.push_back(buffer.last);
    }
    if (placement.used_up.empty()) return;
    for (const ProgramRegion& region : program.regions)
      for (int32_t gradient : region.gradients) {
        if (!placement.used_up[static_cast<size_t>(gradient)]) continue;
        const int32_t operand = program.gradients[static_cast<size_t>(gradient)];
        const auto buffer = static_cast<size_t>(program.operands[static_cast<size_t>(operand)].buffer);
        planned[buffer] = true;
        last[buffer] = std::min(last[buffer], region.end - 1);
      }
  }
  std::vector<bool> planned;  // by buffer
  std::vector<int32_t> last;
};

}  // namespace

// Room for canaries around each buffer of the host's.
static int64_t front_bytes(bool guard, int32_t device) { return guard && device == 0 ? kCanaryBytes : 0; }

// What lies in a device's arena, as Program::pack_order counts: buffers, then the scratch of steps.
static std::vector<int32_t> packed_things(const Program& program, const Binding& binding, const Lives& lives,
                                          int32_t device) {
  std::vector<int32_t> things;
  for (size_t i = 0; i < program.buffers.size(); ++i)
    if (program.buffers[i].device == device && lives.planned[i]) things.push_back(static_cast<int32_t>(i));
  for (size_t i = 0; i < binding.steps.size(); ++i)
    if (binding.steps[i].device == device && binding.steps[i].scratch_bytes > 0)
      things.push_back(static_cast<int32_t>(program.buffers.size() + i));
  return things;
}

static Problem packing_problem(const Program& program, const Binding& binding, const Lives& lives,
                               std::span<const int32_t> things, int64_t extra_bytes) {
  Problem problem;
  const auto buffers = static_cast<int32_t>(program.buffers.size());
  for (const int32_t thing : things) {
    const int32_t step = thing - buffers;
    if (step < 0) {
      const auto i = static_cast<size_t>(thing);
      problem.buffers.push_back({binding.buffer_bytes[i] + extra_bytes, program.buffers[i].first, lives.last[i], 64});
    } else {
      const int64_t bytes = binding.steps[static_cast<size_t>(step)].scratch_bytes;
      problem.buffers.push_back({bytes + extra_bytes, step, step, 64});
    }
  }
  return problem;
}

Problem packing_problem(const Program& program, const Binding& binding, const Placement& placement, bool guard,
                        int32_t device) {
  const Lives lives(program, placement);
  return packing_problem(program, binding, lives, packed_things(program, binding, lives, device),
                         2 * front_bytes(guard, device));
}

// An order of the problem's buffers: as `known` has them; what it has not, for a kernel takes scratch at some sizes and
// none at others, is last, the largest first. Empty where nothing is known.
static std::vector<int32_t> order_from(const Problem& problem, const std::vector<int32_t>& things,
                                       std::span<const int32_t> known) {
  std::vector<int32_t> order;
  if (known.empty()) return order;
  std::vector<int32_t> places(static_cast<size_t>(std::max(*std::ranges::max_element(known), things.back())) + 1, -1);
  for (size_t i = 0; i < things.size(); ++i) places[static_cast<size_t>(things[i])] = static_cast<int32_t>(i);
  for (const int32_t thing : known)
    if (const int32_t place = std::exchange(places[static_cast<size_t>(thing)], -1); place >= 0) order.push_back(place);
  const auto others = static_cast<std::ptrdiff_t>(order.size());
  for (const int32_t thing : things)
    if (const int32_t place = places[static_cast<size_t>(thing)]; place >= 0) order.push_back(place);
  std::stable_sort(order.begin() + others, order.end(), [&](int32_t a, int32_t b) {
    return problem.buffers[static_cast<size_t>(a)].size_bytes > problem.buffers[static_cast<size_t>(b)].size_bytes;
  });
  return order;
}

// Puts a device's things where the solution has them.
static void place(const Problem& problem, const Solution& solution, const std::vector<int32_t>& things, int64_t front,
                  Packing& packing) {
  if (std::optional<std::string> fault = validate(problem, solution)) LT_FAIL("the packing is wrong: ", *fault);
  packing.arenas.push_back({solution.height, lower_bound(problem)});
  for (size_t i = 0; i < things.size(); ++i) {
    const auto thing = static_cast<size_t>(things[i]), buffers = packing.offsets.size();
    int64_t& offset = thing < buffers ? packing.offsets[thing] : packing.scratch_offsets[thing - buffers];
    offset = solution.offsets[i] + front;
  }
}

// Packs one device's arena; returns the order that packed so.
static std::vector<int32_t> pack_arena(const Program& program, const Binding& binding, const Lives& lives, bool guard,
                                       int32_t device, std::span<const int32_t> known, Packing& packing) {
  const int64_t front = front_bytes(guard, device);
  const std::vector<int32_t> things = packed_things(program, binding, lives, device);
  const Problem problem = packing_problem(program, binding, lives, things, 2 * front);
  if (things.empty()) known = {};
  const std::vector<int32_t> order = order_from(problem, things, known);
  Solution solution = pack(problem, order.empty() ? PackEffort::kThorough : PackEffort::kFast, order);
  place(problem, solution, things, front, packing);
  for (int32_t& thing : solution.order) thing = things[static_cast<size_t>(thing)];
  return std::move(solution.order);
}

// Packs the host's arena as two blocks: see Packing::kept_bytes.
static void pack_halves(const Program& program, const Binding& binding, const Lives& lives, bool guard,
                        Packing& packing) {
  const int64_t front = front_bytes(guard, 0);
  const std::vector<int32_t> things = packed_things(program, binding, lives, 0);
  const Problem problem = packing_problem(program, binding, lives, things, 2 * front);
  const TwoParts parts = pack_in_two(problem, forward_end(program));
  packing.kept_bytes = parts.below_bytes;
  place(problem, parts.solution, things, front, packing);
}

// Gradients that lie in no arena: one block from the forward on, or, where the arena is two, blocks from the region
// that begins to write them to the one that hands them out.
static void place_gradients(const Program& program, const Binding& binding, const Lives& lives, Packing& packing) {
  std::vector<int32_t> left(program.buffers.size(), 0);  // by buffer: the last region that hands out some of it
  for (size_t region = 0; region < program.regions.size(); ++region)
    for (const int32_t gradient : program.regions[region].gradients)
      left[static_cast<size_t>(binding.gradients[static_cast<size_t>(gradient)].buffer)] = static_cast<int32_t>(region);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer& buffer = program.buffers[i];
    if (buffer.kind != BufferKind::kGradient || lives.planned[i]) continue;
    GradientBlock wanted{.taken = 0, .left = static_cast<int32_t>(program.regions.size()) - 1};
    if (packing.placement.in_two) {
      while (program.regions[static_cast<size_t>(wanted.taken)].end <= buffer.first) ++wanted.taken;
      wanted.left = left[i];
    }
    auto at = std::ranges::find_if(packing.gradient_blocks, [&](const GradientBlock& block) {
      return block.taken == wanted.taken && block.left == wanted.left;
    });
    if (at == packing.gradient_blocks.end()) at = packing.gradient_blocks.insert(at, wanted);
    packing.gradient_places[i] = {static_cast<int32_t>(at - packing.gradient_blocks.begin()), at->size_bytes};
    const int64_t bytes = (binding.buffer_bytes[i] + 63) / 64 * 64;
    at->size_bytes += bytes;
    packing.gradient_block_bytes += bytes;
  }
}

int64_t Packing::host_bytes(const Program& program, int64_t forwards) const {
  if (!placement.in_two) return forwards * (arenas[0].size_bytes + gradient_block_bytes);
  int64_t most = 0;  // of gradient blocks that are there at once
  for (int32_t region = 0; std::cmp_less(region, program.regions.size()); ++region) {
    int64_t bytes = 0;
    for (const GradientBlock& block : gradient_blocks)
      if (block.taken <= region && block.left >= region) bytes += block.size_bytes;
    most = std::max(most, bytes);
  }
  // The last one's gradients stay; what it kept is free for those that are added onto them.
  const int64_t added = forwards > 1 ? std::max<int64_t>(most - kept_bytes, 0) : 0;
  return forwards * kept_bytes + passing_bytes() + gradient_block_bytes + added;
}

Packing make_packing(const Program& program, const Binding& binding, const Placement& placement, bool guard,
                     std::vector<int32_t>& order) {
  const Lives lives(program, placement);
  Packing packing;
  packing.placement = placement;
  packing.last = lives.last;
  packing.offsets.assign(program.buffers.size(), -1);
  packing.gradient_places.resize(program.buffers.size());
  packing.scratch_offsets.assign(binding.steps.size(), -1);
  if (placement.in_two)
    pack_halves(program, binding, lives, guard, packing);
  else
    order = pack_arena(program, binding, lives, guard, 0, order, packing);
  for (size_t device = 1; device < program.devices.size(); ++device)
    pack_arena(program, binding, lives, guard, static_cast<int32_t>(device), {}, packing);
  place_gradients(program, binding, lives, packing);
  return packing;
}

const Packing& packing_with(const Program& program, Binding& binding, bool guard, const Placement& placement) {
  if (placement == binding.packing.placement) return binding.packing;
  for (const std::unique_ptr<Packing>& packing : binding.others)
    if (packing->placement == placement) return *packing;
  std::vector<int32_t> order = binding.pack_order;  // the same buffers, some of shorter lives or elsewhere
  binding.others.push_back(std::make_unique<Packing>(make_packing(program, binding, placement, guard, order)));
  return *binding.others.back();
}

MemoryReport memory_with(const Program& program, Binding& binding, bool guard, const Placement& placement,
                         int64_t forwards) {
  const Packing& packing = packing_with(program, binding, guard, placement);
  MemoryReport report = binding.report;
  report.pending_forwards = forwards;
  report.passing_bytes = placement.in_two ? packing.passing_bytes() : 0;
  report.late_bytes = placement.in_two ? packing.gradient_block_bytes : 0;
  if (placement.in_two)
    for (const GradientBlock& block : packing.gradient_blocks) report.late_blocks.push_back(block.size_bytes);
  report.kept_bytes =
      packing.arenas[0].size_bytes - report.passing_bytes + packing.gradient_block_bytes - report.late_bytes;
  report.arena_bytes = packing.host_bytes(program, forwards);
  report.lower_bound_bytes = packing.arenas[0].lower_bound_bytes + packing.gradient_block_bytes;
  report.output_bytes *= forwards;
  report.peak_bytes = report.arena_bytes + report.output_bytes + report.external_bytes;
  return report;
}

}  // namespace lowtide
