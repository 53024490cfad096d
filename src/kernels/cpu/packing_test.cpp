#include "kernels/cpu/packing.h"

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// `bits` bits from position `at` of little-endian memory, bit by bit.
uint64_t bits_at(const std::vector<uint8_t>& bytes, int64_t at, int64_t bits) {
  uint64_t value = 0;
  for (int64_t i = 0; i < bits; ++i) value |= uint64_t{(bytes[(at + i) / 8] >> ((at + i) % 8)) & 1u} << i;
  return value;
}

template <class T>
void check(int64_t bits, int64_t n, int64_t low) {
  SCOPED_TRACE(testing::Message() << sizeof(T) << " bytes in " << bits << " bits, n " << n << ", low " << low);
  std::mt19937_64 generator(5);
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  std::vector<T> x(n);
  for (T& value : x) value = static_cast<T>(static_cast<uint64_t>(low) + (generator() & mask));
  for_every_run(
      [&] {
        std::vector<uint8_t> packed((n * bits + 7) / 8, 0xee);
        pack_bits(x.data(), n, sizeof(T), bits, low, packed.data());
        return packed;
      },
      [&](const std::vector<uint8_t>& packed) {
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(bits_at(packed, i * bits, bits), (static_cast<uint64_t>(x[i]) - low) & mask) << i;
        for (int64_t i = n * bits; i < static_cast<int64_t>(packed.size()) * 8; ++i)
          EXPECT_EQ(bits_at(packed, i, 1), 0u) << "a bit past the last element";
      });
  std::vector<uint8_t> packed((n * bits + 7) / 8);
  pack_bits(x.data(), n, sizeof(T), bits, low, packed.data());
  for_every_run(
      [&] {
        std::vector<T> y(n, T{77});
        unpack_bits(packed.data(), n, sizeof(T), bits, low, y.data());
        return y;
      },
      [&](const std::vector<T>& y) { EXPECT_EQ(y, x); });
}

template <class T>
void check_widths() {
  for (int64_t bits : {1, 2, 4, 8, 16, 32}) {
    if (bits > static_cast<int64_t>(8 * sizeof(T))) break;
    for (int64_t n : {1, 7, 64, 65, 1003, 100001}) check<T>(bits, n, n % 2 == 0 ? 0 : -3);
  }
}

TEST(Packing, StoresEveryElementAndGivesItBack) {
  check_widths<uint8_t>();
  check_widths<int16_t>();
  check_widths<int32_t>();
  check_widths<int64_t>();
  check<int64_t>(32, 1003, -5000000000);
}

}  // namespace
}  // namespace lowtide::cpu
