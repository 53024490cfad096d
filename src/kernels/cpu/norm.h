// Layer norm and RMS norm over dense f32 [rows, cols], with their gradients. Null gamma stands for ones, null beta for
// zeros; null outputs are not computed. y or dx may be x or dy.
// Gradients need norm_grad_scratch_bytes of scratch, none if dgamma and dbeta are null.
#pragma once

#include <cstdint>

namespace lowtide::cpu {

// xhat = (x - mean) rstd, rstd = 1 / sqrt(variance + eps), y = xhat gamma + beta. mean and rstd have one entry a row.
void layer_norm(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* rstd, int64_t rows,
                int64_t cols, float eps);

// w = dy gamma;  dx = rstd (w - mean_c(w) - xhat mean_c(w xhat));  dgamma = sum_r(dy xhat);  dbeta = sum_r(dy)
void layer_norm_grad(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                     float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t cols, void* scratch);

// rstd = 1 / sqrt(mean_c(x^2) + eps), y = x rstd gamma
void rms_norm(const float* x, const float* gamma, float* y, float* rstd, int64_t rows, int64_t cols, float eps);

// w = dy gamma;  dx = rstd (w - xhat mean_c(w xhat)), xhat = x rstd;  dgamma = sum_r(dy xhat)
void rms_norm_grad(const float* dy, const float* x, const float* gamma, const float* rstd, float* dx, float* dgamma,
                   int64_t rows, int64_t cols, void* scratch);

int64_t norm_grad_scratch_bytes(int64_t rows, int64_t cols);

}  // namespace lowtide::cpu
