#include "ir/parse.h"

#include <gtest/gtest.h>

#include "ir/description.h"
#include "ir/print.h"

namespace lowtide {
namespace {

constexpr std::string_view kMlp =
    R"(graph @mlp(
    %x: f32[batch, 4] input,
    %w: f32[4, 2] param,
    %c: f32[2] param frozen strides(1),
    %s: f32[2] buffer,
    %k: f32[] constant,
    %e: f32[2, batch] input grad strides(1, batch)) where batch in [2, 1024], t in [0, inf] {
  %y: f32[batch, 2] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=false) %x, %w, %c  // fc  model.py:41
  %v: f32[batch, 2], _ = Sort(axis=1, descending=true) %y  //   model.py:42  Sort+Slice
  %s1: f32[2] = Identity %s
  %dy: f32[batch, 2] = YieldOp(grads=[0]) %v
  %z: i64[batch] = aten::argmax.default(dim=1, dtype=f32, eps=1e-05, flags=floats[], mode="a\"b\n", none=strings[], operands=["self"], size=[batch, 2*batch + 1]) %y  // gradient of:
  %p: f32[batch, 2] = PythonOp "mod.Class"(call=0) %dy, _  // recompute of: fc.0  model.py:7
  %f: f32[batch, 2] = FusedGroup %p, %dy {  // fused from: fc  model.py:9  BiasGelu+Dropout
    graph @group(%a: f32[batch, 2] input, %b: f32[batch, 2] input) {
      %m: f32[batch, 2] = Mul %a, %b
      return %m output
    }
  }
  %dw: f32[4, 2] = FusedMatMul(alpha=inf, transA=true, transB=false) %x, %f
  () = aten::sym_constrain.default
  return %s1 update %s, %dw gradient %w
}
)";

TEST(Parse, PrintsWhatItRead) { EXPECT_EQ(print(parse(kMlp)), kMlp); }

TEST(Parse, LooseTextMeansTheSame) {
  const Graph graph = parse(
      "// a file may start with a comment\n graph @g ( %x:f32[s*2,s//2]input )where s in[1,8]{ // and go on\n"
      "%y:f32[2*s,s//2]=LeakyRelu( alpha = 1 )%x // here\n"
      "%\"odd name\": f32[2*s, s//2] = Neg\t%y // m  f.py:1\nreturn\t%\"odd name\" output}");
  EXPECT_EQ(print(graph),
            "graph @g(%x: f32[2*s, s//2] input) where s in [1, 8] {\n"
            "  %y: f32[2*s, s//2] = LeakyRelu(alpha=1.0) %x  // here\n"
            "  %\"odd name\": f32[2*s, s//2] = Neg %y  // m  f.py:1\n"
            "  return %\"odd name\" output\n}\n");
}

TEST(Parse, AnyOriginReadsBack) {
  const Origin origins[] = {{"", "", OriginKind::kForward, ""},
                            {"", "", OriginKind::kGradient, ""},
                            {"h.0", "", OriginKind::kForward, ""},
                            {"", "m.py:3", OriginKind::kRecompute, ""},
                            {"", "", OriginKind::kFused, "A+B"},
                            {"h", "m.py:3", OriginKind::kFused, "A + B"},
                            {"two  spaces", " a b ", OriginKind::kForward, "line\nbreak"},
                            {"gradient of: x", "\"quoted\"", OriginKind::kForward, "// comment"}};
  for (const Origin& origin : origins) {
    Graph graph("g");
    const ValueId x = graph.add_input("x", {}, InputKind::kInput);
    const NodeId node = graph.add_node(Op::kNeg, {x}, {{}}, {}, origin);
    graph.add_output(graph.node(node).outputs[0]);
    const Graph again = parse(print(graph));
    EXPECT_EQ(again.node(again.order()[0]).origin, origin) << print(graph);
  }
}

TEST(Print, NodesInMessages) {
  const Graph graph = parse(kMlp);
  const std::vector<NodeId>& order = graph.order();
  EXPECT_EQ(describe(graph, order[0]), "Gemm (fc, model.py:41)");
  EXPECT_EQ(describe(graph, order[1]), "Sort (model.py:42)");
  EXPECT_EQ(describe(graph, order[2]), "Identity");
  EXPECT_EQ(describe(graph, order[5]), "mod.Class, recompute of: (fc.0, model.py:7)");
  EXPECT_EQ(print_node(graph, order[2]), "%s1: f32[2] = Identity %s");
}

TEST(Print, ADescriptionIsTakenApartAgain) {
  const Origin origins[] = {{"", "", OriginKind::kForward, ""},
                            {"", "", OriginKind::kGradient, ""},
                            {"h.0.attn", "", OriginKind::kForward, ""},
                            {"", "m.py:3", OriginKind::kRecompute, ""},
                            {"h.0", "<frozen runpy>:12", OriginKind::kFused, ""},
                            {"towers, left", "m.py:3", OriginKind::kGradient, ""}};
  for (const Origin& origin : origins) {
    Graph graph("g");
    const ValueId x = graph.add_input("x", {}, InputKind::kInput);
    const NodeId node = graph.add_node(Op::kNeg, {x}, {{}}, {}, origin);
    const std::string text = describe(graph, node);
    EXPECT_EQ(read_description(text), (Description{"Neg", origin})) << text;
  }
  EXPECT_EQ(read_description("gradient of fc.weight"), (Description{"gradient of fc.weight", {}}));
  EXPECT_EQ(read_description("Copy for Reshape (m.py:7)").what, "Copy for Reshape");
}

struct BadText {
  std::string_view text;
  std::string_view message;
};

TEST(Parse, MistakesAreNamedWithTheirPlace) {
  const BadText cases[] = {
      {"", "1:1: expected 'graph', found the end of the text"},
      {"graph @g() {\n  return\n} more", "3:3: expected the end of the text, found 'more'"},
      {"graph @g(%x: f33[] input) { return }", "1:14: expected a dtype (f32, i64, bool, ...), found 'f33'"},
      {"graph @g(%x: f32[2 input) { return }", "1:20: expected ']', found 'input'"},
      {"graph @g(%x: f32[]) { return }", "1:19: expected input, param, buffer or constant, found ')'"},
      {"graph @g(%x: f32[] input, %x: f32[] input) { return }", "1:27: expected a new name, found %x a second time"},
      {"graph @g(%x: f32[] input) {\n  %y: f32[] = Ned %x\n return }",
       "2:15: expected an op, found 'Ned', which is none"},
      {"graph @g(%x: f32[] input) {\n  %y: f32[] = Neg %z\n return }",
       "2:19: expected a value defined above, found %z"},
      {"graph @g(%x: f32[] input) {\n  %y: f32[] = Elu(alpha=) %x\n return }", "2:25: expected a size, found ')'"},
      {"graph @g(%x: f32[] input) {\n  y = Neg %x\n return }", "2:3: expected a node, 'return' or '}', found 'y'"},
      {"graph @g() {\n  %y: f32[], %y: f32[] = Sort\n return }", "2:14: expected a new name, found %y a second time"},
      {"graph @g() { return %y output }", "1:21: expected a value defined above, found %y"},
      {"graph @g() {\n  () = aten::f.default(a=[1, 2.0])\n return }", "2:30: expected a list of one type, found two"},
      {"graph @g() {\n  () = aten::f.default(a=[true])\n return }",
       "2:27: expected a list of sizes, numbers or strings"},
      {"graph @g() {\n  () = aten::f.default(a=1e999)\n return }", "2:26: expected a number in the range of f64"},
      {"graph @g() {\n  () = aten::f.default(a=\"x)\n return }",
       "2:26: expected a closing '\"', found the end of the line"},
  };
  for (const BadText& bad : cases) {
    try {
      parse(bad.text);
      ADD_FAILURE() << "no error for " << bad.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidGraph);
      EXPECT_EQ(std::string_view(error.what()), bad.message) << bad.text;
    }
  }
}

}  // namespace
}  // namespace lowtide
