// The public C++ API: train from a text graph, without Python.
//
//   lowtide::TrainingGraph model(text);                          // the grammar of docs/ir.md
//   lowtide::TrainingStep step = model.forward(tensors, seed);   // tensors in the order of model.inputs()
//   double loss = step.output<float>(0)[0];
//   for (const lowtide::Gradient& gradient : step.backward()) …  // one per trainable input that the outputs depend on
//
// Errors are lowtide::Error (your mistake, with a kind) and lowtide::InternalError (a bug of ours), both from
// std::exception.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lowtide {

enum class ElementType { kBool, kU8, kI8, kI16, kI32, kI64, kBF16, kF16, kF32, kF64 };

// Row-major bytes that somebody else owns.
struct TensorView {
  void* data = nullptr;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> sizes;
};

struct InputInfo {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::string> sizes;  // numbers or expressions: "batch", "128"
  bool trainable = false;          // backward gives its gradient
};

struct Gradient {
  size_t input = 0;  // index into inputs()
  TensorView tensor;
  std::shared_ptr<void> owner;  // keeps the bytes alive
};

// What a step of these sizes needs, in bytes, above the tensors that the caller holds.
struct StepMemory {
  int64_t peak = 0;
  int64_t arena = 0;
  int64_t outputs = 0;
  int64_t lower_bound = 0;  // no plan of this order of steps needs less arena
};

class TrainingStep {
 public:
  size_t output_count() const;
  TensorView output(size_t index) const;
  template <class T>
  T* output(size_t index) const {
    return static_cast<T*>(output(index).data);
  }
  // Gradients of the sum of all scalar outputs, or with `output_gradients` (one per differentiable output) of that
  // weighted sum. Once only: the stash is freed.
  std::vector<Gradient> backward(std::span<const TensorView> output_gradients = {});

 private:
  friend class TrainingGraph;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

class TrainingGraph {
 public:
  // Builds the gradient and plans. `threads` > 1 starts a pool of that many for the process.
  explicit TrainingGraph(std::string_view text, int threads = 1);
  ~TrainingGraph();

  const std::vector<InputInfo>& inputs() const;
  // `seed` keys dropout of this step.
  TrainingStep forward(std::span<const TensorView> tensors, uint64_t seed = 0);
  StepMemory memory(std::span<const TensorView> tensors);

  std::string training_text() const;  // forward and backward as planned

 private:
  friend class TrainingStep;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace lowtide
