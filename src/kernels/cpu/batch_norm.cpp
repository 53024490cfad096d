#include "kernels/cpu/batch_norm.h"

#include <cmath>

#include "kernels/cpu/batch_norm_table.h"
#include "kernels/cpu/block_rows.h"

namespace lowtide::cpu {
namespace {

// Runs of one channel: planes in NCHW, blocks of rows in channels-last. Their statistics lie at [run * channels + c].
struct Runs {
  const BatchNormShape& shape;
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
  Scratch(const BatchNormShape& shape, void* scratch) {
    const int64_t each = Runs{shape}.count() * shape.channels;
    first = static_cast<float*>(scratch);
    second = first + each;
    a = second + each;
    b = a + shape.channels;
    c = b + shape.channels;
  }
};

// y = weight rstd x + (bias - mean weight rstd); y may be absent.
void apply(const BatchNormShape& shape, const float* x, const BatchNormParameters& parameters, const float* mean,
           const float* rstd, float* y, const Scratch& scratch) {
  if (y == nullptr) return;
  for (int64_t c = 0; c < shape.channels; ++c) {
    scratch.a[c] = (parameters.weight == nullptr ? 1.0f : parameters.weight[c]) * rstd[c];
    scratch.b[c] = (parameters.bias == nullptr ? 0.0f : parameters.bias[c]) - mean[c] * scratch.a[c];
  }
  const BatchNormTable& table = batch_norm_table();
  Runs{shape}.for_each(
      0.2,
      [&](int64_t c, int64_t, int64_t at) {
        table.plane_affine(x + at, y + at, shape.inner, scratch.a[c], scratch.b[c]);
      },
      [&](int64_t, int64_t at, int64_t n) {
        table.row_affine(x + at, y + at, n, shape.channels, scratch.a, scratch.b);
      });
}

}  // namespace

int64_t batch_norm_scratch_bytes(const BatchNormShape& shape) {
  return (2 * Runs{shape}.count() + 3) * shape.channels * static_cast<int64_t>(sizeof(float));
}

void batch_norm_train(const BatchNormShape& shape, const float* x, const BatchNormParameters& parameters,
                      const RunningStatistics& running, float* y, float* mean, float* rstd, void* scratch) {
  const BatchNormTable& table = batch_norm_table();
  const Scratch parts(shape, scratch);
  const Runs runs{shape};
  const int64_t channels = shape.channels;
  runs.for_each(
      0.3,
      [&](int64_t c, int64_t run, int64_t at) {
        const int64_t to = run * channels + c;
        table.plane_moments(x + at, shape.inner, parts.first + to, parts.second + to);
      },
      [&](int64_t run, int64_t at, int64_t n) {
        table.row_moments(x + at, n, channels, parts.first + run * channels, parts.second + run * channels);
      });
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
      rstd[c] = static_cast<float>(1 / std::sqrt(squares / count + parameters.eps));
      const double keep = 1 - static_cast<double>(running.momentum);
      if (running.new_mean != nullptr) {
        running.new_mean[c] = static_cast<float>(keep * running.mean[c] + running.momentum * m);
      }
      if (running.new_variance != nullptr) {
        running.new_variance[c] =
            static_cast<float>(keep * running.variance[c] + running.momentum * (squares / (count - 1)));
      }
    }
  });
  apply(shape, x, parameters, mean, rstd, y, parts);
}

void batch_norm_infer(const BatchNormShape& shape, const float* x, const BatchNormParameters& parameters,
                      const float* mean, const float* variance, float* y, void* scratch) {
  const Scratch parts(shape, scratch);
  for (int64_t c = 0; c < shape.channels; ++c) parts.c[c] = 1 / std::sqrt(variance[c] + parameters.eps);
  apply(shape, x, parameters, mean, parts.c, y, parts);
}

void batch_norm_grad(const BatchNormShape& shape, const float* dy, const float* x, const float* weight,
                     const float* mean, const float* rstd, bool batch_statistics, float* dx, float* dweight,
                     float* dbias, void* scratch) {
  const BatchNormTable& table = batch_norm_table();
  const Scratch parts(shape, scratch);
  const Runs runs{shape};
  const int64_t channels = shape.channels;
  if (batch_statistics || dweight != nullptr || dbias != nullptr) {
    runs.for_each(
        0.3,
        [&](int64_t c, int64_t run, int64_t at) {
          const int64_t to = run * channels + c;
          table.plane_sums(dy + at, x + at, shape.inner, mean[c], parts.first + to, parts.second + to);
        },
        [&](int64_t run, int64_t at, int64_t n) {
          table.row_sums(dy + at, x + at, n, channels, mean, parts.first + run * channels,
                         parts.second + run * channels);
        });
  }
  const double count = static_cast<double>(shape.per_channel());
  for_row_chunks(channels, runs.count(), 1, [&](int64_t first, int64_t n) {
    for (int64_t c = first; c < first + n; ++c) {
      double sum = 0, dot = 0;
      if (batch_statistics || dweight != nullptr || dbias != nullptr) {
        for (int64_t run = 0; run < runs.count(); ++run) {
          sum += parts.first[run * channels + c];
          dot += parts.second[run * channels + c];
        }
      }
      const double r = rstd[c], a = (weight == nullptr ? 1 : weight[c]) * r;
      if (dweight != nullptr) dweight[c] = static_cast<float>(dot * r);
      if (dbias != nullptr) dbias[c] = static_cast<float>(sum);
      parts.a[c] = static_cast<float>(a);
      parts.b[c] = batch_statistics ? static_cast<float>(-a * r * r * dot / count) : 0.0f;
      parts.c[c] = batch_statistics ? static_cast<float>(-a * sum / count) : 0.0f;
    }
  });
  if (dx == nullptr) return;
  runs.for_each(
      0.3,
      [&](int64_t c, int64_t, int64_t at) {
        table.plane_grad(dy + at, x + at, dx + at, shape.inner, mean[c], parts.a[c], parts.b[c], parts.c[c]);
      },
      [&](int64_t, int64_t at, int64_t n) {
        table.row_grad(dy + at, x + at, dx + at, n, channels, mean, parts.a, parts.b, parts.c);
      });
}

}  // namespace lowtide::cpu
