// This process has no PyTorch; with it, the symbols are tested from Python.
#include "torch_symbols/torch_symbols.h"

#include <gtest/gtest.h>

namespace lowtide {
namespace {

TEST(TorchSymbols, AProcessWithoutPyTorchIsLeftAsItWas) {
  const TorchSymbols symbols = load_torch_symbols();
  EXPECT_EQ(symbols.parallel_for, nullptr);
  const TorchInstalled installed = install_torch(symbols);
  EXPECT_FALSE(installed.threads || installed.blas || installed.convolution);
  EXPECT_EQ(parallel_threads(), 1);
  EXPECT_EQ(libraries().sgemm, nullptr);
  int64_t sum = 0;
  parallel_for(100, 10, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100);
}

}  // namespace
}  // namespace lowtide
