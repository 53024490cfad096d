#include "ops/builder.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "ops/rule.h"

namespace lowtide {
namespace {

class BuilderTest : public ::testing::Test {
 protected:
  Graph graph_ = parse("graph @g(%x: f32[n, 3] input, %y: f32[2, n, 3] input, %i: i64[n] input) {\n  return\n}");
  Builder builder_{graph_};
  ValueId x_ = graph_.find_value("x"), y_ = graph_.find_value("y"), i_ = graph_.find_value("i");

  // The text of the nodes made so far.
  std::string nodes() const {
    std::string text;
    for (NodeId id : graph_.order()) text += print_node(graph_, id) + "\n";
    return text;
  }
};

TEST_F(BuilderTest, MakesNoNodeWhereNothingChanges) {
  const Dim n = Dim::symbol("n");
  EXPECT_EQ(builder_.cast(x_, DType::kF32), x_);
  EXPECT_EQ(builder_.reshape(x_, {n, 3}), x_);
  EXPECT_EQ(builder_.expand(x_, {n, 3}), x_);
  EXPECT_EQ(builder_.transpose(x_, {0, 1}), x_);
  EXPECT_EQ(builder_.swap_axes(x_, 1, 1), x_);
  EXPECT_EQ(builder_.squeeze(x_, {}), x_);
  EXPECT_EQ(builder_.unsqueeze(x_, {}), x_);
  EXPECT_EQ(builder_.slice(x_, 0, 0, n), x_);
  EXPECT_EQ(builder_.reduce(Op::kReduceSum, x_, {}, true), x_);
  EXPECT_EQ(builder_.reduce_to(x_, {n, 3}), x_);
  EXPECT_EQ(builder_.pad_axis(x_, 1, 0, 0), x_);
  EXPECT_EQ(nodes(), "");
}

TEST_F(BuilderTest, SumsDownToAShape) {
  const Dim n = Dim::symbol("n");
  EXPECT_EQ(to_string(builder_.type(builder_.reduce_to(y_, {n, 3}))), "f32[n, 3]");
  EXPECT_EQ(to_string(builder_.type(builder_.reduce_to(y_, {2, 1, 3}))), "f32[2, 1, 3]");
  EXPECT_EQ(to_string(builder_.type(builder_.reduce_to(y_, {1, 3}))), "f32[1, 3]");
  EXPECT_EQ(to_string(builder_.type(builder_.reduce_to(y_, {}))), "f32[]");
  EXPECT_EQ(nodes(),
            "%reduce_sum: f32[n, 3] = ReduceSum(axes=[0], keepdims=false) %y\n"
            "%reduce_sum_1: f32[2, 1, 3] = ReduceSum(axes=[1], keepdims=true) %y\n"
            "%reduce_sum_2: f32[3] = ReduceSum(axes=[0, 1], keepdims=false) %y\n"
            "%reshape: f32[1, 3] = Reshape(shape=[1, 3]) %reduce_sum_2\n"
            "%reduce_sum_3: f32[] = ReduceSum(axes=[0, 1, 2], keepdims=false) %y\n");
}

TEST_F(BuilderTest, WritesSymbolicNumbers) {
  const Dim n = Dim::symbol("n");
  builder_.scalar_dim(n * 3, DType::kI64);
  builder_.scalar_dim(n, DType::kF32);
  builder_.scalar_dim(4, DType::kF32);
  builder_.full({n}, 1, DType::kBool);
  EXPECT_EQ(nodes(),
            "%constant: i64[] = Constant(dtype=i64, int_value=3*n)\n"
            "%constant_1: i64[] = Constant(dtype=i64, int_value=n)\n"
            "%cast: f32[] = Cast(to=f32) %constant_1\n"
            "%constant_2: f32[] = Constant(dtype=f32, value=4.0)\n"
            "%constant_of_shape: bool[n] = ConstantOfShape(dtype=bool, int_value=1, shape=[n])\n");
}

TEST_F(BuilderTest, GivesOriginsAndNames) {
  builder_.set_origin({"fc", "m.py:3", OriginKind::kForward, {}});
  const ValueId last = builder_.named("h").neg(x_);
  builder_.insert_before(graph_.value(last).producer);
  builder_.neg(x_);
  EXPECT_EQ(nodes(), "%neg: f32[n, 3] = Neg %x  // fc  m.py:3\n%h: f32[n, 3] = Neg %x  // fc  m.py:3\n");
}

TEST_F(BuilderTest, ErrorsNameTheUsersLine) {
  builder_.set_origin({"fc", "m.py:3", OriginKind::kForward, {}});
  try {
    builder_.add(x_, i_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidGraph);
    EXPECT_STREQ(error.what(), "Add: operands differ in dtype: f32[n, 3] and i64[n] (fc, m.py:3)");
  }
}

}  // namespace
}  // namespace lowtide
