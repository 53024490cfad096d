// This process has no PyTorch; with it, the symbols are tested from Python.
#include "torch_symbols/torch_symbols.h"

#include <gtest/gtest.h>

#include "base/check.h"

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

TEST(TorchSymbols, WhatThePoolFailedToRunIsAnError) {
  TorchSymbols symbols;
  static int runs;
  runs = 0;
  symbols.parallel_for = [](int64_t, int64_t, int64_t, ParallelBody, void*) -> TorchError {
    return ++runs < 2 ? 0 : 1;
  };
  symbols.last_error = []() -> const char* { return "no more threads"; };
  ASSERT_TRUE(install_torch(symbols, 2).threads);
  parallel_for(100, 10, [](int64_t, int64_t) {});
  try {
    parallel_for(100, 10, [](int64_t, int64_t) {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_STREQ(error.what(), "PyTorch's thread pool (torch_parallel_for) failed: no more threads");
  }
  set_parallel_for(nullptr, 1);
}

TEST(TorchSymbols, StepsFollowPyTorchsNumberOfThreads) {
  TorchSymbols symbols;
  static uint32_t now;
  now = 3;
  symbols.parallel_for = [](int64_t, int64_t, int64_t, ParallelBody, void*) -> TorchError { return 0; };
  symbols.get_num_threads = [](uint32_t* threads) -> TorchError {
    *threads = now;
    return 0;
  };
  install_torch(symbols);
  EXPECT_EQ(parallel_threads(), 3);
  now = 5;
  EXPECT_EQ(parallel_threads(), 3);
  EXPECT_EQ(refresh_parallel_threads(), 5);
  EXPECT_EQ(parallel_threads(), 5);
  install_torch(symbols, 2);
  EXPECT_EQ(refresh_parallel_threads(), 2);
  set_parallel_for(nullptr, 1);
}

}  // namespace
}  // namespace lowtide
