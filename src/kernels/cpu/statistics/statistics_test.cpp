#include "kernels/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/half.h"
#include "base/thread_pool.h"
#include "kernels/cpu/isa.h"

namespace lowtide {
namespace {

template <class T>
TensorRef dense(std::vector<T>& values, DType dtype) {
  TensorRef tensor;
  tensor.data = values.data();
  tensor.dtype = dtype;
  tensor.rank = 1;
  tensor.present = true;
  tensor.sizes[0] = static_cast<int64_t>(values.size());
  tensor.strides[0] = 1;
  return tensor;
}

std::vector<float> numbers(size_t count) {
  std::vector<float> values;
  uint32_t state = 12345;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    // Far from 0, where a sum of squares would cancel.
    values.push_back(1000.0f + static_cast<float>(state >> 16) / 65536.0f - 0.5f);
  }
  return values;
}

TEST(Statistics, AreThoseOfTwoPassesInDoubleForEveryInstructionSet) {
  for (const cpu::Isa isa : cpu::runnable_isas()) {
    cpu::limit_isa(isa);
    for (const size_t count : {1, 2, 127, 129, 4096, 4097, 100000, 3000001}) {
      std::vector<float> values = numbers(count);
      values[count / 2] = -3;
      values[count / 3] = 0;
      double sum = 0, squares = 0;
      for (float value : values) sum += value;
      const double mean = sum / static_cast<double>(count);
      for (float value : values) squares += (value - mean) * (value - mean);
      const Statistics found = statistics(dense(values, DType::kF32));
      EXPECT_NEAR(found.mean, mean, 1e-10 * std::abs(mean)) << count;
      if (count > 1) {
        const double expected = std::sqrt(squares / static_cast<double>(count - 1));
        EXPECT_NEAR(found.std, expected, 1e-9 * expected) << count;
      } else {
        EXPECT_TRUE(std::isnan(found.std));
      }
      EXPECT_EQ(found.min, *std::min_element(values.begin(), values.end())) << count;
      EXPECT_EQ(found.max, *std::max_element(values.begin(), values.end())) << count;
      EXPECT_EQ(found.negative, std::count_if(values.begin(), values.end(), [](float x) { return x < 0; })) << count;
      EXPECT_EQ(found.zero, std::count(values.begin(), values.end(), 0.0f)) << count;
      EXPECT_EQ(found.positive + found.negative + found.zero, static_cast<int64_t>(count));
      EXPECT_EQ(found.samples, std::min<int64_t>(128, static_cast<int64_t>(count)));
      for (int i = 0; i < found.samples; ++i) EXPECT_EQ(found.sample[i], values[static_cast<size_t>(i)]);
    }
  }
  cpu::limit_isa(cpu::kHighestIsa);
}

TEST(Statistics, HaveTheSameBitsForAnyNumberOfThreads) {
  std::vector<float> values = numbers(1000003);
  const Statistics alone = statistics(dense(values, DType::kF32));
  install_thread_pool(3);
  const Statistics shared = statistics(dense(values, DType::kF32));
  EXPECT_EQ(alone.mean, shared.mean);
  EXPECT_EQ(alone.std, shared.std);
}

TEST(Statistics, CountWhatIsNoNumber) {
  for (const size_t count : {5, 5000, 200000}) {
    std::vector<float> values(count, 2.0f);
    values[1] = -INFINITY;
    values[4] = -1;
    Statistics found = statistics(dense(values, DType::kF32));
    EXPECT_EQ(found.inf, 1);
    EXPECT_EQ(found.min, -INFINITY);
    EXPECT_EQ(found.max, 2);
    EXPECT_EQ(found.mean, -INFINITY);
    EXPECT_TRUE(std::isnan(found.std));
    values[3] = NAN;
    found = statistics(dense(values, DType::kF32));
    EXPECT_EQ(found.nan, 1);
    EXPECT_TRUE(std::isnan(found.min) && std::isnan(found.max) && std::isnan(found.mean));
    EXPECT_EQ(found.negative, 2);
    EXPECT_EQ(found.positive, static_cast<int64_t>(count) - 3);
  }
}

TEST(Statistics, OfNothingAreNan) {
  std::vector<float> none;
  const Statistics found = statistics(dense(none, DType::kF32));
  EXPECT_TRUE(std::isnan(found.min) && std::isnan(found.max) && std::isnan(found.mean) && std::isnan(found.std));
  EXPECT_EQ(found.samples, 0);
}

TEST(Statistics, ReadStridesInRowMajorOrder) {
  std::vector<int16_t> values(60);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int16_t>(i);
  TensorRef tensor = dense(values, DType::kI16);
  tensor.rank = 3;  // every second column of a [5, 3, 4] tensor with its first dims exchanged
  const int64_t sizes[] = {3, 5, 2}, strides[] = {4, 12, 2};
  std::copy_n(sizes, 3, tensor.sizes);
  std::copy_n(strides, 3, tensor.strides);
  const Statistics found = statistics(tensor);
  std::vector<double> expected;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 5; ++j)
      for (int k = 0; k < 2; ++k) expected.push_back(4 * i + 12 * j + 2 * k);
  EXPECT_EQ(std::vector<double>(found.sample, found.sample + found.samples), expected);
  EXPECT_EQ(found.numel, 30);
  EXPECT_EQ(found.max, 58);
  EXPECT_DOUBLE_EQ(found.mean, 29);
}

TEST(Statistics, SumHalvesInDouble) {
  std::vector<Float16> halves(10000, Float16(60000.0f));
  EXPECT_EQ(statistics(dense(halves, DType::kF16)).mean, 60000 - 60000 % 32);
  std::vector<BFloat16> brains(10000, BFloat16(3.0f));
  EXPECT_EQ(statistics(dense(brains, DType::kBF16)).mean, 3);
  EXPECT_EQ(statistics(dense(brains, DType::kBF16)).std, 0);
}

}  // namespace
}  // namespace lowtide
