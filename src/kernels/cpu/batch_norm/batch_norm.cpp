// Batch normalisation of f32, bf16 and f16 images, [N, C, inner] (NCHW: inner = H W) or dense channels-last [N inner,
// C], which rows of channels alone are too, with the statistics of the batch:
//   xhat = (x - mean) inv_std;  y = xhat weight + bias;  new = (1 - momentum) old + momentum now (unbiased variance)
//   dweight = sum(dy xhat);  dbias = sum(dy);  dx = weight inv_std (dy - dbias / M - xhat dweight / M), M = N inner
// Statistics are combined from blocks in a fixed order: mean and squared deviations of each plane (NCHW) or of each
// kRowsPerBlock rows (channels-last), by Chan's formula in doubles. Halves are read as floats and rounded once.
#include <cmath>

#include "kernels/cpu/batch_norm/group_norm.h"
#include "kernels/cpu/batch_norm/images.h"
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"

namespace lowtide::cpu {
namespace {

constexpr OperandRules kDenseInPlace = every_input(Accept::kDense, {.layout = OutputLayout::kFollowsInput, .takes = 0});

struct Shape {
  int64_t batch, channels, inner;
  bool channels_last;

  explicit Shape(const TensorRef& x)
      : batch(x.sizes[0]),
        channels(x.sizes[1]),
        inner(product_of_sizes(x, 2, x.rank)),
        channels_last(inner == 1 || !x.is_row_major()) {}
  int64_t per_channel() const { return batch * inner; }
};

// Runs of one channel: planes in NCHW, blocks of rows in channels-last. Their statistics lie at [run * channels + c].
struct Runs {
  const Shape& shape;
  int64_t count() const { return shape.channels_last ? row_blocks(shape.per_channel()) : shape.batch; }
  int64_t length(int64_t run) const {
    return shape.channels_last ? std::min(kRowsPerBlock, shape.per_channel() - run * kRowsPerBlock) : shape.inner;
  }

  // plane(channel, run, offset) for NCHW, rows(run, offset, n) for channels-last.
  template <class Plane, class Rows>
  void for_each(double cost, Plane plane, Rows rows) const {
    const int64_t channels = shape.channels;
    if (shape.channels_last) {
      for_row_chunks(count(), kRowsPerBlock * channels, cost, [&](int64_t first, int64_t n) {
        for (int64_t run = first; run < first + n; ++run) rows(run, run * kRowsPerBlock * channels, length(run));
      });
    } else {
      for_row_chunks(shape.batch * channels, shape.inner, cost, [&](int64_t first, int64_t n) {
        for (int64_t at = first; at < first + n; ++at) plane(at % channels, at / channels, at * shape.inner);
      });
    }
  }
};

struct Scratch {
  float *first, *second;  // per run and channel
  float *a, *b, *c;       // per channel
  float* vectors;         // of those that are wanted by nobody, or widened
  explicit Scratch(const Shape& shape, void* scratch) {
    const int64_t each = Runs{shape}.count() * shape.channels;
    first = static_cast<float*>(scratch);
    second = first + each;
    a = second + each;
    b = a + shape.channels;
    c = b + shape.channels;
    vectors = c + shape.channels;
  }
};

int64_t batch_norm_scratch(const BoundCall& call) {
  const Shape shape(call.inputs[call.outputs.size() == 5 ? 0 : 1]);
  return (2 * Runs{shape}.count() + 5 + ChannelVectors::widened(call)) * shape.channels * kFloatBytes;
}

// Each channel's statistics from those of its runs.
void moments(const Shape& shape, const TensorRef& x_ref, const Scratch& parts) {
  const BatchNormLoops& table = loops(x_ref.dtype);
  const Image x(x_ref);
  const int64_t channels = shape.channels;
  Runs{shape}.for_each(
      0.3,
      [&](int64_t c, int64_t run, int64_t at) {
        const int64_t to = run * channels + c;
        table.plane_moments(x.at(at), shape.inner, parts.first + to, parts.second + to);
      },
      [&](int64_t run, int64_t at, int64_t n) {
        table.row_moments(x.at(at), n, channels, parts.first + run * channels, parts.second + run * channels);
      });
}

struct GradShape : Shape {
  explicit GradShape(const BoundCall& call) : Shape(call.inputs[1]) {}
};
struct Momentum : Shape {
  explicit Momentum(const BoundCall& call)
      : Shape(call.inputs[0]),
        epsilon(static_cast<float>(call.attrs->f("epsilon"))),
        momentum(static_cast<float>(call.attrs->f("momentum"))) {}
  float epsilon, momentum;
};

KernelStatus batch_norm(const KernelCall& call, const Momentum& asked) {
  const BatchNormLoops& table = loops(call.inputs[0].dtype);
  const Shape& shape = asked;
  const Runs runs{shape};
  const Scratch parts(shape, call.scratch);
  const int64_t channels = shape.channels;
  ChannelVectors vectors(call, channels, parts.vectors);
  const float *weight = vectors.in(1), *bias = vectors.in(2), *old_mean = vectors.in(3), *old_variance = vectors.in(4);
  float* mean = output(call, 1) ? vectors.out(1) : vectors.room();
  float* inv_std = output(call, 2) ? vectors.out(2) : vectors.room();
  float* new_mean = old_mean == nullptr ? nullptr : vectors.out(3);
  float* new_variance = old_variance == nullptr ? nullptr : vectors.out(4);
  const float epsilon = asked.epsilon, momentum = asked.momentum;
  moments(shape, call.inputs[0], parts);
  for_row_chunks(channels, runs.count(), 2, [&](int64_t first, int64_t n) {
    for (int64_t c = first; c < first + n; ++c) {
      double m = 0, squares = 0;
      int64_t seen = 0;
      for (int64_t run = 0; run < runs.count(); ++run) {
        const int64_t length = runs.length(run);
        const double delta = parts.first[run * channels + c] - m;
        const double share = static_cast<double>(length) / static_cast<double>(seen + length);
        m += delta * share;
        squares += parts.second[run * channels + c] + delta * delta * static_cast<double>(seen) * share;
        seen += length;
      }
      const double count = static_cast<double>(seen);
      mean[c] = static_cast<float>(m);
      inv_std[c] = static_cast<float>(1 / std::sqrt(squares / count + epsilon));
      // An empty batch changes nothing, as in PyTorch.
      const auto mixed = [&](float old, double now) {
        return seen == 0 ? old : static_cast<float>((1 - static_cast<double>(momentum)) * old + momentum * now);
      };
      if (new_mean != nullptr) new_mean[c] = mixed(old_mean[c], m);
      if (new_variance != nullptr) new_variance[c] = mixed(old_variance[c], squares / (count - 1));
    }
  });
  if (output(call, 0) == nullptr) return nullptr;
  const Image x(call.inputs[0]), y(call.outputs[0]);
  // y = weight inv_std x + (bias - mean weight inv_std)
  for (int64_t c = 0; c < channels; ++c) {
    parts.a[c] = (weight == nullptr ? 1.0f : weight[c]) * inv_std[c];
    parts.b[c] = (bias == nullptr ? 0.0f : bias[c]) - mean[c] * parts.a[c];
  }
  runs.for_each(
      0.2,
      [&](int64_t c, int64_t, int64_t at) {
        table.plane_affine(x.at(at), y.at(at), shape.inner, parts.a[c], parts.b[c]);
      },
      [&](int64_t, int64_t at, int64_t n) { table.row_affine(x.at(at), y.at(at), n, channels, parts.a, parts.b); });
  return nullptr;
}

KernelStatus batch_norm_grad(const KernelCall& call, const GradShape& shape) {
  const BatchNormLoops& table = loops(call.inputs[1].dtype);
  const Runs runs{shape};
  const Scratch parts(shape, call.scratch);
  const int64_t channels = shape.channels;
  ChannelVectors vectors(call, channels, parts.vectors);
  const Image dy(call.inputs[0]), x(call.inputs[1]);
  const float *mean = vectors.in(2), *inv_std = vectors.in(3), *weight = vectors.in(4);
  float *dweight = vectors.out(1), *dbias = vectors.out(2);
  runs.for_each(
      0.3,
      [&](int64_t c, int64_t run, int64_t at) {
        const int64_t to = run * channels + c;
        table.plane_sums(dy.at(at), x.at(at), shape.inner, mean[c], parts.first + to, parts.second + to);
      },
      [&](int64_t run, int64_t at, int64_t n) {
        table.row_sums(dy.at(at), x.at(at), n, channels, mean, parts.first + run * channels,
                       parts.second + run * channels);
      });
  const double count = static_cast<double>(shape.per_channel());
  for_row_chunks(channels, runs.count(), 1, [&](int64_t first, int64_t n) {
    for (int64_t c = first; c < first + n; ++c) {
      double sum = 0, dot = 0;
      for (int64_t run = 0; run < runs.count(); ++run) {
        sum += parts.first[run * channels + c];
        dot += parts.second[run * channels + c];
      }
      const double r = inv_std[c], a = (weight == nullptr ? 1 : weight[c]) * r;
      if (dweight != nullptr) dweight[c] = static_cast<float>(dot * r);
      if (dbias != nullptr) dbias[c] = static_cast<float>(sum);
      parts.a[c] = static_cast<float>(a);
      parts.b[c] = static_cast<float>(-a * r * r * dot / count);
      parts.c[c] = static_cast<float>(-a * sum / count);
    }
  });
  if (output(call, 0) == nullptr) return nullptr;
  const Image dx(call.outputs[0]);
  runs.for_each(
      0.3,
      [&](int64_t c, int64_t, int64_t at) {
        table.plane_grad(dy.at(at), x.at(at), dx.at(at), shape.inner, mean[c], parts.a[c], parts.b[c], parts.c[c]);
      },
      [&](int64_t, int64_t at, int64_t n) {
        table.row_grad(dy.at(at), x.at(at), dx.at(at), n, channels, mean, parts.a, parts.b, parts.c);
      });
  return nullptr;
}

const char* supports_batch_norm(const KernelQuery& query) {
  if (query.inputs.size() > 4 && query.op == Op::kBatchNormalization) {
    const bool both = query.inputs[3].present == query.inputs[4].present;
    if (!both || query.outputs[3].present != query.outputs[4].present) return "one running statistic without the other";
  }
  return supports_images(query);
}

// The statistics of groups are of images, [N, G].
const char* supports_group_norm(const KernelQuery& query) {
  const DType stored = query.inputs[0].dtype;
  if (stored != DType::kF32 && !is_half(stored)) return "neither f32, bf16 nor f16";
  const bool backward = query.op == Op::kGroupNormalizationGrad;
  if (backward && query.inputs[1].dtype != stored) return "mixed dtypes";
  if (query.outputs[0].present && query.outputs[0].dtype != stored) return "mixed dtypes";
  const auto readable = [](const OperandInfo& each) {
    return !each.present || each.dtype == DType::kF32 || is_half(each.dtype);
  };
  return std::ranges::all_of(query.inputs, readable) ? nullptr : "mixed dtypes";
}

}  // namespace

std::span<const Kernel> batch_norm_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/batch_norm/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
