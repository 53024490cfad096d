// Programs in text form of what the planner uses seldom or not yet: loops over row blocks, calls that are begun and
// waited for, sizes that steps write, numbers among the inputs; and what their tests share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "base/check.h"
#include "bind/binding.h"
#include "runtime/written_program.h"

namespace lowtide {

inline std::vector<float> waves(size_t count, float scale = 1) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = scale * std::sin(1 + static_cast<float>(i));
  return values;
}

inline void expect_refused(const std::string& lines, const std::string& reason) {
  try {
    written(lines);
    FAIL() << "passed: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram);
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

// The program again with the lifetimes that its steps ask for.
inline void expect_tight_lifetimes(const Program& program) {
  Program again = program;
  set_lifetimes(again);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const ProgramBuffer &found = again.buffers[i], &said = program.buffers[i];
    if (said.kind != BufferKind::kArena) continue;
    EXPECT_EQ(found.first, said.first) << said.name;
    EXPECT_EQ(found.last, said.last) << said.name;
  }
}

// Loops: y = relu(x * w), s = the sum of y's rows, in blocks of 32 rows. t and part are made again in each block.
//   Expressions: 0: 0, 1: 1, 2: 8, 3: n, 4: n*32, 5: first row * 8, 6: rows of the block, 7: its bytes, 8: 32
inline constexpr char kLoop[] = R"(symbol "n" 0 dim 0 0 1000
loop 2 6 3 32
devices ["host"]
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [1 1 0 8 4]
expression [1 2]
expression [1 2 0 32 4]
expression [0 32]
input "x" f32 [3 2] [2 1] 0 0
input "w" f32 [2] [1] 0 0
buffer "x" caller 4 0 0 0 0
buffer "w" caller 8 0 0 1 0
buffer "zero" constant 8 0 0 0 0
buffer "y" output 4 0 0 0 0
buffer "s" output 8 0 0 0 0
buffer "t" arena 7 2 3 0 0
buffer "part" arena 8 4 5 0 0
operand 2 f32 0 [2] [1]
operand 4 f32 0 [2] [1]
operand 0 f32 5 [6 2] [2 1]
operand 1 f32 0 [2] [1]
operand 5 f32 0 [6 2] [2 1]
operand 3 f32 5 [6 2] [2 1]
operand 6 f32 0 [2] [1]
operand 3 f32 0 [3 2] [2 1]
region "forward" []
step kernel "reference.Copy" [0] [1] -1 "" 0 "zero"
step loop "" [] [] 0 "" 0 "rows"
step kernel "reference.Mul" [2 3] [4] -1 "" 0 "Mul"
step kernel "reference.Relu" [4] [5] -1 "" 0 "Relu"
step kernel "cpu.ReduceSum" [5] [6] -1 "" 0 "ReduceSum"
attr "axes" es [0]
attr "keepdims" b false
step kernel "reference.Add" [1 6] [1] -1 "" 0 "Add"
output "y" 7 0
output "s" 1 0
contexts 0
constants "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
pack_order []
)";

// Sizes that steps write: m, the count of labels that are not -100. Forward: p = relu of the first m rows of x.
// Backward: the gradient of w is the sum of p's rows, times dy.
//   Expressions: 0: 0, 1: 1, 2: 8, 3: n, 4: n*32, 5: m, 6: m*32, 7: n*8 bytes, 8: n bytes, 9: 32
inline constexpr char kCount[] = R"(symbol "n" 0 dim 0 1 1000
step_symbol "m" 2 3 1 3
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [1 1]
expression [1 1 0 32 4]
expression [1 0 0 8 4]
expression [1 0]
expression [0 32]
input "x" f32 [3 2] [2 1] 0 0
input "labels" i64 [3] [1] 0 0
input "w" f32 [2] [1] 0 0
incoming "dy" f32 [2] [1] 0 1
of 0
buffer "x" caller 4 0 0 0 0
buffer "labels" caller 7 0 0 1 0
buffer "missing" constant 2 0 0 0 0
buffer "is_valid" arena 8 0 1 0 0
buffer "ones" arena 7 1 2 0 0
buffer "count" arena 2 2 2 0 0
buffer "p" arena 6 3 5 0 0
buffer "picked" output 6 0 0 0 0
buffer "dy" caller 9 0 0 -1 0
buffer "sum" arena 9 5 6 0 0
buffer "dw" gradient 9 6 7 0 0
operand 1 i64 0 [3] [1]
operand 2 i64 0 [3] [0]
operand 3 bool 0 [3] [1]
operand 5 i64 0 [] []
operand 4 i64 0 [3] [1]
operand 0 f32 0 [5 2] [2 1]
operand 6 f32 0 [5 2] [2 1]
operand 7 f32 0 [5 2] [2 1]
operand 9 f32 0 [2] [1]
operand 8 f32 0 [2] [1]
operand 10 f32 0 [2] [1]
region "forward" []
step kernel "reference.NotEqual" [0 1] [2] -1 "" 0 "NotEqual"
step kernel "reference.Cast" [2] [4] -1 "" 0 "Cast"
attr "to" t i64
step kernel "reference.ReduceSum" [4] [3] -1 "" 0 "the count"
attr "axes" es [0]
attr "keepdims" b false
step kernel "reference.Relu" [5] [6] -1 "" 0 "Relu"
step kernel "reference.Neg" [6] [7] -1 "" 0 "Neg"
region "backward" [0]
step kernel "reference.ReduceSum" [6] [8] -1 "" 0 "ReduceSum"
attr "axes" es [0]
attr "keepdims" b false
step kernel "reference.Mul" [8 9] [10] -1 "" 0 "Mul"
step emit "" [10] [] 0 "" 0 "gradient of w"
output "picked" 7 0
gradient 10 2
contexts 0
constants "\x9c\xff\xff\xff\xff\xff\xff\xff"
pack_order []
)";

// A number among the inputs: y is the first k rows of x.
inline constexpr char kNumber[] = R"(symbol "n" 0 dim 0 1 1000
symbol "k" 1 number 0 1000
expression [0 0]
expression [0 1]
expression [0 8]
expression [1 0]
expression [1 0 0 32 4]
expression [1 1]
expression [1 1 0 32 4]
input "x" f32 [3 2] [2 1] 0 0
input "k" i64 [] [] 0 0
buffer "x" caller 4 0 0 0 0
buffer "y" output 6 0 0 0 0
operand 0 f32 0 [5 2] [2 1]
operand 1 f32 0 [5 2] [2 1]
region "forward" []
step kernel "reference.Neg" [0] [1] -1 "" 0 "Neg"
output "y" 1 0
contexts 0
constants ""
pack_order []
)";

// Begin and wait: t goes out while v is computed, and comes back as u; y = u + v.
inline constexpr char kPending[] = R"(symbol "n" 0 dim 0 1 1000
expression [0 0]
expression [0 1]
expression [1 0]
expression [1 0 0 4 4]
input "x" f32 [2] [1] 0 0
buffer "x" caller 3 0 0 0 0
buffer "t" arena 3 0 3 0 0
buffer "u" arena 3 1 4 0 0
buffer "v" arena 3 2 4 0 0
buffer "y" output 3 0 0 0 0
operand 0 f32 0 [2] [1]
operand 1 f32 0 [2] [1]
operand 2 f32 0 [2] [1]
operand 3 f32 0 [2] [1]
operand 4 f32 0 [2] [1]
region "forward" []
step kernel "reference.Relu" [0] [1] -1 "" 0 "Relu"
step begin "" [1] [2] -1 "copy_out" 0 "send"
step kernel "reference.Mul" [0 0] [3] -1 "" 0 "Mul"
step wait "" [] [] 1 "" 0 "receive"
step kernel "reference.Add" [2 3] [4] -1 "" 0 "Add"
output "y" 4 0
contexts 0
constants ""
pack_order []
)";

}  // namespace lowtide
