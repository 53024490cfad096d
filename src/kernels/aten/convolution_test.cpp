// What the kernels hand to PyTorch's library, whose place is taken by loops that note it. How they agree with PyTorch
// itself: tests/kernels.
#include <cmath>

#include "base/libraries.h"
#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"

namespace lowtide::cpu {
namespace {

struct Noted {
  int calls = 0;
  std::vector<int64_t> strides, pads, dilations;
  int64_t groups = 0;
  bool bias = false, dx = false, dw = false, dbias = false;
};
Noted noted;

void note(const ConvolutionWindow& window) {
  ++noted.calls;
  noted.strides.assign(window.strides, window.strides + window.spatial);
  noted.pads.assign(window.pads, window.pads + window.spatial);
  noted.dilations.assign(window.dilations, window.dilations + window.spatial);
  noted.groups = window.groups;
}

float& at(const LibraryTensor& t, int64_t n, int64_t c, int64_t h, int64_t w) {
  return static_cast<float*>(t.data)[n * t.strides[0] + c * t.strides[1] + h * t.strides[2] + w * t.strides[3]];
}

// body(y's place, x's place, the tap) for every product of a convolution in two dims.
template <class Body>
void for_each_term(const LibraryTensor& x, const LibraryTensor& w, const LibraryTensor& y,
                   const ConvolutionWindow& window, Body body) {
  const int64_t per_group = w.sizes[0] / window.groups;
  for (int64_t n = 0; n < y.sizes[0]; ++n)
    for (int64_t m = 0; m < y.sizes[1]; ++m)
      for (int64_t i = 0; i < y.sizes[2]; ++i)
        for (int64_t j = 0; j < y.sizes[3]; ++j)
          for (int64_t c = 0; c < w.sizes[1]; ++c)
            for (int64_t k = 0; k < w.sizes[2]; ++k)
              for (int64_t l = 0; l < w.sizes[3]; ++l) {
                const int64_t h = i * window.strides[0] - window.pads[0] + k * window.dilations[0];
                const int64_t v = j * window.strides[1] - window.pads[1] + l * window.dilations[1];
                if (h < 0 || h >= x.sizes[2] || v < 0 || v >= x.sizes[3]) continue;
                body(at(y, n, m, i, j), at(x, n, m / per_group * w.sizes[1] + c, h, v), at(w, m, c, k, l), m);
              }
}

void fill(const LibraryTensor& t, const LibraryTensor* channel) {
  for (int64_t n = 0; n < t.sizes[0]; ++n)
    for (int64_t c = 0; c < t.sizes[1]; ++c)
      for (int64_t h = 0; h < t.sizes[2]; ++h)
        for (int64_t w = 0; w < t.sizes[3]; ++w)
          at(t, n, c, h, w) = channel ? static_cast<float*>(channel->data)[c * channel->strides[0]] : 0;
}

const char* forward(const LibraryTensor& x, const LibraryTensor& w, const LibraryTensor* bias,
                    const ConvolutionWindow& window, const LibraryTensor& y) {
  note(window);
  noted.bias = bias != nullptr;
  fill(y, bias);
  for_each_term(x, w, y, window, [](float& to, float from, float tap, int64_t) { to += from * tap; });
  return nullptr;
}

const char* backward(const LibraryTensor& dy, const LibraryTensor& x, const LibraryTensor& w,
                     const ConvolutionWindow& window, const LibraryTensor* dx, const LibraryTensor* dw,
                     const LibraryTensor* dbias) {
  note(window);
  noted.dx = dx != nullptr;
  noted.dw = dw != nullptr;
  noted.dbias = dbias != nullptr;
  if (dx) {
    fill(*dx, nullptr);
    for_each_term(*dx, w, dy, window, [](float from, float& to, float tap, int64_t) { to += from * tap; });
  }
  if (dw) {
    fill(*dw, nullptr);
    for_each_term(x, *dw, dy, window, [](float from, float other, float& to, int64_t) { to += from * other; });
  }
  return nullptr;
}

BoundAttrs window_attrs(std::vector<int64_t> pads, std::vector<int64_t> strides = {2, 1},
                        std::vector<int64_t> dilations = {1, 2}, int64_t group = 2) {
  BoundAttrs attrs;
  attrs.set("strides", std::move(strides));
  attrs.set("pads", std::move(pads));
  attrs.set("dilations", std::move(dilations));
  attrs.set("group", group);
  return attrs;
}
BoundAttrs plain_attrs() { return window_attrs({0, 0, 0, 0}, {1, 1}, {1, 1}, 1); }
const std::vector<int64_t> kX = {2, 4, 7, 6}, kW = {6, 2, 3, 2}, kY = {2, 6, 4, 8};

// Where a tensor of four dims lies with its channels last.
std::vector<int64_t> channels_last(const std::vector<int64_t>& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[3] * sizes[1], sizes[1]};
}
int64_t numel(const std::vector<int64_t>& sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

class LibraryConvolution : public testing::Test {
 protected:
  void SetUp() override {
    noted = {};
    Libraries libraries;
    libraries.convolution = forward;
    libraries.convolution_backward = backward;
    set_libraries(libraries);
  }
  void TearDown() override {
    set_libraries({});
    set_parallel_for(nullptr, 1);
  }

  const BoundAttrs attrs = window_attrs({1, 2, 1, 2});
  const std::vector<float> x = random_floats(numel(kX), 1), w = random_floats(numel(kW), 2), bias = random_floats(6, 3),
                           dy = random_floats(numel(kY), 4);
};

void expect_noted() {
  EXPECT_EQ(noted.calls, 1);
  EXPECT_EQ(noted.strides, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(noted.pads, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(noted.dilations, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(noted.groups, 2);
}

TEST_F(LibraryConvolution, TheWindowAndTheLayoutsReachTheLibrary) {
  for (const bool with_bias : {false, true}) {
    noted = {};
    const std::vector<TensorRef> inputs = {floats(x.data(), kX, channels_last(kX)), floats(w.data(), kW),
                                           with_bias ? floats(bias.data(), {6}) : TensorRef{}};
    std::vector<float> found(numel(kY), NAN), expected(numel(kY), NAN);
    const std::vector<int64_t> lies = channels_last(kY);
    EXPECT_EQ(run_kernel("aten.Conv", inputs, {floats(found.data(), kY, lies)}, attrs), nullptr);
    EXPECT_EQ(run_kernel("reference.Conv", inputs, {floats(expected.data(), kY, lies)}, attrs), nullptr);
    expect_noted();
    EXPECT_EQ(noted.bias, with_bias);
    expect_close(found.data(), numel(kY), [&](int64_t i) { return expected[i]; }, 1e-5, 1e-5);
  }
}

TEST_F(LibraryConvolution, OnlyWantedGradientsAreAskedFor) {
  for (const bool of_x : {false, true}) {
    noted = {};
    const std::vector<TensorRef> inputs = {floats(dy.data(), kY, channels_last(kY)),
                                           floats(x.data(), kX, channels_last(kX)), floats(w.data(), kW)};
    const std::vector<int64_t>& sizes = of_x ? kX : kW;
    std::vector<float> found(numel(sizes), NAN), expected(numel(sizes), NAN);
    const auto outputs = [&](std::vector<float>& to) {
      const TensorRef wanted = floats(to.data(), sizes);
      return of_x ? std::vector<TensorRef>{wanted, {}, {}} : std::vector<TensorRef>{{}, wanted, {}};
    };
    EXPECT_EQ(run_kernel("aten.ConvGrad", inputs, outputs(found), attrs), nullptr);
    EXPECT_EQ(run_kernel("reference.ConvGrad", inputs, outputs(expected), attrs), nullptr);
    expect_noted();
    EXPECT_EQ(noted.dx, of_x);
    EXPECT_EQ(noted.dw, !of_x);
    EXPECT_FALSE(noted.dbias);
    expect_close(found.data(), numel(sizes), [&](int64_t i) { return expected[i]; }, 1e-5, 1e-5);
  }
}

// What the library would hold of its own at a time: images of dx, channels of dx where w is larger, channels of dw.
TEST_F(LibraryConvolution, LargeGradientsAreAskedForInParts) {
  set_parallel_for(nullptr, 4);
  struct Case {
    std::vector<int64_t> x, w;
    bool of_x;
    int calls;
  };
  for (const Case& c :
       {Case{{4, 16, 192, 192}, {1, 16, 1, 1}, true, 2}, Case{{2, 4160, 1, 1}, {256, 4160, 1, 1}, true, 2},
        Case{{2, 4160, 1, 1}, {256, 4160, 1, 1}, false, 2}}) {
    noted = {};
    const std::vector<int64_t> y = {c.x[0], c.w[0], c.x[2], c.x[3]};
    const std::vector<float> x_data = random_floats(numel(c.x), 1), w_data = random_floats(numel(c.w), 2),
                             dy_data = random_floats(numel(y), 3);
    const std::vector<TensorRef> inputs = {floats(dy_data.data(), y, channels_last(y)),
                                           floats(x_data.data(), c.x, channels_last(c.x)), floats(w_data.data(), c.w)};
    const std::vector<int64_t>& sizes = c.of_x ? c.x : c.w;
    const std::vector<int64_t> lies = c.of_x ? channels_last(sizes) : std::vector<int64_t>{sizes[1], 1, 1, 1};
    std::vector<float> found(numel(sizes), NAN), expected(numel(sizes), NAN);
    const auto outputs = [&](std::vector<float>& to) {
      const TensorRef wanted = floats(to.data(), sizes, lies);
      return c.of_x ? std::vector<TensorRef>{wanted, {}, {}} : std::vector<TensorRef>{{}, wanted, {}};
    };
    EXPECT_EQ(run_kernel("aten.ConvGrad", inputs, outputs(found), plain_attrs()), nullptr);
    EXPECT_EQ(run_kernel("reference.ConvGrad", inputs, outputs(expected), plain_attrs()), nullptr);
    EXPECT_EQ(noted.calls, c.calls);
    expect_close(found.data(), numel(sizes), [&](int64_t i) { return expected[i]; }, 1e-4, 1e-4);
  }
}

// Groups are cut between groups.
TEST_F(LibraryConvolution, GroupsAreAskedForInParts) {
  set_parallel_for(nullptr, 1);
  const std::vector<int64_t> x_sizes = {1, 1024, 2, 1}, w_sizes = {1024, 256, 1, 1}, y_sizes = {1, 1024, 2, 1};
  const BoundAttrs grouped = window_attrs({0, 0, 0, 0}, {1, 1}, {1, 1}, 4);
  const std::vector<float> of_x = random_floats(numel(x_sizes), 1), of_w = random_floats(numel(w_sizes), 2),
                           of_dy = random_floats(numel(y_sizes), 3);
  const std::vector<TensorRef> inputs = {floats(of_dy.data(), y_sizes, channels_last(y_sizes)),
                                         floats(of_x.data(), x_sizes, channels_last(x_sizes)),
                                         floats(of_w.data(), w_sizes)};
  std::vector<float> found(numel(w_sizes), NAN), expected(numel(w_sizes), NAN);
  EXPECT_EQ(run_kernel("aten.ConvGrad", inputs, {{}, floats(found.data(), w_sizes), {}}, grouped), nullptr);
  EXPECT_EQ(noted.calls, 2);
  EXPECT_EQ(noted.groups, 2);
  EXPECT_EQ(run_kernel("reference.ConvGrad", inputs, {{}, floats(expected.data(), w_sizes), {}}, grouped), nullptr);
  expect_close(found.data(), numel(w_sizes), [&](int64_t i) { return expected[i]; }, 1e-4, 1e-4);
}

// Two copies of w are made: some channels at a time where that is much.
TEST_F(LibraryConvolution, ManyFiltersAreAskedForInParts) {
  set_parallel_for(nullptr, 4);
  const std::vector<int64_t> x_sizes = {2, 4160, 1, 1}, w_sizes = {256, 4160, 1, 1}, y_sizes = {2, 256, 1, 1};
  const std::vector<float> of_x = random_floats(numel(x_sizes), 1), of_w = random_floats(numel(w_sizes), 2),
                           of_bias = random_floats(256, 3);
  const std::vector<TensorRef> inputs = {floats(of_x.data(), x_sizes, channels_last(x_sizes)),
                                         floats(of_w.data(), w_sizes), floats(of_bias.data(), {256})};
  std::vector<float> found(numel(y_sizes), NAN), expected(numel(y_sizes), NAN);
  const std::vector<int64_t> lies = channels_last(y_sizes);
  EXPECT_EQ(run_kernel("aten.Conv", inputs, {floats(found.data(), y_sizes, lies)}, plain_attrs()), nullptr);
  EXPECT_EQ(run_kernel("reference.Conv", inputs, {floats(expected.data(), y_sizes, lies)}, plain_attrs()), nullptr);
  EXPECT_EQ(noted.calls, 2);
  expect_close(found.data(), numel(y_sizes), [&](int64_t i) { return expected[i]; }, 1e-4, 1e-4);
}

TEST_F(LibraryConvolution, ErrorsOfTheLibraryAreHandedOn) {
  Libraries libraries;
  libraries.convolution = [](const LibraryTensor&, const LibraryTensor&, const LibraryTensor*, const ConvolutionWindow&,
                             const LibraryTensor&) { return "no memory"; };
  set_libraries(libraries);
  std::vector<float> y(numel(kY));
  EXPECT_STREQ(run_kernel("aten.Conv", {floats(x.data(), kX), floats(w.data(), kW)}, {floats(y.data(), kY)}, attrs),
               "no memory");
}

TEST_F(LibraryConvolution, RefusesWithTheReason) {
  const auto refusal = [&](DType dtype, int rank, const BoundAttrs& asked, const char* name = "aten.Conv") {
    const OperandInfo operand{dtype, rank, true};
    const OperandInfo inputs[] = {operand, operand};
    return find_kernel(name)->supports({Op::kConv, inputs, {&operand, 1}, &asked});
  };
  EXPECT_EQ(refusal(DType::kF32, 4, attrs), nullptr);
  EXPECT_STREQ(refusal(DType::kF64, 4, attrs), "takes one dtype only");
  EXPECT_EQ(refusal(DType::kF64, 4, attrs, "aten.Conv.f64"), nullptr);
  EXPECT_STREQ(refusal(DType::kF32, 6, attrs), "not 1 to 3 spatial dims");
  EXPECT_STREQ(refusal(DType::kF32, 4, window_attrs({1, 2, 1, 1})), "pads differ at the two ends");
  EXPECT_STREQ(refusal(DType::kF32, 4, window_attrs({-1, 2, -1, 2})), "negative pads");
  EXPECT_STREQ(refusal(DType::kF32, 4, {}), "symbolic pads");
  set_libraries({});
  EXPECT_STREQ(refusal(DType::kF32, 4, attrs), "no convolution library is loaded");
}

}  // namespace
}  // namespace lowtide::cpu
