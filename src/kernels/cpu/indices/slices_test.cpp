#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// Tuples that pick rows, planes and single numbers, some of them twice; against the reference.
TEST(Slices, AreGatheredAndScatteredAsByTheReference) {
  const std::vector<int64_t> sizes = {5, 7, 130};
  const int64_t numel = 5 * 7 * 130, tuples = 40;
  for (int64_t depth = 1; depth <= 3; ++depth) {
    std::vector<int64_t> indices(tuples * depth), picked = {tuples};
    std::mt19937 generator(7);
    int64_t inner = 1;
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t size = sizes[i % depth];
      indices[i] = static_cast<int64_t>(generator() % (2 * size)) - size;
    }
    for (size_t i = depth; i < sizes.size(); ++i) {
      picked.push_back(sizes[i]);
      inner *= sizes[i];
    }
    const TensorRef at = tensor(indices.data(), DType::kI64, {tuples, depth});
    const std::vector<float> data = random_floats(numel, 1), updates = random_floats(tuples * inner, 2);
    for (const std::string reduction : {"add", "none"}) {
      SCOPED_TRACE(testing::Message() << "depth " << depth << " " << reduction);
      const BoundAttrs attrs{{"reduction", reduction}};
      const auto run = [&](const std::string& provider) {
        std::vector<float> out(tuples * inner + numel, NAN);
        EXPECT_EQ(
            run_kernel(provider + ".GatherND", {floats(data.data(), sizes), at}, {floats(out.data(), picked)}, {}),
            nullptr);
        EXPECT_EQ(run_kernel(provider + ".ScatterND", {floats(data.data(), sizes), at, floats(updates.data(), picked)},
                             {floats(out.data() + tuples * inner, sizes)}, attrs),
                  nullptr);
        return out;
      };
      const std::vector<float> wanted = run("reference");
      for_every_run([&] { return run("cpu"); },
                    [&](const std::vector<float>& found) {
                      expect_close(found.data(), found.size(), [&](int64_t i) { return wanted[i]; }, 1e-6, 1e-6);
                    });

      const std::vector<uint16_t> short_data = halves(DType::kBF16, data),
                                  short_updates = halves(DType::kBF16, updates);
      const std::vector<float> wide = widened(DType::kBF16, short_data),
                               wide_updates = widened(DType::kBF16, short_updates);
      std::vector<float> summed(numel);
      std::vector<uint16_t> found(numel);
      run_kernel("cpu.ScatterND", {floats(wide.data(), sizes), at, floats(wide_updates.data(), picked)},
                 {floats(summed.data(), sizes)}, attrs);
      run_kernel(
          "cpu.ScatterND",
          {tensor(short_data.data(), DType::kBF16, sizes), at, tensor(short_updates.data(), DType::kBF16, picked)},
          {tensor(found.data(), DType::kBF16, sizes)}, attrs);
      EXPECT_EQ(found, halves(DType::kBF16, summed));  // one rounding
    }
    indices[depth - 1] = sizes[depth - 1];
    std::vector<float> out = data;
    const TensorRef onto = floats(out.data(), sizes);
    EXPECT_STREQ(run_kernel("cpu.ScatterND", {onto, at, floats(updates.data(), picked)}, {onto},
                            {{"reduction", std::string("add")}}),
                 "ScatterND: an index is out of range");
    EXPECT_EQ(out, data);
  }
}

}  // namespace
}  // namespace lowtide::cpu
