// A small step whose picture fits on a page: the JSON word for word.
#include "report/arena_picture.h"

#include <gtest/gtest.h>

#include "emit/plan.h"
#include "ir/parse.h"

namespace lowtide {
namespace {

constexpr std::string_view kArenaPictureStep = R"(
graph @net(%x: f32[b, 32] input, %w: f32[b, 32] param) where b in [1, 64] {
  %h: f32[b, 32] = Mul %x, %w  // scale  model.py:3
  %a: f32[b, 32] = Exp %h  // act  model.py:4
  %y: f32[b, 32] = Mul %a, %a  // model.py:5
  %dy: f32[b, 32] = YieldOp(grads=[0]) %y
  %a2: f32[b, 32] = Exp %h  // recompute of: act  model.py:4
  %da: f32[b, 32] = Mul %dy, %a2  // gradient of: act  model.py:4
  %dw: f32[b, 32] = Div %da, %x  // gradient of: scale  model.py:3
  %dw2: f32[b, 32] = Add %dw, %da  // gradient of: scale  model.py:3
  return %dw2 gradient %w
}
)";

// The recomputed %a2, then %da, take over the bytes of %h, which nobody reads any more.
constexpr std::string_view kPicture = R"({"name": "net", "dims": {"b": 2}, "peak_bytes": 768, "arena_bytes": 512,
 "gradient_bytes": 256, "output_bytes": 256, "external_bytes": 0, "lower_bound_bytes": 512, "forward_end": 3,
 "steps": [
  {"what": "Mul", "made": "forward", "module": "scale", "line": "model.py:3", "live_bytes": 256},
  {"what": "Exp", "made": "forward", "module": "act", "line": "model.py:4", "live_bytes": 512},
  {"what": "Mul", "made": "forward", "module": "", "line": "model.py:5", "live_bytes": 768},
  {"what": "Exp", "made": "recomputed", "module": "act", "line": "model.py:4", "live_bytes": 512},
  {"what": "Mul", "made": "gradient", "module": "act", "line": "model.py:4", "live_bytes": 512},
  {"what": "Div", "made": "gradient", "module": "scale", "line": "model.py:3", "live_bytes": 768},
  {"what": "Add", "made": "gradient", "module": "scale", "line": "model.py:3", "live_bytes": 768},
  {"what": "gradient of w", "made": "gradient", "module": "", "line": "", "live_bytes": 512}],
 "buffers": [
  {"name": "h", "kind": "stash", "made": "forward", "step": 0,
   "first": 0, "last": 6, "offset": 0, "bytes": 256, "reads": [1, 3, 4, 5, 6], "writes": [0, 3, 4]},
  {"name": "a", "kind": "temporary", "made": "forward", "step": 1,
   "first": 1, "last": 2, "offset": 256, "bytes": 256, "reads": [2], "writes": [1]},
  {"name": "y", "kind": "output", "made": "forward", "step": 2,
   "first": 2, "last": 7, "offset": 512, "bytes": 256, "reads": [], "writes": [2]},
  {"name": "dw", "kind": "gradient", "made": "gradient", "step": 5,
   "first": 5, "last": 7, "offset": 256, "bytes": 256, "reads": [6, 7], "writes": [5, 6]}]})";

std::string on_one_line(std::string_view text) {
  std::string line;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\n') {
      line += text[i];
      continue;
    }
    while (i + 1 < text.size() && text[i + 1] == ' ') ++i;
    if (line.back() == ',') line += ' ';
  }
  return line;
}

TEST(ArenaPicture, SaysWhatLiesWhereAndWhoMadeIt) {
  const PlanResult planned = plan(parse(kArenaPictureStep));
  const std::unique_ptr<Binding> binding = bind_program(planned.program, {2}, {}, false);
  EXPECT_EQ(arena_picture(planned.program, *binding), on_one_line(kPicture));
}

}  // namespace
}  // namespace lowtide
