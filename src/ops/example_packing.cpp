#include "ops/example_inputs.h"

namespace lowtide::examples {

namespace {

struct Case {
  DType dtype;
  int64_t bits, low, high;
};

// Every width of every dtype, negative and large `low` among them.
constexpr Case kCases[] = {
    {DType::kBool, 1, 0, 1},      {DType::kU8, 1, 0, 1},
    {DType::kU8, 4, 240, 255},    {DType::kI8, 2, -1, 2},
    {DType::kI8, 8, -128, 127},   {DType::kI16, 1, 0, 1},
    {DType::kI16, 2, 0, 3},       {DType::kI16, 4, -8, 7},
    {DType::kI16, 8, 100, 355},   {DType::kI16, 16, -32768, 32767},
    {DType::kI32, 1, 6, 7},       {DType::kI32, 2, 0, 3},
    {DType::kI32, 4, -1, 14},     {DType::kI32, 8, 0, 255},
    {DType::kI32, 16, -1, 65534}, {DType::kI32, 32, -1000, 1000},
    {DType::kI64, 1, -1, 0},      {DType::kI64, 2, 0, 3},
    {DType::kI64, 4, 0, 15},      {DType::kI64, 8, -128, 127},
    {DType::kI64, 16, 0, 65535},  {DType::kI64, 32, -5000000000, -4999990000},
};

}  // namespace

void add_packing(List& list) {
  const Sizes shape{3, 2, 7};  // no multiple of 8 elements
  for (const Case& c : kCases) {
    const std::string note = concat(name(c.dtype), " ", c.bits);
    const Attrs pack{{"bits", Dim(c.bits)}, {"low", Dim(c.low)}};
    list.add(Op::kPackBits, note, {c.dtype == DType::kBool ? flags(shape) : integers(shape, c.low, c.high, c.dtype)},
             pack);
    Attrs unpack = pack;
    unpack.set("to", c.dtype);
    unpack.set("shape", dims(shape));
    list.add(Op::kUnpackBits, note, {integers({(42 * c.bits + 7) / 8}, 0, 255, DType::kU8)}, unpack);
  }
  list.add(Op::kPackBits, "empty", {integers({0, 3}, 0, 1)}, {{"bits", 1}, {"low", 0}});
  list.add(Op::kPackBits, "images", {integers({2, 3, 4, 5}, 0, 3)}, {{"bits", 2}, {"low", 0}});
}

}  // namespace lowtide::examples
