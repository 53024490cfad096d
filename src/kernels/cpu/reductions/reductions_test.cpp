#include <cmath>
#include <limits>

#include "kernels/cpu/reductions/reductions_table.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

constexpr float kReductionsInf = std::numeric_limits<float>::infinity();

struct ReductionsShape {
  int64_t rows, cols;
};
const ReductionsShape kReductionsShapes[] = {{1, 1}, {3, 3}, {17, 17}, {2, 513}, {70, 64}, {5, 1025}, {1, 50257}};

const char* const kNames[] = {"cpu.ReduceSum",  "cpu.ReduceMean", "cpu.ReduceMax",      "cpu.ReduceMin",
                              "cpu.ReduceProd", "cpu.ReduceL2",   "cpu.ReduceLogSumExp"};

void reduce(int op, int64_t axis, const float* x, float* out, const ReductionsShape& shape) {
  run_kernel(kNames[op], {floats(x, {shape.rows, shape.cols})}, {floats(out, {axis == 0 ? shape.cols : shape.rows})},
             {{"axes", std::vector<int64_t>{axis}}, {"keepdims", false}});
}

TEST(RowReduce, AgreesWithDoubles) {
  for (const ReductionsShape& shape : kReductionsShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const int64_t rows = shape.rows, cols = shape.cols;
    const std::vector<float> x = random_floats(rows * cols, 3);
    for_every_run(
        [&] {
          std::vector<float> out(kRowReduces * rows);
          for (int op = 0; op < kRowReduces; ++op) reduce(op, 1, x.data(), &out[op * rows], shape);
          return out;
        },
        [&](const std::vector<float>& out) {
          for (int64_t r = 0; r < rows; ++r) {
            double sum = 0, squares = 0, top = -kReductionsInf, low = kReductionsInf, product = 1;
            for (int64_t i = r * cols; i < (r + 1) * cols; ++i) {
              sum += x[i];
              squares += double{x[i]} * x[i];
              top = std::max<double>(top, x[i]);
              low = std::min<double>(low, x[i]);
              product *= x[i];
            }
            double powers = 0;
            for (int64_t i = r * cols; i < (r + 1) * cols; ++i) powers += std::exp(x[i] - top);
            const double wanted[] = {sum, sum / cols, top, low, product, std::sqrt(squares), top + std::log(powers)};
            for (int op = 0; op < kRowReduces; ++op) {
              // Long products are below the normal range.
              const double slack = op < 2    ? 1e-6 * std::sqrt(squares * cols) / (op == 1 ? cols : 1)
                                   : op == 4 ? 1e-37
                                             : 0;
              expect_close(&out[op * rows + r], 1, [&](int64_t) { return wanted[op]; }, op == 4 ? 2e-5 : 2e-6, slack);
            }
          }
        });
  }
  const std::vector<float> nan = {1, std::nanf(""), 2, kReductionsInf, 3, 4};
  float out[2];
  reduce(static_cast<int>(RowReduce::kMax), 1, nan.data(), out, {2, 3});
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], kReductionsInf);
}

TEST(RowReduce, LengthsAndLogarithmsBeyondTheRange) {
  constexpr float kLarge = 3e20f, kSmall = 3e-25f;
  const std::vector<float> x = {kLarge,
                                kLarge,
                                0,
                                kSmall,
                                kSmall,
                                0,
                                kReductionsInf,
                                1,
                                2,
                                -kReductionsInf,
                                1,
                                2,
                                -kReductionsInf,
                                -kReductionsInf,
                                -kReductionsInf,
                                std::nanf(""),
                                1,
                                kReductionsInf,
                                1,
                                2,
                                std::nanf(""),
                                0,
                                0,
                                0};
  const int64_t rows = static_cast<int64_t>(x.size()) / 3;
  const auto run = [&](const std::string& name) {
    std::vector<float> out(rows);
    run_kernel(name, {floats(x.data(), {rows, 3})}, {floats(out.data(), {rows})},
               {{"axes", std::vector<int64_t>{1}}, {"keepdims", false}});
    return out;
  };
  for (const std::string op : {"ReduceL2", "ReduceLogSumExp"}) {
    SCOPED_TRACE(op);
    const std::vector<float> wanted = run("reference." + op);
    for_every_run([&] { return run("cpu." + op); },
                  [&](const std::vector<float>& found) {
                    expect_close(found.data(), rows, [&](int64_t i) { return wanted[i]; }, 1e-6, 0);
                  });
  }
}

TEST(FoldColumns, AgreesWithTheReference) {
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 3, 1}, {3, 70, 5}, {2, 9, 700}}) {
    const int64_t outputs = sizes[0] * sizes[2];
    std::vector<float> x = random_floats(outputs * sizes[1], 6);
    x[sizes[2]] = std::nanf("");
    for (const std::string op : {"ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"}) {
      SCOPED_TRACE(testing::Message() << op << " of " << testing::PrintToString(sizes));
      const auto run = [&](const std::string& provider) {
        std::vector<float> out(outputs);
        run_kernel(provider + "." + op, {floats(x.data(), sizes)}, {floats(out.data(), {sizes[0], sizes[2]})},
                   {{"axes", std::vector<int64_t>{1}}, {"keepdims", false}});
        return out;
      };
      const std::vector<float> wanted = run("reference");
      for_every_run([&] { return run("cpu"); },
                    [&](const std::vector<float>& found) {
                      expect_close(
                          found.data(), outputs, [&](int64_t i) { return wanted[i]; },
                          op == "ReduceProd" ? 1e-5
                          : op == "ReduceL2" ? 1e-6
                                             : 0,
                          1e-37);
                    });
    }
  }
}

TEST(SumColumns, AgreesWithDoubles) {
  for (const ReductionsShape& shape :
       {ReductionsShape{1, 1}, {3, 17}, {64, 3}, {65, 513}, {1025, 5}, {200, 1025}, {33, 3001}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const std::vector<float> x = random_floats(shape.rows * shape.cols, 4);
    for_every_run(
        [&] {
          std::vector<float> out(shape.cols);
          reduce(0, 0, x.data(), out.data(), shape);
          return out;
        },
        [&](const std::vector<float>& out) {
          expect_close(
              out.data(), shape.cols,
              [&](int64_t c) {
                double sum = 0;
                for (int64_t r = 0; r < shape.rows; ++r) sum += x[r * shape.cols + c];
                return sum;
              },
              1e-6, 1e-6 * std::sqrt(shape.rows) * 10);
        });
  }
}

// Block by block onto zeros: the bits of the sum over all rows.
TEST(SumColumns, OfHalvesAreThoseOfFloatsRoundedOnce) {
  for (const ReductionsShape& shape : {ReductionsShape{0, 5}, {3, 0}, {3, 17}, {65, 513}, {200, 1025}, {33, 3001}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const std::vector<BFloat16> x = brains(random_floats(shape.rows * shape.cols + 1, 4));
    const std::vector<float> wide(x.begin(), x.end());
    for_every_run(
        [&] {
          std::vector<BFloat16> out(shape.cols + 1);
          run_kernel("cpu.ReduceSum.half_columns", {brains(x.data(), {shape.rows, shape.cols})},
                     {brains(out.data(), {shape.cols})}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}});
          return out;
        },
        [&](const std::vector<BFloat16>& out) {
          std::vector<float> wanted(shape.cols + 1);
          reduce(0, 0, wide.data(), wanted.data(), shape);
          for (int64_t c = 0; c < shape.cols; ++c) ASSERT_EQ(out[c].bits, BFloat16(wanted[c]).bits) << c;
        });
  }
}

TEST(SumColumns, AddsBlocksOfRowsOntoASum) {
  for (const ReductionsShape& shape : {ReductionsShape{1, 3}, {256, 17}, {1000, 1025}, {600, 5}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.cols);
    const std::vector<float> x = random_floats(shape.rows * shape.cols, 5);
    std::vector<float> whole(shape.cols), sum(shape.cols, 0.0f);
    reduce(0, 0, x.data(), whole.data(), shape);
    for (int64_t r = 0; r < shape.rows; r += kSumBlockRows) {
      const TensorRef onto = floats(sum.data(), {shape.cols});
      const int64_t rows = std::min(kSumBlockRows, shape.rows - r);
      run_kernel("cpu.ReduceSum.onto", {floats(&x[r * shape.cols], {rows, shape.cols}), onto}, {onto},
                 {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}});
    }
    EXPECT_EQ(sum, whole);
  }
}

}  // namespace
}  // namespace lowtide::cpu
