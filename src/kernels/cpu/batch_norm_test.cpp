#include "kernels/cpu/batch_norm.h"

#include <cmath>

#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

const BatchNormShape kShapes[] = {{2, 1, 1},   {3, 5, 1},    {2, 3, 17},  {5, 17, 49},
                                  {33, 64, 9}, {2, 3, 1025}, {1, 513, 40}};

int64_t at(const BatchNormShape& shape, int64_t n, int64_t c, int64_t i) {
  return shape.channels_last ? (n * shape.inner + i) * shape.channels + c : (n * shape.channels + c) * shape.inner + i;
}

// What is made again in backward is the statistics alone.
TEST(BatchNorm, StatisticsAreTheSameBitsWithoutTheResult) {
  for (BatchNormShape shape : kShapes) {
    const std::vector<float> x = random_floats(shape.channels * shape.per_channel(), 1);
    std::vector<char> scratch(static_cast<size_t>(batch_norm_scratch_bytes(shape)));
    std::vector<float> y(x.size()), mean(shape.channels), rstd(shape.channels), mean_alone(shape.channels),
        rstd_alone(shape.channels);
    batch_norm_train(shape, x.data(), {}, {}, y.data(), mean.data(), rstd.data(), scratch.data());
    batch_norm_train(shape, x.data(), {}, {}, nullptr, mean_alone.data(), rstd_alone.data(), scratch.data());
    EXPECT_EQ(mean_alone, mean);
    EXPECT_EQ(rstd_alone, rstd);
  }
}

TEST(BatchNorm, TrainingForwardAndGradientInBothLayouts) {
  for (BatchNormShape shape : kShapes) {
    for (bool channels_last : {false, true}) {
      for (bool training : {true, false}) {
        shape.channels_last = channels_last;
        SCOPED_TRACE(testing::Message() << shape.batch << " " << shape.channels << " " << shape.inner << " last "
                                        << channels_last << " training " << training);
        const int64_t channels = shape.channels, n = channels * shape.per_channel();
        std::vector<float> x = random_floats(n, 1, 2), dy = random_floats(n, 2), weight = random_floats(channels, 3),
                           bias = random_floats(channels, 4), old_mean = random_floats(channels, 5),
                           old_variance(channels, 1.5f);
        for (float& v : x) v += 3;
        std::vector<double> y(n), dx(n), mean(channels), rstd(channels), new_mean(channels), new_variance(channels),
            dweight(channels), dbias(channels);
        const double count = static_cast<double>(shape.per_channel()), eps = 1e-3f;
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
          if (!training) mean[c] = old_mean[c];
          rstd[c] = 1 / std::sqrt((training ? squares / count : old_variance[c]) + eps);
          each([&](int64_t p) {
            const double xhat = (x[p] - mean[c]) * rstd[c];
            y[p] = xhat * weight[c] + bias[c];
            dweight[c] += dy[p] * xhat;
            dbias[c] += dy[p];
          });
          each([&](int64_t p) {
            const double xhat = (x[p] - mean[c]) * rstd[c];
            dx[p] = weight[c] * rstd[c] * (dy[p] - (training ? dbias[c] / count + xhat * dweight[c] / count : 0));
          });
        }
        for_every_run(
            [&] {
              std::vector<float> out(2 * n + 6 * channels);
              float *y_out = out.data(), *dx_out = y_out + n, *mean_out = dx_out + n, *rstd_out = mean_out + channels,
                    *running = rstd_out + channels, *dweight_out = running + 2 * channels;
              std::vector<char> scratch(batch_norm_scratch_bytes(shape));
              const BatchNormParameters parameters{weight.data(), bias.data(), 1e-3f};
              if (training) {
                batch_norm_train(shape, x.data(), parameters,
                                 {old_mean.data(), old_variance.data(), running, running + channels, 0.25f}, y_out,
                                 mean_out, rstd_out, scratch.data());
              } else {
                batch_norm_infer(shape, x.data(), parameters, old_mean.data(), old_variance.data(), y_out,
                                 scratch.data());
                for (int64_t c = 0; c < channels; ++c) {
                  mean_out[c] = old_mean[c];
                  rstd_out[c] = static_cast<float>(rstd[c]);
                  running[c] = static_cast<float>(new_mean[c]);
                  running[channels + c] = static_cast<float>(new_variance[c]);
                }
              }
              batch_norm_grad(shape, dy.data(), x.data(), weight.data(), mean_out, rstd_out, training, dx_out,
                              dweight_out, dweight_out + channels, scratch.data());
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
              agree(rstd, 3e-6, 0);
              agree(new_mean, 1e-6, 1e-6);
              agree(new_variance, 3e-6, 1e-6);
              agree(dweight, 1e-5, 5e-5);
              agree(dbias, 1e-5, 2e-5);
            });
      }
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
