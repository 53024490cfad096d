#include "kernels/cpu/random/philox_vector.h"
#include "kernels/cpu/random/random_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

void dropout(const DropoutRule& rule, uint64_t first, const float* x, float* y, int64_t n) {
  const vu threshold = splat_word(rule.threshold);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    philox_group((first + i) / 64, rule.key, rule.stream, [&](int offset, vu words) LT_INLINE_LAMBDA {
      store(y + i + offset, words >= threshold ? load(x + i + offset) * rule.scale : vf{});
    });
  }
  if (i == n) return;
  float factors[64];
  dropout_factors(rule, first + i, 1, factors);
  for (int64_t j = 0; i < n; ++i, ++j) y[i] = factors[j] == 0 ? 0.0f : x[i] * rule.scale;
}

void words(uint64_t key, uint64_t stream, uint64_t first, uint32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 64) {
    philox_group((first + i) / 64, key, stream, [&](int offset, vu drawn) LT_INLINE_LAMBDA {
      if (i + 64 <= n) {
        store_words(out + i + offset, drawn);
      } else {
        for (int lane = 0; lane < kLanes; ++lane) {
          if (i + offset + lane < n) out[i + offset + lane] = drawn[lane];
        }
      }
    });
  }
}

}  // namespace

constinit const RandomTable random_table = {dropout, words};

}  // namespace lowtide::cpu::LT_ISA
