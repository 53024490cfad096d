#include "ops/example_inputs.h"

namespace lowtide::examples {

static void add_views(List& list) {
  list.add(Op::kReshape, "", {real({2, 6})}, {{"shape", dims({3, 4})}});
  list.add(Op::kReshape, "to scalar", {real({1, 1})}, {{"shape", dims({})}});
  list.add(Op::kTranspose, "", {real({2, 3, 4})}, {{"perm", dims({2, 0, 1})}});
  const auto slice = [](int64_t axis, int64_t start, int64_t end, int64_t step) {
    return Attrs{{"axis", axis}, {"start", start}, {"end", end}, {"step", step}};
  };
  list.add(Op::kSlice, "", {real({3, 5})}, slice(1, 1, 4, 1));
  list.add(Op::kSlice, "step", {real({3, 5})}, slice(1, 1, 5, 3));
  list.add(Op::kSlice, "first axis", {real({3, 5})}, slice(0, 2, 3, 1));
  list.add(Op::kSlice, "empty", {real({3, 5})}, slice(0, 2, 2, 1));
  list.add(Op::kSliceScatter, "", {real({3, 5}), real({3, 3})}, slice(1, 1, 4, 1));
  list.add(Op::kSliceScatter, "step", {real({5, 3}), real({2, 3})}, slice(0, 0, 4, 2));
  list.add(Op::kExpand, "", {real({3, 1})}, {{"shape", dims({2, 3, 4})}});
  list.add(Op::kExpand, "scalar", {real({})}, {{"shape", dims({2, 2})}});
  list.add(Op::kUnsqueeze, "", {real({2, 3})}, {{"axes", dims({0, 2})}});
  list.add(Op::kSqueeze, "", {real({1, 2, 1, 3})}, {{"axes", dims({0, 2})}});
}

static void add_reductions(List& list) {
  const auto over = [](const Sizes& axes, bool keepdims) {
    return Attrs{{"axes", dims(axes)}, {"keepdims", keepdims}};
  };
  const auto add_cases = [&](Op op, const ExampleInput& x) {
    list.add(op, "last", {x}, over({2}, false));
    list.add(op, "middle kept", {x}, over({1}, true));
    list.add(op, "all", {x}, over({0, 1, 2}, false));
    list.add(op, "outer", {x}, over({0, 2}, false));
  };
  const Sizes shape{2, 3, 4};
  for (Op op : {Op::kReduceSum, Op::kReduceMean, Op::kReduceL2, Op::kReduceLogSumExp}) add_cases(op, real(shape));
  for (Op op : {Op::kReduceMax, Op::kReduceMin}) add_cases(op, distinct(shape));
  add_cases(Op::kReduceProd, real(shape, 0.5, 1.5));
  list.add(Op::kReduceSum, "integers", {integers(shape, -5, 5)}, over({1}, false));
  for (Op op : {Op::kArgMax, Op::kArgMin}) {
    list.add(op, "", {distinct({3, 4})}, {{"axis", 1}, {"keepdims", false}});
    list.add(op, "ties", {integers({3, 4}, 0, 1)}, {{"axis", 0}, {"keepdims", true}});
  }
  list.add(Op::kCumSum, "", {real({3, 4})}, {{"axis", 1}});
  list.add(Op::kCumSum, "reverse", {real({3, 4})}, {{"axis", 0}, {"reverse", true}});
  list.add(Op::kTopK, "", {distinct({3, 5})}, {{"axis", 1}, {"k", 2}, {"largest", true}});
  list.add(Op::kTopK, "smallest", {distinct({4, 3})}, {{"axis", 0}, {"k", 3}, {"largest", false}});
  list.add(Op::kSort, "", {distinct({3, 5})}, {{"axis", 1}, {"descending", false}});
  list.add(Op::kSort, "descending", {distinct({4, 3})}, {{"axis", 0}, {"descending", true}});
}

void add_views_and_reductions(List& list) {
  add_views(list);
  add_reductions(list);
}

}  // namespace lowtide::examples
