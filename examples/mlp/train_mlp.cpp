// Trains a small multi-layer perceptron with SGD from a text graph, without Python: two interleaved half moons.
// Prints the loss as it falls; exit code 1 if it did not fall below 0.05.

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "lowtide/training.h"

static constexpr char kModel[] = R"(
graph @mlp(%x: f32[batch, 2] input, %labels: i64[batch] input, %w1: f32[32, 2] param, %b1: f32[32] param,
           %w2: f32[32, 32] param, %b2: f32[32] param, %w3: f32[2, 32] param, %b3: f32[2] param) where batch in [1, 4096] {
  %h1: f32[batch, 32] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %w1, %b1
  %a1: f32[batch, 32] = Tanh %h1
  %h2: f32[batch, 32] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %a1, %w2, %b2
  %a2: f32[batch, 32] = Tanh %h2
  %logits: f32[batch, 2] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %a2, %w3, %b3
  %loss: f32[], %lse: f32[batch] = SoftmaxCrossEntropyLoss(ignore_index=-100, label_smoothing=0.0, reduction="mean") %logits, %labels
  return %loss output
}
)";

int main() {
  try {
    lowtide::TrainingGraph model(kModel);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;

    constexpr int64_t kBatch = 256;
    std::vector<float> points(kBatch * 2);
    std::vector<int64_t> labels(kBatch);
    for (int64_t i = 0; i < kBatch; ++i) {
      const float angle = 3.14159265f * static_cast<float>(i) / kBatch;
      labels[static_cast<size_t>(i)] = i % 2;
      points[static_cast<size_t>(2 * i)] = (i % 2 ? 1.0f - std::cos(angle) : std::cos(angle)) + 0.05f * normal(random);
      points[static_cast<size_t>(2 * i + 1)] =
          (i % 2 ? 0.5f - std::sin(angle) : std::sin(angle)) + 0.05f * normal(random);
    }

    // The caller owns all tensors: here each trainable input gets a vector.
    std::vector<std::vector<float>> weights;
    std::vector<lowtide::TensorView> tensors;
    for (const lowtide::InputInfo& input : model.inputs()) {
      std::vector<int64_t> sizes;
      for (const std::string& size : input.sizes) sizes.push_back(size == "batch" ? kBatch : std::stoll(size));
      if (input.name == "x") {
        tensors.push_back({points.data(), input.type, sizes});
      } else if (input.name == "labels") {
        tensors.push_back({labels.data(), input.type, sizes});
      } else {
        size_t count = 1;
        for (int64_t size : sizes) count *= static_cast<size_t>(size);
        weights.emplace_back(count);
        const float scale = sizes.size() == 2 ? 1.0f / std::sqrt(static_cast<float>(sizes[1])) : 0.0f;
        for (float& weight : weights.back()) weight = scale * normal(random);
        tensors.push_back({weights.back().data(), input.type, sizes});
      }
    }

    const lowtide::StepMemory memory = model.memory(tensors);
    std::printf("a step needs %lld bytes (arena %lld)\n", static_cast<long long>(memory.peak),
                static_cast<long long>(memory.arena));
    float loss = 0;
    for (int step = 0; step <= 1000; ++step) {
      lowtide::TrainingStep run = model.forward(tensors);
      loss = *run.output<float>(0);
      if (step % 200 == 0) std::printf("step %4d  loss %.4f\n", step, loss);
      for (const lowtide::Gradient& gradient : run.backward()) {
        const lowtide::TensorView& weight = tensors[gradient.input];
        const float* slope = static_cast<const float*>(gradient.tensor.data);
        float* value = static_cast<float*>(weight.data);
        size_t count = 1;
        for (int64_t size : weight.sizes) count *= static_cast<size_t>(size);
        for (size_t i = 0; i < count; ++i) value[i] -= 0.2f * slope[i];
      }
    }
    return loss < 0.05f ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
