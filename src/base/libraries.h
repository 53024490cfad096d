// Functions of math libraries that the process has loaded anyway, for the kernels. By default there are none;
// whoever knows the process (torch_symbols, or a provider of the user's) installs them once, before kernels run.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace lowtide {

// Fortran BLAS: column-major, 32-bit integers, everything by pointer.
template <class T>
using BlasGemm = void (*)(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k,
                          const T* alpha, const T* a, const int* lda, const T* b, const int* ldb, const T* beta, T* c,
                          const int* ldc);

// A strided tensor of floats, of rank 3 to 5, as a library wants it.
struct LibraryTensor {
  void* data = nullptr;
  int rank = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;  // elements
  DType dtype = DType::kF32;
};

struct ConvolutionWindow {
  int spatial = 0;
  const int64_t* strides = nullptr;
  const int64_t* pads = nullptr;  // the same at both ends
  const int64_t* dilations = nullptr;
  int64_t groups = 1;
};

// nullptr: done; else a message of the thread's. bias may be null. y's bytes are overwritten.
using ConvolutionForward = const char* (*)(const LibraryTensor& x, const LibraryTensor& w, const LibraryTensor* bias,
                                           const ConvolutionWindow& window, const LibraryTensor& y);
// dx, dw, dbias: null where unwanted.
using ConvolutionBackward = const char* (*)(const LibraryTensor& dy, const LibraryTensor& x, const LibraryTensor& w,
                                            const ConvolutionWindow& window, const LibraryTensor* dx,
                                            const LibraryTensor* dw, const LibraryTensor* dbias);

struct Libraries {
  BlasGemm<float> sgemm = nullptr;
  BlasGemm<double> dgemm = nullptr;
  ConvolutionForward convolution = nullptr;
  ConvolutionBackward convolution_backward = nullptr;
};

// Not while kernels run. The planner asks libraries() too: a Program planned with a library needs it when it runs.
void set_libraries(const Libraries& libraries);
const Libraries& libraries();

}  // namespace lowtide
