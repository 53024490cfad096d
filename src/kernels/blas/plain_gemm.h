// For tests: what stands for the process's BLAS, whose callers are under test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "base/libraries.h"

namespace lowtide {

inline std::atomic<int> plain_products{0};

template <class T>
void plain_gemm(const char* trans_a, const char* trans_b, const int* m, const int* n, const int* k, const T* alpha,
                const T* a, const int* lda, const T* b, const int* ldb, const T* beta, T* c, const int* ldc) {
  ++plain_products;
  EXPECT_GE(*lda, std::max(1, *trans_a == 'N' ? *m : *k));
  EXPECT_GE(*ldb, std::max(1, *trans_b == 'N' ? *k : *n));
  EXPECT_GE(*ldc, std::max(1, *m));
  for (int64_t j = 0; j < *n; ++j) {
    for (int64_t i = 0; i < *m; ++i) {
      double sum = 0;
      for (int64_t l = 0; l < *k; ++l)
        sum += double{*trans_a == 'N' ? a[i + l * *lda] : a[l + i * *lda]} *
               double{*trans_b == 'N' ? b[l + j * *ldb] : b[j + l * *ldb]};
      T& to = c[i + j * *ldc];
      to = static_cast<T>(*alpha * sum + (*beta == 0 ? 0 : double{*beta} * to));
    }
  }
}

inline void set_plain_gemm() {
  Libraries libraries;
  libraries.sgemm = plain_gemm<float>;
  libraries.dgemm = plain_gemm<double>;
  set_libraries(libraries);
}

}  // namespace lowtide
