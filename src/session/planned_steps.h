// Planned training steps that tests run on an Executor.
#pragma once

#include <cmath>
#include <string_view>
#include <vector>

#include "emit/plan.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "passes/optimize.h"
#include "runtime/executor.h"

namespace lowtide {

inline constexpr char kModel[] = R"(
graph @net(%x: f32[batch, 8] input, %ids: i64[batch] input, %table: f32[16, 8] param, %w: f32[8, 8] param,
           %count: f32[] buffer) where batch in [1, 64] {
  %e: f32[batch, 8] = Gather(axis=0) %table, %ids
  %s: f32[batch, 8] = Add %e, %x
  %h: f32[batch, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %s, %w
  %g: f32[batch, 8] = FastGelu %h
  %d: f32[batch, 8] = Dropout(ratio=0.25, stream=3) %g
  %h2: f32[batch, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %d, %w
  %t: f32[batch, 8] = Tanh %h2
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %t
  %one: f32[] = Constant(dtype=f32, value=1.0)
  %more: f32[] = Add %count, %one
  return %loss output, %more update %count
}
)";

// A training step, as the engine plans it.
inline Program planned(const PlanOptions& options = {}, std::string_view model = kModel) {
  Graph graph = parse(model);
  optimize_forward(graph, {});
  Graph training = build_gradient(graph);
  optimize_training(training, {});
  return plan(training, options).program;
}

// What kModel takes.
struct Batch {
  explicit Batch(int64_t size, float seed = 1)
      : x(static_cast<size_t>(size) * 8), ids(static_cast<size_t>(size)), table(16 * 8), w(64) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(seed + static_cast<float>(i));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 5 % 16);
    for (size_t i = 0; i < table.size(); ++i) table[i] = std::cos(static_cast<float>(i));
    for (size_t i = 0; i < w.size(); ++i) w[i] = 0.3f * std::sin(static_cast<float>(3 * i));
  }
  std::vector<TensorRef> tensors() {
    auto ref = [](void* data, DType dtype, std::vector<int64_t> sizes) {
      TensorRef tensor;
      tensor.data = data;
      tensor.dtype = dtype;
      tensor.rank = static_cast<int32_t>(sizes.size());
      tensor.present = true;
      int64_t stride = 1;
      for (size_t i = sizes.size(); i-- > 0;) {
        tensor.sizes[i] = sizes[i];
        tensor.strides[i] = stride;
        stride *= sizes[i];
      }
      return tensor;
    };
    const int64_t size = static_cast<int64_t>(ids.size());
    return {ref(x.data(), DType::kF32, {size, 8}), ref(ids.data(), DType::kI64, {size}),
            ref(table.data(), DType::kF32, {16, 8}), ref(w.data(), DType::kF32, {8, 8}), ref(&count, DType::kF32, {})};
  }
  std::vector<float> x;
  std::vector<int64_t> ids;
  std::vector<float> table, w;
  float count = 5;
};

struct StepResult {
  float loss;
  std::vector<std::vector<float>> gradients;
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

inline std::vector<TensorRef> saved_tensors(const Executor& executor, Batch& batch) {
  std::vector<TensorRef> saved, tensors = batch.tensors();
  for (size_t i = 0; i < tensors.size(); ++i)
    if (executor.program().inputs[i].saved) saved.push_back(tensors[i]);
  return saved;
}

inline std::vector<OwnedTensor> backward(Executor& executor, RunState& state, Batch& batch) {
  TensorRef one;
  static float number = 1;
  one.data = &number;
  one.present = true;
  return executor.backward(state, {&one, 1}, saved_tensors(executor, batch)).tensors();
}

inline std::vector<std::vector<float>> values(const std::vector<OwnedTensor>& tensors) {
  std::vector<std::vector<float>> result;
  for (const OwnedTensor& tensor : tensors)
    result.emplace_back(tensor.ref.as<float>(), tensor.ref.as<float>() + tensor.ref.numel());
  return result;
}

inline StepResult step(Executor& executor, Batch& batch, uint64_t key = 9) {
  std::shared_ptr<RunState> state;
  const std::vector<OwnedTensor> outputs = executor.forward(batch.tensors(), key, &state);
  return {*outputs[0].ref.as<float>(), values(backward(executor, *state, batch))};
}

}  // namespace lowtide
