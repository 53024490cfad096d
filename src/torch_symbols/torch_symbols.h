// PyTorch's C symbols, resolved at run time among the libraries that the process has loaded. No header and no C++ type
// of PyTorch is used; signatures are those of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h.
#pragma once

#include <cstdint>

#include "base/libraries.h"
#include "base/parallel.h"

namespace lowtide {

using TorchTensor = void*;  // AtenTensorHandle
using TorchError = int32_t;

// Null where PyTorch is not loaded or too old.
struct TorchSymbols {
  TorchError (*parallel_for)(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) = nullptr;
  TorchError (*get_num_threads)(uint32_t* threads) = nullptr;

  BlasGemm<float> sgemm = nullptr;
  BlasGemm<double> dgemm = nullptr;

  TorchError (*tensor_from_blob)(void* data, int64_t rank, const int64_t* sizes, const int64_t* strides, int64_t offset,
                                 int32_t dtype, int32_t device_type, int32_t device_index,
                                 TorchTensor* result) = nullptr;
  TorchError (*delete_tensor)(TorchTensor tensor) = nullptr;
  TorchError (*get_data_ptr)(TorchTensor tensor, void** data) = nullptr;
  TorchError (*get_dim)(TorchTensor tensor, int64_t* rank) = nullptr;
  TorchError (*get_sizes)(TorchTensor tensor, int64_t** sizes) = nullptr;
  TorchError (*get_strides)(TorchTensor tensor, int64_t** strides) = nullptr;
  TorchError (*get_dtype)(TorchTensor tensor, int32_t* dtype) = nullptr;
  TorchError (*get_device_type)(TorchTensor tensor, int32_t* type) = nullptr;
  TorchError (*copy)(TorchTensor to, TorchTensor from, int32_t non_blocking) = nullptr;
  bool (*grad_mode_is_enabled)() = nullptr;
  void (*grad_mode_set_enabled)(bool enabled) = nullptr;
  const char* (*last_error)() = nullptr;

  TorchError (*convolution)(TorchTensor input, TorchTensor weight, TorchTensor* bias, const int64_t* stride, int64_t,
                            const int64_t* padding, int64_t, const int64_t* dilation, int64_t, int32_t transposed,
                            const int64_t* output_padding, int64_t, int64_t groups, TorchTensor* result) = nullptr;
  TorchError (*convolution_backward)(TorchTensor grad_output, TorchTensor input, TorchTensor weight,
                                     const int64_t** bias_sizes, int64_t bias_rank, const int64_t* stride, int64_t,
                                     const int64_t* padding, int64_t, const int64_t* dilation, int64_t,
                                     int32_t transposed, const int64_t* output_padding, int64_t, int64_t groups,
                                     const int32_t* output_mask, int64_t, TorchTensor* grad_input,
                                     TorchTensor* grad_weight, TorchTensor* grad_bias) = nullptr;
  // other += convolution, in other's memory.
  TorchError (*convolution_add)(TorchTensor other, TorchTensor input, TorchTensor weight, TorchTensor* bias,
                                const int64_t* padding, int64_t, const int64_t* stride, int64_t,
                                const int64_t* dilation, int64_t, int64_t groups, const char* binary_attr,
                                double* alpha, const char** unary_attr, const double** unary_scalars, int64_t,
                                const char** unary_algorithm, TorchTensor* result) = nullptr;
};

TorchSymbols load_torch_symbols();

// Installs PyTorch's thread pool as parallel_for, its BLAS and its convolutions. `threads` < 1: as many as PyTorch
// has whenever a step begins. Returns what is now installed; a process without PyTorch is left as it was.
struct TorchInstalled {
  bool threads = false, blas = false, convolution = false;
};
TorchInstalled install_torch(const TorchSymbols& symbols, int threads = 0);

}  // namespace lowtide
