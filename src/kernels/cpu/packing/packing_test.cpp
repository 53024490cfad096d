#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// `bits` bits from position `at` of little-endian memory, bit by bit.
uint64_t bits_at(const std::vector<uint8_t>& bytes, int64_t at, int64_t bits) {
  uint64_t value = 0;
  for (int64_t i = 0; i < bits; ++i) value |= uint64_t{(bytes[(at + i) / 8] >> ((at + i) % 8)) & 1u} << i;
  return value;
}

constexpr DType integers_of(size_t bytes) {
  return bytes == 1 ? DType::kU8 : bytes == 2 ? DType::kI16 : bytes == 4 ? DType::kI32 : DType::kI64;
}

// `kernel` from n elements of T to their packed bytes, or back.
template <class T>
void run_packing(const char* kernel, const std::vector<T>& elements, const std::vector<uint8_t>& packed, int64_t bits,
                 int64_t low) {
  const TensorRef wide = tensor(elements.data(), integers_of(sizeof(T)), {static_cast<int64_t>(elements.size())});
  const TensorRef narrow = tensor(packed.data(), DType::kU8, {static_cast<int64_t>(packed.size())});
  const bool back = std::string_view(kernel) == "cpu.UnpackBits";
  run_kernel(kernel, {back ? narrow : wide}, {back ? wide : narrow}, {{"bits", bits}, {"low", low}});
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
        run_packing("cpu.PackBits", x, packed, bits, low);
        return packed;
      },
      [&](const std::vector<uint8_t>& packed) {
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(bits_at(packed, i * bits, bits), (static_cast<uint64_t>(x[i]) - low) & mask) << i;
        for (int64_t i = n * bits; i < static_cast<int64_t>(packed.size()) * 8; ++i)
          EXPECT_EQ(bits_at(packed, i, 1), 0u) << "a bit past the last element";
      });
  std::vector<uint8_t> packed((n * bits + 7) / 8);
  run_packing("cpu.PackBits", x, packed, bits, low);
  for_every_run(
      [&] {
        std::vector<T> y(n, T{77});
        run_packing("cpu.UnpackBits", y, packed, bits, low);
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
