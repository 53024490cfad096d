#include <cmath>
#include <limits>
#include <memory>

#include "base/half.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct CopyCase {
  std::vector<int64_t> sizes, src, dst;
};

constexpr DType of_bytes(size_t bytes) {
  return bytes == 1 ? DType::kU8 : bytes == 2 ? DType::kF16 : bytes == 4 ? DType::kF32 : DType::kI64;
}

template <class T>
void check_copy(const CopyCase& c, int64_t src_room, int64_t dst_room) {
  std::vector<T> src(src_room);
  for (int64_t i = 0; i < src_room; ++i) src[i] = static_cast<T>(i * 2654435761u >> 3);
  std::vector<T> wanted(dst_room, T{99});
  std::vector<int64_t> index(c.sizes.size());
  int64_t numel = 1;
  for (int64_t size : c.sizes) numel *= size;
  for (int64_t at = 0; at < numel; ++at) {
    int64_t rest = at, from = 0, to = 0;
    for (size_t i = c.sizes.size(); i-- > 0;) {
      from += rest % c.sizes[i] * c.src[i];
      to += rest % c.sizes[i] * c.dst[i];
      rest /= c.sizes[i];
    }
    wanted[to] = src[from];
  }
  for_every_run(
      [&] {
        std::vector<T> dst(dst_room, T{99});
        const DType dtype = of_bytes(sizeof(T));
        run_kernel("cpu.Copy", {tensor(src.data(), dtype, c.sizes, c.src)}, {tensor(dst.data(), dtype, c.sizes, c.dst)},
                   {});
        return dst;
      },
      [&](const std::vector<T>& dst) { EXPECT_EQ(dst, wanted); });
}

TEST(CopyStrided, MovesEveryElementOnce) {
  const CopyCase cases[] = {
      {{}, {}, {}},
      {{0, 3}, {3, 1}, {3, 1}},
      {{70001}, {1}, {1}},
      {{300, 700}, {700, 1}, {700, 1}},
      {{300, 700}, {1, 300}, {700, 1}},                                              // transpose
      {{2, 17, 3, 8}, {17 * 24, 24, 8, 1}, {17 * 24, 8, 17 * 8, 1}},                 // [B, S, H, D] to [B, H, S, D]
      {{2, 3, 17, 65}, {3 * 17 * 65, 17 * 65, 65, 1}, {3 * 17 * 65, 1, 3 * 65, 3}},  // to channels-last
      {{4, 5, 6}, {0, 1, 0}, {30, 6, 1}},                                            // broadcast
      {{40, 50}, {100, 2}, {50, 1}},                                                 // every other
      {{7, 9}, {9, 1}, {20, 2}},
      {{65, 33, 2}, {1, 65, 33 * 65}, {66, 2, 1}},
      {{1, 5, 1, 513}, {7, 513, 3, 1}, {9, 1, 4, 5}},
  };
  for (const CopyCase& c : cases) {
    int64_t src_room = 1, dst_room = 1;
    for (size_t i = 0; i < c.sizes.size(); ++i) {
      src_room += std::max<int64_t>(0, c.sizes[i] - 1) * c.src[i];
      dst_room += std::max<int64_t>(0, c.sizes[i] - 1) * c.dst[i];
    }
    SCOPED_TRACE(testing::PrintToString(c.sizes));
    check_copy<uint8_t>(c, src_room, dst_room);
    check_copy<uint16_t>(c, src_room, dst_room);
    check_copy<uint32_t>(c, src_room, dst_room);
    check_copy<uint64_t>(c, src_room, dst_room);
  }
}

template <class T>
void check_cast(DType dtype, const std::vector<float>& x) {
  const auto there = std::make_unique<T[]>(x.size());
  std::vector<float> back(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    const TensorRef narrow = tensor(there.get(), dtype, {n});
    run_kernel("cpu.Cast", {floats(x.data(), {n})}, {narrow}, {});
    run_kernel("cpu.Cast", {narrow}, {floats(back.data(), {n})}, {});
    for (size_t i = 0; i < x.size(); ++i) {
      const T wanted = static_cast<T>(x[i]);
      ASSERT_EQ(std::memcmp(&there[i], &wanted, sizeof(T)), 0) << name(dtype) << " of " << x[i];
      const float again = static_cast<float>(wanted);
      ASSERT_TRUE(back[i] == again || (back[i] != back[i] && again != again)) << name(dtype) << " of " << x[i];
    }
  }
}

template <class T>
void check_widening(DType dtype) {
  const std::vector<T> x = {0, 1, 3, 16777216, 16777217, 33554435, 123456789, static_cast<T>(-7)};
  std::vector<float> y(x.size());
  for (Isa each : runnable_isas()) {
    limit_isa(each);
    run_kernel("cpu.Cast", {tensor(x.data(), dtype, {8})}, {floats(y.data(), {8})}, {});
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], static_cast<float>(x[i])) << x[i];
  }
  limit_isa(kHighestIsa);
}

TEST(Cast, IntegersToNearestEven) {
  check_widening<int64_t>(DType::kI64);
  check_widening<int32_t>(DType::kI32);
}

TEST(Cast, RoundsAsTheScalarTypes) {
  std::vector<float> x = random_floats(1001, 1, 1000);
  for (float v : {0.0f, -0.0f, 1.0f, 0.5f, 1e-7f, 6e-8f, 65504.0f, 65519.0f}) x.push_back(v);
  check_cast<bool>(DType::kBool, x);
  for (float v : {65520.0f, 1e30f, INFINITY, -INFINITY, NAN, 1e-45f, 3.4028235e38f}) x.push_back(v);
  check_cast<BFloat16>(DType::kBF16, x);
  check_cast<Float16>(DType::kF16, x);
  check_cast<double>(DType::kF64, x);
}

}  // namespace
}  // namespace lowtide::cpu
