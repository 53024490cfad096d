#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct GroupNormCase {
  int64_t images, channels, inner, groups;
  bool affine;
};
constexpr GroupNormCase kGroupNormCases[] = {{2, 4, 3, 2, true},  {1, 6, 1, 3, true},    {3, 5, 17, 5, false},
                                             {2, 8, 49, 1, true}, {33, 4, 100, 2, true}, {1, 4, 2049, 4, true}};

// An image [N, C, inner] as [N, inner, C].
template <class Number>
std::vector<Number> turned(const GroupNormCase& c, const std::vector<Number>& x) {
  std::vector<Number> to(x.size());
  for (int64_t image = 0; image < c.images; ++image)
    for (int64_t channel = 0; channel < c.channels; ++channel)
      for (int64_t i = 0; i < c.inner; ++i) {
        to[(image * c.inner + i) * c.channels + channel] = x[(image * c.channels + channel) * c.inner + i];
      }
  return to;
}

// Against the reference; halves are the bits of f32, rounded.
void expect_as_the_reference(const GroupNormCase& c, bool channels_last) {
  SCOPED_TRACE(testing::Message() << c.images << " x " << c.channels << " x " << c.inner << " in " << c.groups);
  const int64_t n = c.images * c.channels * c.inner, all = c.images * c.groups;
  const std::vector<int64_t> sizes = {c.images, c.channels, c.inner, 1}, of_groups = {c.images, c.groups};
  const std::vector<int64_t> rows = {c.inner * c.channels, 1, c.channels, c.channels};
  const BoundAttrs attrs{{"num_groups", c.groups}, {"epsilon", 1e-3}};
  const auto run = [&](const std::string& provider, DType dtype, const void* x, const void* dy, const void* vectors,
                       void* images, void* of_channels, float* statistics) {
    const auto at = [&](const void* data, int64_t offset) {
      return static_cast<const char*>(data) + offset * size_bytes(dtype);
    };
    const auto image = [&](const void* numbers) {
      return channels_last && provider == "cpu" ? tensor(numbers, dtype, sizes, rows) : tensor(numbers, dtype, sizes);
    };
    const TensorRef weight = tensor(c.affine ? at(vectors, 0) : nullptr, dtype, {c.channels}),
                    bias = tensor(c.affine ? at(vectors, c.channels) : nullptr, dtype, {c.channels}),
                    mean = floats(statistics, of_groups), inv_std = floats(statistics + all, of_groups);
    EXPECT_EQ(run_kernel(provider + ".GroupNormalization", {image(x), weight, bias},
                         {image(at(images, 0)), mean, inv_std}, attrs),
              nullptr);
    EXPECT_EQ(run_kernel(provider + ".GroupNormalizationGrad", {image(dy), image(x), mean, inv_std, weight},
                         {image(at(images, n)), tensor(at(of_channels, 0), dtype, {c.channels}),
                          tensor(at(of_channels, c.channels), dtype, {c.channels})},
                         attrs),
              nullptr);
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> short_x = halves(dtype, random_floats(n, 1)), short_dy = halves(dtype, random_floats(n, 2));
    const std::vector<uint16_t> short_vectors = halves(dtype, random_floats(2 * c.channels, 3));
    std::vector<float> x = widened(dtype, short_x), dy = widened(dtype, short_dy);
    const std::vector<float> vectors = widened(dtype, short_vectors);
    const int64_t results = 2 * n + 2 * c.channels + 2 * all;
    std::vector<float> wanted(results), last;
    run("reference", DType::kF32, x.data(), dy.data(), vectors.data(), wanted.data(), wanted.data() + 2 * n,
        wanted.data() + 2 * n + 2 * c.channels);
    if (channels_last) {
      x = turned(c, x), dy = turned(c, dy), short_x = turned(c, short_x), short_dy = turned(c, short_dy);
      for (const int64_t at : {int64_t{0}, n})
        std::ranges::copy(turned(c, std::vector<float>(wanted.begin() + at, wanted.begin() + at + n)),
                          wanted.begin() + at);
    }
    for_every_run(
        [&] {
          std::vector<float> found(results, NAN);
          run("cpu", DType::kF32, x.data(), dy.data(), vectors.data(), found.data(), found.data() + 2 * n,
              found.data() + 2 * n + 2 * c.channels);
          return last = found;
        },
        [&](const std::vector<float>& found) {
          expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 2e-5, 5e-5);
        });
    std::vector<uint16_t> short_found(2 * n + 2 * c.channels);
    std::vector<float> statistics(2 * all);
    run("cpu", dtype, short_x.data(), short_dy.data(), short_vectors.data(), short_found.data(),
        short_found.data() + 2 * n, statistics.data());
    EXPECT_EQ(short_found, halves(dtype, {last.begin(), last.end() - 2 * all}));
    EXPECT_EQ(statistics, std::vector<float>(last.end() - 2 * all, last.end()));
  }
}

TEST(GroupNorm, AgreesWithTheReference) {
  for (const GroupNormCase& c : kGroupNormCases) expect_as_the_reference(c, false);
}

TEST(GroupNorm, AgreesWithTheReferenceWhereChannelsLieLast) {
  for (const GroupNormCase& c : kGroupNormCases) expect_as_the_reference(c, true);
}

}  // namespace
}  // namespace lowtide::cpu
