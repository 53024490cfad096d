#include "ops/example_inputs.h"

namespace lowtide::examples {

static void add_convolutions(List& list) {
  const auto conv = [](const Sizes& strides, const Sizes& pads, const Sizes& dilations, int64_t group) {
    return Attrs{{"strides", dims(strides)}, {"pads", dims(pads)}, {"dilations", dims(dilations)}, {"group", group}};
  };
  list.add(Op::kConv, "", {real({2, 2, 5, 4}), real({3, 2, 3, 3}), real({3})}, conv({1, 1}, {1, 1, 1, 1}, {1, 1}, 1));
  list.add(Op::kConv, "patches", {real({1, 3, 4, 4}), real({2, 3, 2, 2}), real({2})},
           conv({2, 2}, {0, 0, 0, 0}, {1, 1}, 1));
  list.add(Op::kConv, "no bias", {real({1, 2, 5, 5}), real({2, 2, 3, 3})}, conv({2, 1}, {1, 0, 1, 0}, {1, 1}, 1));
  list.add(Op::kConv, "depthwise", {real({1, 4, 4, 4}), real({4, 1, 3, 3}), real({4})},
           conv({1, 1}, {1, 1, 1, 1}, {1, 1}, 4));
  list.add(Op::kConv, "groups, dilated", {real({1, 4, 6, 6}), real({6, 2, 2, 2})},
           conv({1, 1}, {0, 0, 0, 0}, {2, 2}, 2));
  list.add(Op::kConv, "1-d", {real({2, 2, 7}), real({3, 2, 3}), real({3})}, conv({2}, {1, 1}, {1}, 1));
  list.add(Op::kConv, "3-d", {real({1, 2, 3, 3, 3}), real({2, 2, 2, 2, 2})},
           conv({1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}, 1));
  list.add(Op::kConv, "many channels", {real({1, 16, 2, 3}), real({16, 16, 1, 2}), real({16})},
           conv({1, 1}, {0, 1, 0, 0}, {1, 1}, 1));
  list.add(Op::kConv, "3-d, many channels",
           {real({1, 16, 3, 2, 3}, -0.3, 0.3), real({16, 16, 2, 1, 2}, -0.3, 0.3), real({16})},
           conv({1, 1, 1}, {1, 0, 1, 1, 0, 1}, {1, 1, 1}, 1));
  const auto pointwise = [&](const Sizes& strides) {
    Attrs attrs = conv(strides, {0, 0, 0, 0}, {1, 1}, 1);
    attrs.set("kernel_shape", dims({1, 1}));
    return attrs;
  };
  list.add(Op::kConv, "of places", {real({2, 3, 3, 4}), real({4, 3, 1, 1}), real({4})}, pointwise({1, 1}));
  list.add(Op::kConv, "of places, strides", {real({2, 3, 3, 4}), real({2, 3, 1, 1})}, pointwise({2, 1}));
  list.add(Op::kConvGrad, "groups, strides", {real({1, 6, 3, 3}), fixed({1, 4, 6, 6}), real({6, 2, 2, 2})},
           conv({2, 2}, {0, 0, 0, 0}, {1, 1}, 2));
}

static void add_pools(List& list) {
  const auto pool = [](const Sizes& kernel, const Sizes& strides, const Sizes& pads, bool ceil_mode) {
    return Attrs{
        {"kernel_shape", dims(kernel)}, {"strides", dims(strides)}, {"pads", dims(pads)}, {"ceil_mode", ceil_mode}};
  };
  const auto max_pool = [&](Attrs attrs, const Sizes& dilations) {
    attrs.set("dilations", dims(dilations));
    return attrs;
  };
  const auto average_pool = [&](Attrs attrs, bool count_include_pad) {
    attrs.set("count_include_pad", count_include_pad);
    return attrs;
  };
  const Attrs plain = pool({2, 2}, {2, 2}, {0, 0, 0, 0}, false),
              overlapping = pool({3, 3}, {2, 2}, {1, 1, 1, 1}, false);
  const Attrs ceiled = pool({3, 2}, {2, 2}, {1, 0, 1, 0}, true), larger = pool({8, 8}, {8, 8}, {0, 0, 0, 0}, true);
  list.add(Op::kMaxPool, "", {distinct({1, 2, 4, 4})}, max_pool(plain, {1, 1}));
  list.add(Op::kMaxPool, "overlapping", {distinct({1, 2, 5, 6})}, max_pool(overlapping, {1, 1}));
  list.add(Op::kMaxPool, "ceil", {distinct({1, 2, 6, 5})}, max_pool(ceiled, {1, 1}));
  list.add(Op::kMaxPool, "larger than the image", {distinct({1, 2, 6, 5})}, max_pool(larger, {1, 1}));
  list.add(Op::kMaxPool, "dilated", {distinct({1, 1, 6, 6})},
           max_pool(pool({2, 2}, {1, 1}, {0, 0, 0, 0}, false), {2, 2}));
  Attrs with_places = max_pool(overlapping, {1, 1});
  with_places.set("offsets", true);
  list.add(Op::kMaxPool, "places in windows", {distinct({1, 2, 5, 6})}, with_places);
  list.add(Op::kMaxPool, "1-d", {distinct({1, 2, 7})}, max_pool(pool({3}, {2}, {1, 1}, false), {1}));
  list.add(Op::kMaxPool, "3-d", {distinct({1, 2, 3, 4, 5})},
           max_pool(pool({2, 2, 3}, {1, 2, 2}, {1, 0, 1, 0, 0, 1}, false), {1, 1, 1}));
  list.add(Op::kAveragePool, "", {real({1, 2, 4, 4})}, average_pool(plain, true));
  list.add(Op::kAveragePool, "counts padding", {real({1, 2, 5, 6})}, average_pool(overlapping, true));
  list.add(Op::kAveragePool, "without padding", {real({1, 2, 5, 6})}, average_pool(overlapping, false));
  list.add(Op::kAveragePool, "ceil", {real({1, 2, 6, 5})}, average_pool(ceiled, true));
  list.add(Op::kAveragePool, "ceil without padding", {real({1, 2, 6, 5})}, average_pool(ceiled, false));
  list.add(Op::kAveragePool, "larger than the image", {real({1, 2, 6, 5})}, average_pool(larger, true));
  list.add(Op::kAveragePool, "1-d", {real({1, 2, 7})}, average_pool(pool({3}, {2}, {1, 1}, false), true));
  list.add(Op::kAveragePool, "3-d", {real({1, 2, 3, 4, 5})},
           average_pool(pool({2, 2, 3}, {1, 2, 2}, {1, 0, 1, 0, 0, 1}, false), false));
}

void add_windows(List& list) {
  add_convolutions(list);
  add_pools(list);
  const auto resize = [](const Sizes& sizes, const char* mode, bool align_corners) {
    return Attrs{{"sizes", dims(sizes)}, {"mode", mode}, {"align_corners", align_corners}};
  };
  list.add(Op::kResize, "nearest up", {real({1, 2, 3, 2})}, resize({6, 5}, "nearest", false));
  list.add(Op::kResize, "nearest down", {real({1, 2, 5, 6})}, resize({3, 2}, "nearest", false));
  list.add(Op::kResize, "bilinear up", {real({1, 2, 3, 2})}, resize({6, 5}, "bilinear", false));
  list.add(Op::kResize, "bilinear down", {real({1, 2, 5, 6})}, resize({3, 2}, "bilinear", false));
  list.add(Op::kResize, "bilinear, corners", {real({1, 2, 3, 2})}, resize({5, 4}, "bilinear", true));
  const auto means = [](const Sizes& sizes) { return Attrs{{"sizes", dims(sizes)}}; };
  list.add(Op::kAdaptiveAveragePool, "", {real({2, 2, 7, 5})}, means({3, 2}));
  list.add(Op::kAdaptiveAveragePool, "up", {real({1, 2, 3, 4})}, means({5, 6}));
  list.add(Op::kAdaptiveAveragePool, "one", {real({2, 3, 4})}, means({1, 3}));
  const auto windows = [](const Sizes& kernel, const Sizes& strides, const Sizes& pads, const Sizes& dilations) {
    return Attrs{{"kernel_shape", dims(kernel)},
                 {"strides", dims(strides)},
                 {"pads", dims(pads)},
                 {"dilations", dims(dilations)}};
  };
  const auto onto = [](Attrs attrs, const Sizes& shape) {
    attrs.set("shape", dims(shape));
    return attrs;
  };
  const Attrs same = windows({3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}),
              strided = windows({2, 3}, {2, 3}, {0, 2, 1, 0}, {2, 1});
  list.add(Op::kIm2Col, "", {real({2, 2, 4, 5})}, same);
  list.add(Op::kIm2Col, "strided", {real({1, 2, 5, 7})}, strided);
  list.add(Op::kCol2Im, "", {real({2, 2, 3, 3, 4, 5})}, onto(same, {2, 2, 4, 5}));
  list.add(Op::kCol2Im, "strided", {real({1, 2, 2, 3, 2, 3})}, onto(strided, {1, 2, 5, 7}));
}

}  // namespace lowtide::examples
