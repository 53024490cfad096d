#include "ir/verify.h"

#include <gtest/gtest.h>

#include "ir/parse.h"

namespace lowtide {
namespace {

struct Broken {
  std::string_view text;
  std::string_view message;  // a part of it
};

TEST(Verify, TextsThatBreakAnInvariantNameItAndTheCulprit) {
  const Broken cases[] = {
      {"graph @g(%x: f32[] input) { %y: f32[] = Add %x // fc  m.py:3\n return }",
       "graph @g breaks I4: %y = Add (fc, m.py:3) has 1 operands, expected 2"},
      {"graph @g(%x: f32[] input) { %y: f32[], %z: f32[] = Neg %x\n return }",
       "I4: %y = Neg has 2 outputs, expected 1"},
      {"graph @g(%x: f32[] input) { %y: f32[] = Add %x, _\n return }", "I4: operand 1 of %y = Add is absent"},
      {"graph @g(%x: f32[] input) { %y: f32[] = Elu(alpha=1.0, scale=1.0) %x\n return }",
       "I5: %y = Elu lacks the attribute input_scale"},
      {"graph @g(%x: f32[] input) { %y: f32[] = LeakyRelu(alpha=true) %x\n return }",
       "I5: attribute alpha of %y = LeakyRelu is not a float"},
      {"graph @g(%x: f32[] input) { %y: f32[] = Neg(alpha=1.0) %x\n return }",
       "I5: %y = Neg has the unknown attribute alpha"},
      {"graph @g(%x: f32[] input) { %y: f32[] = Neg \"target\" %x\n return }",
       "I5: %y = Neg is no call and has a target"},
      {"graph @g(%x: f32[] input) { %y: f32[] = Aten %x\n return }", "I5: %y = Aten does not say what it calls"},
      {"graph @g(%x: f32[] input, %w: f32[2] buffer) { return %x update %w }",
       "I6: the update %x is f32[], its target %w is f32[2]"},
      {"graph @g(%x: f32[] input) { %y: f32[] = Neg %x\n return %x update %y }",
       "I6: the update %x is of no graph input"},
      {"graph @g(%x: f32[] input) { return %x update %x, %x update %x }", "I6: %x has two updates"},
      {"graph @g(%x: f32[] input) { return %x gradient %x }", "I7: the gradient %x in a graph without YieldOp"},
      {"graph @g(%x: f32[] input) { %d: f32[] = YieldOp(grads=[0]) %x\n return %x output }",
       "I7: the output %x beside a YieldOp"},
      {"graph @g(%x: f32[] input) { %d: f32[] = YieldOp(grads=[0]) %x\n return %d update %x }",
       "I7: the update %d is made by backward"},
      {"graph @g(%x: f32[] input) { %d: f32[2] = YieldOp(grads=[0]) %x\n return }", "I7: %d has another type"},
      {"graph @g(%x: f32[] input) { %d: f32[] = YieldOp(grads=[1]) %x\n return }", "I7: grads of YieldOp: entry 1"},
      {"graph @g(%x: f32[] input) { () = YieldOp(grads=[]) %x\n () = YieldOp(grads=[]) %x\n return }",
       "I7: a second YieldOp"},
      {"graph @g(%x: f32[] input) { %y: f32[] = FusedGroup %x\n return }", "I8: %y = FusedGroup has no body"},
      {"graph @g(%x: f32[] input) { %y: f32[] = FusedGroup %x {\n graph @b(%a: f32[2] input) { return %a output } }\n "
       "return }",
       "I8: input 0 of the body of %y = FusedGroup has another type"},
      {"graph @g(%x: f32[] input) { %y: f32[] = FusedGroup %x {\n graph @b(%a: f32[] input) { %c: f32[] = Add %a\n "
       "return %c output } }\n return }",
       "graph @b breaks I4"},
      {"graph @g(%x: f32[s] input) { %y: f32[t] = Neg %x\n return }",
       "I9: the symbol t of %y is no input's and has no range"},
      {"graph @g() { %y: f32[2] = ConstantOfShape(dtype=f32, shape=[n]) \n return }",
       "I9: the symbol n of attribute shape"},
      {"graph @g() where s in [3, 2] { return }", "I9: the range of s is empty"},
      {"graph @g(%x: f32[-1] input) { return }", "I10: %x has the size -1"},
      {"graph @g(%x: f32[2] input strides(1, 2)) { return }", "I10: %x has 2 strides and 1 dims"},
      {"graph @g(%x: i64[2] param) { return }", "I10: %x is i64 and requires a gradient"},
  };
  for (const Broken& broken : cases) {
    try {
      parse(broken.text);
      ADD_FAILURE() << "no error for " << broken.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidGraph);
      EXPECT_NE(std::string_view(error.what()).find(broken.message), std::string_view::npos) << error.what();
    }
  }
}

std::string breaks(const Graph& graph) {
  try {
    verify(graph);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Verify, WrongEditsAreFound) {
  const Graph good =
      parse("graph @g(%x: f32[] input) {\n %a: f32[] = Neg %x\n %b: f32[] = Exp %a\n return %b output }");
  const NodeId neg = good.order()[0], exp = good.order()[1];
  const ValueId a = good.find_value("a"), b = good.find_value("b");
  EXPECT_EQ(breaks(good), "");

  Graph swapped = good.clone();
  swapped.move_before(exp, neg);
  EXPECT_NE(breaks(swapped).find("I1: operand %a of %b = Exp is not defined before it"), std::string::npos);

  Graph twice = good.clone();
  twice.set_order({neg, neg});
  EXPECT_NE(breaks(twice).find("I1"), std::string::npos);

  Graph behind_its_back = good.clone();
  behind_its_back.edit(exp).inputs[0] = behind_its_back.find_value("x");
  EXPECT_NE(breaks(behind_its_back).find("I3: %x lists 1 uses, nodes read it 2 times"), std::string::npos);

  Graph dangling = good.clone();
  dangling.set_operand(exp, 0, dangling.find_value("x"));
  dangling.remove(neg);
  EXPECT_EQ(breaks(dangling), "");
  dangling.add_output(a);
  EXPECT_NE(breaks(dangling).find("I6: an output refers to no value"), std::string::npos);

  Graph reserved("g");
  reserved.add_input("x", {DType::kF32, {Dim::symbol("f32")}}, InputKind::kInput);
  EXPECT_NE(breaks(reserved).find("I9: 'f32' is no name of a symbol"), std::string::npos);
  EXPECT_TRUE(good.is_output(b));
}

}  // namespace
}  // namespace lowtide
