// Batch normalisation of f32 images, [N, C, inner] (NCHW: inner = H W) or dense channels-last [N inner, C].
// Statistics are combined from blocks in a fixed order: mean and squared deviations of each plane (NCHW) or of each
// kRowsPerBlock rows (channels-last), by Chan's formula in doubles.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

struct BatchNormShape {
  int64_t batch = 0;
  int64_t channels = 0;
  int64_t inner = 0;
  bool channels_last = false;
  int64_t per_channel() const { return batch * inner; }
};

// Null weight stands for ones, null bias for zeros.
struct BatchNormParameters {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-5f;
};

// new = (1 - momentum) old + momentum now, with the unbiased variance. Null pointers: not kept. new may be old.
struct RunningStatistics {
  const float* mean = nullptr;
  const float* variance = nullptr;
  float* new_mean = nullptr;
  float* new_variance = nullptr;
  float momentum = 0.1f;
};

// mean and rstd (one entry a channel) are those of this batch; y may be x, or null: not computed.
void batch_norm_train(const BatchNormShape& shape, const float* x, const BatchNormParameters& parameters,
                      const RunningStatistics& running, float* y, float* mean, float* rstd, void* scratch);

// With given statistics (eval mode).
void batch_norm_infer(const BatchNormShape& shape, const float* x, const BatchNormParameters& parameters,
                      const float* mean, const float* variance, float* y, void* scratch);

// xhat = (x - mean) rstd;  dweight = sum(dy xhat);  dbias = sum(dy)
// dx = weight rstd (dy - dbias / M - xhat dweight / M), M = per_channel(); without batch statistics weight rstd dy.
// Null outputs are not computed; dx may be dy.
void batch_norm_grad(const BatchNormShape& shape, const float* dy, const float* x, const float* weight,
                     const float* mean, const float* rstd, bool batch_statistics, float* dx, float* dweight,
                     float* dbias, void* scratch);

// Enough for any of them.
int64_t batch_norm_scratch_bytes(const BatchNormShape& shape);

}  // namespace lowtide::cpu
