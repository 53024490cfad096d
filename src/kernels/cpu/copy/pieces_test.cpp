#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

// Row-major, or with the second dim last.
TensorRef laid_out(const void* data, DType dtype, const std::vector<int64_t>& sizes, bool second_last) {
  if (!second_last) return tensor(data, dtype, sizes);
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (const size_t dim : {size_t{1}, size_t{3}, size_t{2}, size_t{0}}) {
    strides[dim] = stride;
    stride *= sizes[dim];
  }
  return tensor(data, dtype, sizes, strides);
}

struct PiecesCase {
  const char* op;
  std::vector<int64_t> sizes;  // of the result
  BoundAttrs attrs;
};

// Moves of bytes: the reference's, in every width and order of dims.
TEST(Pieces, AgreeWithTheReference) {
  const std::vector<int64_t> sizes = {2, 3, 7, 5};
  const auto pads = [](std::vector<int64_t> values) {
    return BoundAttrs{{"pads", std::move(values)}, {"mode", std::string("constant")}, {"value", -2.0}};
  };
  const auto shifts = [](std::vector<int64_t> axes, std::vector<int64_t> by) {
    return BoundAttrs{{"axes", std::move(axes)}, {"shifts", std::move(by)}};
  };
  const PiecesCase cases[] = {
      {"Pad", {2, 3, 8, 8}, pads({0, 0, 0, 2, 0, 0, 1, 1})},
      {"Pad", {3, 2, 4, 7}, pads({1, -1, -2, 0, 0, 0, -1, 2})},
      {"Pad", {2, 3, 2, 5}, pads({0, 0, 9, 0, 0, 0, -14, 0})},
      {"Roll", sizes, shifts({2}, {3})},
      {"Roll", sizes, shifts({2, 3}, {-1, 7})},
      {"Roll", sizes, shifts({0, 1, 3}, {1, 2, 0})},
      {"Tile", {4, 3, 7, 15}, {{"repeats", std::vector<int64_t>{2, 1, 1, 3}}}},
      {"Tile", {2, 6, 14, 5}, {{"repeats", std::vector<int64_t>{1, 2, 2, 1}}}},
      {"RepeatInterleave", {2, 9, 7, 5}, {{"axis", 1}, {"repeats", 3}}},
      {"RepeatInterleave", {2, 3, 7, 10}, {{"axis", 3}, {"repeats", 2}}},
  };
  for (const PiecesCase& c : cases) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI64, DType::kBool}) {
      for (const bool second_last : {false, true}) {
        SCOPED_TRACE(testing::Message() << c.op << " " << name(dtype) << " second last " << second_last);
        const int64_t bytes = size_bytes(dtype);
        int64_t numel = 1, made = 1;
        for (int64_t size : sizes) numel *= size;
        for (int64_t size : c.sizes) made *= size;
        std::vector<char> x(numel * bytes);
        for (int64_t i = 0; i < numel; ++i) x[i * bytes] = static_cast<char>(dtype == DType::kBool ? i % 2 : i);
        std::vector<char> wanted(made * bytes), found(made * bytes, 99);
        const TensorRef from = laid_out(x.data(), dtype, sizes, second_last);
        run_kernel(std::string("reference.") + c.op, {from}, {tensor(wanted.data(), dtype, c.sizes)}, c.attrs);
        EXPECT_EQ(run_kernel(std::string("cpu.") + c.op, {from}, {tensor(found.data(), dtype, c.sizes)}, c.attrs),
                  nullptr);
        EXPECT_EQ(found, wanted);
      }
    }
  }
}

}  // namespace
}  // namespace lowtide::cpu
