#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// [outer, size, inner] along the middle or, of inner 1, the last axis.
struct OrdersCase {
  int64_t outer, size, inner;
  std::vector<int64_t> sizes() const {
    return inner == 1 ? std::vector<int64_t>{outer, size} : std::vector<int64_t>{outer, size, inner};
  }
  int64_t numel() const { return outer * size * inner; }
};
constexpr OrdersCase kOrdersCases[] = {{3, 1, 1}, {40, 7, 1}, {5, 300, 1}, {2, 5000, 1}, {3, 50, 300}, {2, 130, 3}};

// Values of which many are equal, both zeros, infinities, and some NaN; bf16 and f16 have them all.
std::vector<float> values_of(const OrdersCase& c) {
  constexpr float kSpecial[] = {0.0f, -0.0f, INFINITY, -INFINITY};
  std::mt19937 generator(static_cast<uint32_t>(c.numel()));
  std::vector<float> values(c.numel());
  for (float& value : values) {
    const uint32_t drawn = generator();
    value = drawn % 8 == 0 ? kSpecial[drawn / 8 % 4] : static_cast<float>(static_cast<int>(drawn / 8 % 199) - 99) / 8;
  }
  // A row without, one with several.
  for (int64_t i = c.numel() / 2; i < c.numel(); i += 1 + c.size / 3) values[i] = NAN;
  return values;
}

// The outputs' bytes: the reference's, NaN included, in every dtype.
void check(const std::string& op, const OrdersCase& c, const BoundAttrs& attrs, const std::vector<int64_t>& made,
           bool has_values) {
  SCOPED_TRACE(testing::Message() << op << " of " << c.outer << " x " << c.size << " x " << c.inner);
  int64_t numel = 1;
  for (int64_t size : made) numel *= size;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<float> wide = values_of(c);
    const std::vector<uint16_t> narrow = dtype == DType::kF32 ? std::vector<uint16_t>() : halves(dtype, wide);
    const TensorRef x =
        tensor(narrow.empty() ? static_cast<const void*>(wide.data()) : narrow.data(), dtype, c.sizes());
    const auto run = [&](const std::string& provider) {
      std::vector<int64_t> words(2 * numel);
      std::vector<TensorRef> outputs = {tensor(words.data(), DType::kI64, made)};
      if (has_values) outputs.insert(outputs.begin(), tensor(words.data() + numel, dtype, made));
      EXPECT_EQ(run_kernel(provider + "." + op, {x}, outputs, attrs), nullptr);
      return words;
    };
    const std::vector<int64_t> wanted = run("reference");
    for_every_run([&] { return run("cpu"); },
                  [&](const std::vector<int64_t>& found) {
                    for (int64_t i = 0; i < numel; ++i) ASSERT_EQ(found[i], wanted[i]) << i;
                    // NaN may be another one.
                    const auto value = [&](const std::vector<int64_t>& words, int64_t i) {
                      const void* at = words.data() + numel;
                      if (dtype == DType::kF32) return static_cast<const float*>(at)[i];
                      return widened(dtype, {static_cast<const uint16_t*>(at)[i]})[0];
                    };
                    for (int64_t i = 0; has_values && i < numel; ++i) {
                      const float have = value(found, i), want = value(wanted, i);
                      if (have != have && want != want) continue;
                      ASSERT_EQ(have, want) << i;
                      ASSERT_EQ(std::signbit(have), std::signbit(want)) << i;
                    }
                  });
  }
}

TEST(Orders, RowsAreSortedAsByTheReference) {
  for (const OrdersCase& c : kOrdersCases)
    for (const bool descending : {false, true})
      check("Sort", c, {{"axis", 1}, {"descending", descending}}, c.sizes(), true);
}

TEST(Orders, TheFirstFewAreTheReferences) {
  for (const OrdersCase& c : kOrdersCases) {
    for (const int64_t k : {int64_t{1}, std::min<int64_t>(c.size, 4), c.size}) {
      for (const bool largest : {false, true}) {
        std::vector<int64_t> made = c.sizes();
        made[1] = k;
        check("TopK", c, {{"axis", 1}, {"k", k}, {"largest", largest}}, made, true);
      }
    }
  }
}

TEST(Orders, PlacesOfExtremesAreTheReferences) {
  for (const OrdersCase& c : kOrdersCases) {
    std::vector<int64_t> made = c.sizes();
    made[1] = 1;
    for (const char* op : {"ArgMax", "ArgMin"}) check(op, c, {{"axis", 1}, {"keepdims", true}}, made, false);
  }
}

}  // namespace
}  // namespace lowtide::cpu
