#include "kernels/cpu/half_vectors.h"
#include "kernels/cpu/random/philox_vector.h"
#include "kernels/cpu/random/random_table.h"

namespace lowtide::cpu::LT_ISA {
namespace {

// emit(i, count, kept): `kept` has all bits where element i + lane of n is kept.
template <class Emit>
LT_INLINE void for_kept(const DropoutRule& rule, uint64_t first, int64_t n, Emit emit) {
  const vu threshold = splat_word(rule.threshold);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    philox_group((first + i) / 64, rule.key, rule.stream,
                 [&](int offset, vu words) LT_INLINE_LAMBDA { emit(i + offset, Full{}, (vi)(words >= threshold)); });
  }
  if (i == n) return;
  philox_group((first + i) / 64, rule.key, rule.stream, [&](int offset, vu words) LT_INLINE_LAMBDA {
    if (i + offset < n) emit(i + offset, (int)min_of(kLanes, n - i - offset), (vi)(words >= threshold));
  });
}

template <class X, class Y>
void dropout(const DropoutRule& rule, uint64_t first, const void* x, void* y, int64_t n) {
  const auto* from = (const typename X::Number*)x;
  auto* to = (typename Y::Number*)y;
  for_kept(rule, first, n, [&](int64_t i, auto count, vi kept) LT_INLINE_LAMBDA {
    Y::store(to + i, kept ? X::load(from + i, count) * rule.scale : vf{}, count);
  });
}

template <class Y>
void dropout_of_floats(const DropoutRule& rule, uint64_t first, const float* x, const void* added, void* y, int64_t n) {
  auto* to = (typename Y::Number*)y;
  if (added == nullptr) return dropout<Floats, Y>(rule, first, x, y, n);
  const auto* residual = (const typename Y::Number*)added;
  for_kept(rule, first, n, [&](int64_t i, auto count, vi kept) LT_INLINE_LAMBDA {
    const vf dropped = Y::rounded(kept ? load(x + i, count) * rule.scale : vf{});
    Y::store(to + i, dropped + Y::load(residual + i, count), count);
  });
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

constinit const RandomTable random_table = {
    {{dropout<Floats, Floats>, dropout<Floats, Halves<true>>, dropout<Floats, Halves<false>>},
     {dropout<Halves<true>, Floats>, dropout<Halves<true>, Halves<true>>, dropout<Halves<true>, Halves<false>>},
     {dropout<Halves<false>, Floats>, dropout<Halves<false>, Halves<true>>, dropout<Halves<false>, Halves<false>>}},
    {dropout_of_floats<Floats>, dropout_of_floats<Halves<true>>, dropout_of_floats<Halves<false>>},
    words};

}  // namespace lowtide::cpu::LT_ISA
