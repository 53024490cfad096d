// Random kernels by kernels/philox.h: element i of the call is element i of the stream.
#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/random/random_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/philox.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {

DropoutRule dropout_rule(double p, uint64_t key, uint64_t stream) {
  return {key, stream, static_cast<uint32_t>(std::min<uint64_t>(dropout_threshold(p), 0xffffffffu)), dropout_scale(p)};
}

namespace {

// body(first, n): first is a multiple of 64.
template <class Body>
void for_groups(int64_t n, int64_t grain, Body body) {
  parallel_for((n + 63) / 64, grain / 64,
               [&](int64_t begin, int64_t end) { body(begin * 64, std::min(n, end * 64) - begin * 64); });
}

// Words of 1,024 elements at a time: body(i, words, count).
template <class Body>
void for_words(uint64_t key, uint64_t stream, int64_t n, int64_t grain, Body body) {
  for_groups(n, grain, [&](int64_t first, int64_t count) {
    uint32_t words[1024];
    for (int64_t i = first; i < first + count; i += 1024) {
      // Whole groups, as normal numbers need both words of a pair.
      const int64_t each = std::min<int64_t>(1024, first + count - i);
      random_table().words(key, stream, i, words, (each + 63) / 64 * 64);
      body(i, words, each);
    }
  });
}

uint64_t stream_of(const BoundCall& call) { return static_cast<uint64_t>(call.attrs->i("stream")); }

struct Dropout {
  explicit Dropout(const BoundCall& call)
      : ratio(call.attrs->f("ratio")),
        stream(stream_of(call)),
        begin(static_cast<uint64_t>(call.attrs->i("first_element", 0))),
        computes(computed_dtype(*call.attrs, DType::kF32)) {}
  double ratio;
  uint64_t stream, begin;
  DType computes;
};
struct Uniform {
  explicit Uniform(const BoundCall& call)
      : low(static_cast<float>(call.attrs->f("low"))),
        high(static_cast<float>(call.attrs->f("high"))),
        stream(stream_of(call)) {}
  float low, high;
  uint64_t stream;
};
struct Normal {
  explicit Normal(const BoundCall& call)
      : mean(static_cast<float>(call.attrs->f("mean"))),
        scale(static_cast<float>(call.attrs->f("scale"))),
        stream(stream_of(call)) {}
  float mean, scale;
  uint64_t stream;
};

// x and y of any float dtype, row-major.
struct Dropping {
  DropoutRule rule;
  DType computes;
  const TensorRef &x, &y;

  // Elements [offset, offset + n), whose words begin at `first` of the stream, a multiple of 64.
  void run(uint64_t first, int64_t offset, int64_t n) const {
    if (x.dtype == computes || computes == DType::kF32) {
      const auto loop = random_table().dropout[stored_as(x.dtype)][stored_as(y.dtype)];
      return loop(rule, first, address(x, offset), address(y, offset), n);
    }
    for (int64_t at = 0; at < n; at += kRun) {
      float in[kRun], out[kRun];
      const int64_t length = std::min(kRun, n - at);
      float* to = target(y, offset + at, 1, length, out);
      random_table().dropout[kStoredF32][kStoredF32](rule, first + static_cast<uint64_t>(at),
                                                     read_as(computes, x, offset + at, 1, length, in), to, length);
      write(y, offset + at, 1, length, to);
    }
  }
  // The same for words that begin anywhere: by groups of the stream, the first of which begins before the elements.
  void run_unaligned(uint64_t first, int64_t offset, int64_t n) const {
    const int64_t skipped = static_cast<int64_t>(first % 64);
    for (int64_t at = -skipped; at < n; at += 64) {
      float in[64], group[64] = {};
      const int64_t low = std::max<int64_t>(at, 0), high = std::min(at + 64, n);
      const float* from = read_as(computes, x, offset + low, 1, high - low, in);
      std::copy(from, from + (high - low), group + (low - at));
      random_table().dropout[kStoredF32][kStoredF32](rule, first + static_cast<uint64_t>(at), group, group, 64);
      write(y, offset + low, 1, high - low, group + (low - at));
    }
  }
};

// Each row with the mask of row rows[i].
void drop_in_rows(const Dropping& dropping, const TensorRef& rows) {
  const int64_t count = rows.sizes[0], width = count > 0 ? dropping.y.numel() / count : 0;
  if (width == 0) return;
  parallel_for(count, std::max<int64_t>(1, (1 << 14) / width), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = rows.as<const int64_t>()[i] * width;
      if (first % 64 == 0) {
        dropping.run(static_cast<uint64_t>(first), i * width, width);
      } else {
        dropping.run_unaligned(static_cast<uint64_t>(first), i * width, width);
      }
    }
  });
}

KernelStatus dropout(const KernelCall& call, const Dropout& drawn) {
  const DropoutRule rule = dropout_rule(drawn.ratio, call.random_key, drawn.stream);
  const Dropping dropping{rule, drawn.computes, call.inputs[0], call.outputs[0]};
  if (const TensorRef* rows = input(call, 1)) {
    drop_in_rows(dropping, *rows);
    return nullptr;
  }
  for_groups(call.outputs[0].numel(), 1 << 14, [&](int64_t first, int64_t count) {
    dropping.run(drawn.begin + static_cast<uint64_t>(first), first, count);
  });
  return nullptr;
}

KernelStatus double_dropout(const KernelCall& call, const Dropout& drawn) {
  const double *x = call.inputs[0].as<double>(), scale = drawn.ratio < 1 ? 1.0 / (1.0 - drawn.ratio) : 0.0;
  double* y = call.outputs[0].as<double>();
  const uint64_t threshold = dropout_threshold(drawn.ratio);
  for_words(call.random_key, drawn.stream, call.outputs[0].numel(), 1 << 14,
            [&](int64_t at, const uint32_t* words, int64_t count) {
              for (int64_t i = 0; i < count; ++i) y[at + i] = words[i] >= threshold ? x[at + i] * scale : 0.0;
            });
  return nullptr;
}

// low + (high - low) u, u = random_uniform of philox.h
KernelStatus uniform(const KernelCall& call, const Uniform& drawn) {
  float* y = output_floats(call, 0);
  const auto [low, high, stream] = drawn;
  for_words(call.random_key, stream, call.outputs[0].numel(), 1 << 14,
            [&](int64_t at, const uint32_t* words, int64_t count) {
              for (int64_t i = 0; i < count; ++i) {
                y[at + i] = low + (high - low) * (static_cast<float>(words[i] >> 8) * 0x1p-24f);
              }
            });
  return nullptr;
}

// mean + scale z, z = random_normal of philox.h
KernelStatus normal(const KernelCall& call, const Normal& drawn) {
  float* y = output_floats(call, 0);
  const auto [mean, scale, stream] = drawn;
  for_words(call.random_key, stream, call.outputs[0].numel(), 1 << 11,
            [&](int64_t at, const uint32_t* words, int64_t count) {
              for (int64_t i = 0; i < count; ++i) {
                const int64_t even = i & ~int64_t{16};
                y[at + i] = static_cast<float>(mean + scale * normal_of_words(words[even], words[even + 16], i & 16));
              }
            });
  return nullptr;
}

const char* supports_dropout(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype, computes = computed_dtype(*query.attrs, dtype);
  return (computes == DType::kF32 || is_half(computes)) && is_readable_as(computes, dtype)
             ? nullptr
             : "neither f32, bf16 nor f16";
}

const char* supports_double_dropout(const KernelQuery& query) {
  if (query.inputs.size() > 1 && query.inputs[1].present) return "drawn in rows";
  const DType dtype = query.inputs[0].dtype;
  return dtype == DType::kF64 && computed_dtype(*query.attrs, dtype) == dtype ? nullptr : "not f64";
}

const char* supports_f32_output(const KernelQuery& query) {
  return query.outputs[0].dtype == DType::kF32 ? nullptr : "not f32";
}

}  // namespace

std::span<const Kernel> random_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/random/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
