// One block for the graphs of a step, one after another: what each keeps from its forward to its backward, where its
// halves work, and its gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/block_pool.h"

namespace lowtide {

// Bytes of one graph of the step.
struct StepShare {
  int64_t kept = 0;           // from its forward to the end of its backward
  bool is_pending = true;     // else it has no backward
  bool is_pinned = false;     // to the end of the step: its gradients lie in it
  int64_t passing = 0;        // while a half of it runs
  std::vector<int64_t> late;  // blocks of gradients, from its backward to the end of the step
};

// Backward is expected to go from the last graph to the first. A place that is still in use is not given away: what
// comes in another order is not in here. Safe to use from any thread.
class StepArena {
 public:
  explicit StepArena(const std::vector<StepShare>& shares);
  int64_t size_bytes() const { return size_bytes_; }
  // Takes the block for the next step. False: somebody still holds gradients of the last one, which are in it; then
  // this step has none. `most_bytes`: of it and all blocks that are free.
  bool begin(BlockPool& pool, int64_t most_bytes);
  // Its forwards have run: whoever has a place keeps the block.
  void forwards_end();

  // Null: there is no room for it. `graph`: its place in the step.
  std::shared_ptr<Block> kept(size_t graph, int64_t size_bytes) { return take(graph, kKept, size_bytes); }
  std::shared_ptr<Block> passing(size_t graph, int64_t size_bytes) { return take(graph, kPassing, size_bytes); }
  std::shared_ptr<Block> late(size_t graph, size_t block, int64_t size_bytes) {
    return take(graph, kLate + block, size_bytes);
  }

 private:
  static constexpr size_t kKept = 0, kPassing = 1, kLate = 2;
  struct Part {
    int64_t offset = 0, size_bytes = 0;
  };
  struct Taken {
    Part part;
    std::weak_ptr<Block> block;
  };
  std::shared_ptr<Block> take(size_t graph, size_t which, int64_t size_bytes);

  std::vector<std::vector<Part>> parts_;  // by graph: kept, passing, late
  int64_t size_bytes_ = 0;
  std::mutex mutex_;
  std::shared_ptr<Block> held_;  // while forwards run
  std::weak_ptr<Block> block_;
  std::vector<Taken> taken_;
};

}  // namespace lowtide
