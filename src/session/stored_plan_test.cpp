// A plan written by one session and read by another: the same steps; a text that is not whole, or not for this graph,
// is an error and nothing worse.
#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "ir/parse.h"
#include "program/text.h"
#include "session/session.h"

namespace lowtide {
namespace {

constexpr char kModel[] = R"(
graph @net(%x: f32[b, 12] input grad, %w: f32[8, 12] param, %bias: f32[8] param) where b in [1, 64] {
  %h: f32[b, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %w, %bias
  %a: f32[b, 8] = Gelu %h
  %d: f32[b, 8] = Dropout(ratio=0.25, stream=3) %a
  %s: f32[b, 8] = Softmax(axis=1) %d
  %m: f32[b, 8] = Mul %s, %a
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %m
  return %loss output
}
)";

constexpr int64_t kRows = 5;

SessionOptions with_recompute() {
  SessionOptions options;
  options.memory_config = "Gelu+:1:-1,Softmax+:1:-1,Erf+:1:-1";
  return options;
}

TensorRef tensor(std::vector<float>& values, std::initializer_list<int64_t> sizes) {
  TensorRef ref;
  ref.data = values.data();
  ref.rank = static_cast<int32_t>(sizes.size());
  ref.present = true;
  std::copy(sizes.begin(), sizes.end(), ref.sizes);
  for (int i = ref.rank - 1, stride = 1; i >= 0; stride *= static_cast<int>(ref.sizes[i--])) ref.strides[i] = stride;
  return ref;
}

// The loss, then the gradients.
std::vector<std::vector<float>> step(Session& session) {
  std::mt19937 random(7);
  auto draw = [&](size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    return values;
  };
  std::vector<float> x = draw(kRows * 12), w = draw(8 * 12), bias = draw(8), one{1.0f};
  const std::vector<TensorRef> inputs{tensor(x, {kRows, 12}), tensor(w, {8, 12}), tensor(bias, {8})};
  std::shared_ptr<RunState> state;
  std::vector<OwnedTensor> found = session.forward(inputs, 11, &state);
  std::vector<TensorRef> saved;
  for (int input : session.saved_inputs()) saved.push_back(inputs[static_cast<size_t>(input)]);
  const std::vector<TensorRef> incoming{tensor(one, {})};
  for (OwnedTensor& gradient : session.backward(*state, incoming, saved).tensors())
    found.push_back(std::move(gradient));
  std::vector<std::vector<float>> values;
  for (const OwnedTensor& each : found)
    values.emplace_back(each.ref.as<float>(), each.ref.as<float>() + each.ref.numel());
  return values;
}

std::string stored(const SessionOptions& options = {}) {
  Session session(parse(kModel), options);
  return session.stored_plan(std::vector<int64_t>{kRows});
}

TEST(StoredPlan, RunsAsTheSessionThatWroteIt) {
  for (const SessionOptions& options : {SessionOptions{}, with_recompute()}) {
    Session first(parse(kModel), options);
    const std::vector<int64_t> sizes{kRows};
    Session second(parse(kModel), options, first.stored_plan(sizes));
    EXPECT_EQ(step(first), step(second));
    EXPECT_EQ(first.memory(sizes).peak_bytes, second.memory(sizes).peak_bytes);
    EXPECT_EQ(first.gradient_sources(), second.gradient_sources());
    EXPECT_EQ(first.gradient_reads(), (std::vector<int>{0, 1, 2}));
    EXPECT_EQ(first.gradient_reads(), second.gradient_reads());
    EXPECT_EQ(first.explain(), second.explain());
    EXPECT_EQ(first.memory_outcomes().size(), second.memory_outcomes().size());
    ASSERT_EQ(second.report().seconds.size(), 1u);
    EXPECT_EQ(second.report().seconds[0].first, "stored plan");
    // Made when asked for.
    EXPECT_EQ(first.training_text(), second.training_text());
    EXPECT_EQ(first.before_memory_text(), second.before_memory_text());
    EXPECT_EQ(first.memory_stat("", "", sizes, true).insight, second.memory_stat("", "", sizes, true).insight);
    // What was read can be written again.
    EXPECT_EQ(first.stored_plan(sizes), second.stored_plan(sizes));
  }
}

void expect_refused(const std::string& text, const SessionOptions& options = {}, const char* model = kModel) {
  try {
    Session session(parse(model), options, text);
    FAIL() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram) << error.what();
  }
}

TEST(StoredPlan, OtherOptionsAndGraphsRefuseIt) {
  SessionOptions inference, guard, casts, kernels;
  inference.training = false;
  guard.guard = true;
  casts.cast_level = 2;
  kernels.disabled_kernels = {"cpu"};
  for (const SessionOptions& options : {inference, guard, casts, kernels, with_recompute()})
    expect_refused(stored(), options);
  std::string other = kModel;
  other.replace(other.find("0.25"), 4, "0.50");
  expect_refused(stored(), {}, other.c_str());
}

TEST(StoredPlan, DamagedTextsAreRefused) {
  const std::string good = stored();
  for (size_t length = 1; length < good.size(); length += 97) expect_refused(good.substr(0, length));
  expect_refused(good + "step");
  expect_refused(
      "\x7f"
      "ELF no plan");
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 7);
    expect_refused(bad);
  }
}

// Signed again, a damaged plan is only as wrong as what it says: refused, or bound within its buffers.
TEST(StoredPlan, WhateverItSaysItIsAnErrorOrAPlan) {
  const std::string good = stored(with_recompute());
  const size_t header = good.find("lowered ");
  const size_t program = good.find("lowtide program");
  std::mt19937 random(2);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string body = good.substr(header);
    const size_t end = body.rfind("end ");
    const size_t at = random() % end;
    if (body[at] >= '0' && body[at] <= '9')
      body[at] = static_cast<char>('0' + random() % 10);
    else
      body.erase(at, 1 + random() % 3);
    const size_t begin = std::min(body.find("lowtide program"), program - header);
    if (begin > body.size() || body.rfind("\nend ") == std::string::npos) continue;
    body.resize(body.rfind("\nend ") + 1);
    body += concat("end ", checksum(std::string_view(body).substr(begin)), "\n");
    std::string text = good.substr(0, good.find("checksum "));
    text += concat("checksum ", checksum(body), "\n", body);
    try {
      Session session(parse(kModel), with_recompute(), text);
      session.memory(std::vector<int64_t>{kRows});
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace lowtide
