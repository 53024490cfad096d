#include <cmath>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct BatchNormShape {
  int64_t batch, channels, inner;
  bool channels_last = false;
  int64_t per_channel() const { return batch * inner; }
};
const BatchNormShape kBatchNormShapes[] = {{2, 1, 1},   {3, 5, 1},    {2, 3, 17},  {5, 17, 49},
                                           {33, 64, 9}, {2, 3, 1025}, {1, 513, 40}};

int64_t at(const BatchNormShape& shape, int64_t n, int64_t c, int64_t i) {
  return shape.channels_last ? (n * shape.inner + i) * shape.channels + c : (n * shape.channels + c) * shape.inner + i;
}

TensorRef image(const float* data, const BatchNormShape& shape) {
  const auto& [batch, channels, inner, last] = shape;
  if (!last) return floats(data, {batch, channels, inner, 1});
  return floats(data, {batch, channels, inner, 1}, {inner * channels, 1, channels, channels});
}

const float kEpsilon = 1e-3f;
const BoundAttrs kAttrs{{"epsilon", double{kEpsilon}}, {"momentum", 0.25}};

// Null operands are absent.
struct Parameters {
  const float *weight = nullptr, *bias = nullptr, *old_mean = nullptr, *old_variance = nullptr;
};
struct Results {
  float *y = nullptr, *mean = nullptr, *inv_std = nullptr, *new_mean = nullptr, *new_variance = nullptr;
};
void batch_norm(const BatchNormShape& shape, const float* x, const Parameters& p, const Results& r) {
  const std::vector<int64_t> channels = {shape.channels};
  run_kernel("cpu.BatchNormalization",
             {image(x, shape), floats(p.weight, channels), floats(p.bias, channels), floats(p.old_mean, channels),
              floats(p.old_variance, channels)},
             {image(r.y, shape), floats(r.mean, channels), floats(r.inv_std, channels), floats(r.new_mean, channels),
              floats(r.new_variance, channels)},
             kAttrs);
}

// What is made again in backward is the statistics alone.
TEST(BatchNorm, StatisticsAreTheSameBitsWithoutTheResult) {
  for (const BatchNormShape& shape : kBatchNormShapes) {
    const std::vector<float> x = random_floats(shape.channels * shape.per_channel(), 1);
    std::vector<float> y(x.size()), mean(shape.channels), inv_std(shape.channels), mean_alone(shape.channels),
        inv_std_alone(shape.channels);
    batch_norm(shape, x.data(), {}, {.y = y.data(), .mean = mean.data(), .inv_std = inv_std.data()});
    batch_norm(shape, x.data(), {}, {.mean = mean_alone.data(), .inv_std = inv_std_alone.data()});
    EXPECT_EQ(mean_alone, mean);
    EXPECT_EQ(inv_std_alone, inv_std);
    std::vector<float> y_alone(x.size());
    batch_norm(shape, x.data(), {}, {.y = y_alone.data()});
    EXPECT_EQ(y_alone, y);
  }
}

TEST(BatchNorm, ForwardAndGradientInBothLayouts) {
  for (BatchNormShape shape : kBatchNormShapes) {
    for (bool channels_last : {false, true}) {
      shape.channels_last = channels_last;
      SCOPED_TRACE(testing::Message() << shape.batch << " " << shape.channels << " " << shape.inner << " last "
                                      << channels_last);
      const int64_t channels = shape.channels, n = channels * shape.per_channel();
      std::vector<float> x = random_floats(n, 1, 2), dy = random_floats(n, 2), weight = random_floats(channels, 3),
                         bias = random_floats(channels, 4), old_mean = random_floats(channels, 5),
                         old_variance(channels, 1.5f);
      for (float& v : x) v += 3;
      std::vector<double> y(n), dx(n), mean(channels), inv_std(channels), new_mean(channels), new_variance(channels),
          dweight(channels), dbias(channels);
      const double count = static_cast<double>(shape.per_channel());
      for (int64_t c = 0; c < channels; ++c) {
        double squares = 0;
        const auto each = [&](auto body) {
          for (int64_t b = 0; b < shape.batch; ++b) {
            for (int64_t i = 0; i < shape.inner; ++i) body(at(shape, b, c, i));
          }
        };
        each([&](int64_t p) { mean[c] += x[p] / count; });
        each([&](int64_t p) { squares += (x[p] - mean[c]) * (x[p] - mean[c]); });
        new_mean[c] = 0.75 * old_mean[c] + 0.25 * mean[c];
        new_variance[c] = 0.75 * old_variance[c] + 0.25 * squares / (count - 1);
        inv_std[c] = 1 / std::sqrt(squares / count + kEpsilon);
        each([&](int64_t p) {
          const double xhat = (x[p] - mean[c]) * inv_std[c];
          y[p] = xhat * weight[c] + bias[c];
          dweight[c] += dy[p] * xhat;
          dbias[c] += dy[p];
        });
        each([&](int64_t p) {
          const double xhat = (x[p] - mean[c]) * inv_std[c];
          dx[p] = weight[c] * inv_std[c] * (dy[p] - dbias[c] / count - xhat * dweight[c] / count);
        });
      }
      for_every_run(
          [&] {
            std::vector<float> out(2 * n + 6 * channels);
            float *y_out = out.data(), *dx_out = y_out + n, *mean_out = dx_out + n, *inv_std_out = mean_out + channels,
                  *running = inv_std_out + channels, *dweight_out = running + 2 * channels;
            batch_norm(shape, x.data(), {weight.data(), bias.data(), old_mean.data(), old_variance.data()},
                       {y_out, mean_out, inv_std_out, running, running + channels});
            run_kernel(
                "cpu.BatchNormalizationGrad",
                {image(dy.data(), shape), image(x.data(), shape), floats(mean_out, {channels}),
                 floats(inv_std_out, {channels}), floats(weight.data(), {channels})},
                {image(dx_out, shape), floats(dweight_out, {channels}), floats(dweight_out + channels, {channels})},
                kAttrs);
            return out;
          },
          [&](const std::vector<float>& out) {
            const float* found = out.data();
            const auto agree = [&](const std::vector<double>& wanted, double relative, double absolute) {
              expect_close(found, wanted.size(), [&](int64_t i) { return wanted[i]; }, relative, absolute);
              found += wanted.size();
            };
            agree(y, 1e-5, 2e-5);
            agree(dx, 1e-5, 5e-5);
            agree(mean, 1e-6, 1e-6);
            agree(inv_std, 3e-6, 0);
            agree(new_mean, 1e-6, 1e-6);
            agree(new_variance, 3e-6, 1e-6);
            agree(dweight, 1e-5, 5e-5);
            agree(dbias, 1e-5, 2e-5);
          });
    }
  }
}

// Images in half the bytes, whose channels' numbers are f32 (autocast) or as short themselves: the bits of f32,
// rounded.
TEST(BatchNorm, HalvesAreF32RoundedOnce) {
  for (BatchNormShape shape : kBatchNormShapes) {
    for (const bool channels_last : {false, true}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const DType of_channels : {DType::kF32, dtype}) {
          shape.channels_last = channels_last;
          SCOPED_TRACE(testing::Message()
                       << name(dtype) << " channels " << name(of_channels) << " last " << channels_last);
          const int64_t channels = shape.channels, n = channels * shape.per_channel();
          const std::vector<uint16_t> x = halves(dtype, random_floats(n, 1)), dy = halves(dtype, random_floats(n, 2)),
                                      vectors = halves(dtype, random_floats(4 * channels, 3));
          const std::vector<float> wide_x = widened(dtype, x), wide_dy = widened(dtype, dy),
                                   wide_vectors = widened(dtype, vectors);
          std::vector<float> results(2 * n), results_of_channels(6 * channels);
          std::vector<uint16_t> short_results(2 * n), short_results_of_channels(6 * channels);
          const auto run = [&](DType stored, const void* x_at, const void* dy_at, void* images, DType small,
                               const void* in, void* out) {
            const auto picture = [&](const void* data, int64_t from) {
              TensorRef ref = image(wide_x.data(), shape);
              ref.dtype = stored;
              ref.data = const_cast<char*>(static_cast<const char*>(data)) + from * size_bytes(stored);
              return ref;
            };
            const auto vector = [&](const void* data, int64_t index) {
              return tensor(static_cast<const char*>(data) + index * channels * size_bytes(small), small, {channels});
            };
            EXPECT_EQ(run_kernel("cpu.BatchNormalization",
                                 {picture(x_at, 0), vector(in, 0), vector(in, 1), vector(in, 2), vector(in, 3)},
                                 {picture(images, 0), vector(out, 0), vector(out, 1), vector(out, 2), vector(out, 3)},
                                 kAttrs),
                      nullptr);
            EXPECT_EQ(run_kernel("cpu.BatchNormalizationGrad",
                                 {picture(dy_at, 0), picture(x_at, 0), vector(in, 0), vector(in, 1), vector(in, 2)},
                                 {picture(images, n), vector(out, 4), vector(out, 5)}, kAttrs),
                      nullptr);
          };
          run(DType::kF32, wide_x.data(), wide_dy.data(), results.data(), DType::kF32, wide_vectors.data(),
              results_of_channels.data());
          if (of_channels == DType::kF32) {
            std::vector<float> found(6 * channels);
            run(dtype, x.data(), dy.data(), short_results.data(), DType::kF32, wide_vectors.data(), found.data());
            EXPECT_EQ(halves(DType::kF16, found), halves(DType::kF16, results_of_channels));
          } else {
            run(dtype, x.data(), dy.data(), short_results.data(), dtype, vectors.data(),
                short_results_of_channels.data());
            EXPECT_EQ(short_results_of_channels, halves(dtype, results_of_channels));
          }
          EXPECT_EQ(short_results, halves(dtype, results));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
