// Captured graphs and plans as a file of the cache brings them, changed by somebody who signs them again: read and run,
// or refused with an Error, and nothing else. Under the sanitizers nothing leaves its memory either.
// LOWTIDE_FUZZ_SEED and LOWTIDE_FUZZ_RUNS (default 1 and 200) choose another or longer search; LOWTIDE_FUZZ_LAST names
// a file for the text that is tried next, for who looks into a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "base/check.h"
#include "ir/parse.h"
#include "ir/verify.h"
#include "program/text.h"
#include "session/session.h"

namespace lowtide::fuzz {
namespace {

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

// Rows, windows, indices, reductions, views, an update, a random op.
constexpr const char* kModels[] = {R"(
graph @rows(%x: f32[b, 12] input grad, %w: f32[8, 12] param, %bias: f32[8] param) where b in [1, 64] {
  %h: f32[b, 8] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %w, %bias
  %a: f32[b, 8] = Gelu %h
  %d: f32[b, 8] = Dropout(ratio=0.25, stream=3) %a
  %s: f32[b, 8] = Softmax(axis=1) %d
  %m: f32[b, 8] = Mul %s, %a
  %loss: f32[] = ReduceMean(axes=[0, 1], keepdims=false) %m
  return %loss output
}
)",
                                   R"(
graph @calls(%x: f32[b, 2, 6, 6] input grad, %w: f32[3, 2, 3, 3] param, %ids: i64[b] input, %table: f32[5, 12] param, %gain: f32[12] param) where b in [1, 64] {
  %c: f32[b, 3, 4, 4] = aten::conv2d.default(dilation=[1, 1], groups=1, operands=["input", "weight"], padding=[0, 0], stride=[1, 1]) %x, %w
  %r: f32[b, 3, 4, 4] = aten::relu.default(operands=["self"]) %c
  %p: f32[b, 3, 2, 2], %places: i64[b, 3, 2, 2] = aten::max_pool2d_with_indices.default(ceil_mode=false, dilation=[1, 1], kernel_size=[2, 2], operands=["self"], padding=[0, 0], stride=[2, 2]) %r
  %v: f32[b, 12] = aten::view.default(operands=["self"], size=[b, 12]) %p
  %e: f32[b, 12] = aten::embedding.default(operands=["weight", "indices"], padding_idx=-1, scale_grad_by_freq=false, sparse=false) %table, %ids
  %z: f32[b, 12] = aten::add.Tensor(alpha=1, operands=["self", "other"]) %v, %e
  %n: f32[b, 12] = aten::layer_norm.default(eps=1e-05, normalized_shape=[12], operands=["input", "weight"]) %z, %gain
  %t: f32[12, b] = aten::t.default(operands=["self"]) %n
  %q: f32[12, 12] = aten::mm.default(operands=["self", "mat2"]) %t, %n
  %o: f32[12, 12] = aten::elu.default(alpha=1.0, input_scale=1, operands=["self"], scale=1) %q
  %loss: f32[] = aten::mean.default(operands=["self"]) %o
  return %loss output
}
)"};
constexpr int64_t kRows = 5;

struct Tensors {
  std::vector<std::vector<char>> bytes;
  std::vector<TensorRef> refs;
};

// Of the graph's inputs at kRows.
Tensors inputs_of(const Graph& graph) {
  std::mt19937 random(7);
  Tensors found;
  for (const GraphInput& input : graph.inputs()) {
    const TensorType& type = graph.type(input.value);
    TensorRef ref;
    ref.dtype = type.dtype;
    ref.present = true;
    ref.rank = static_cast<int32_t>(type.shape.size());
    int64_t numel = 1;
    for (int i = ref.rank - 1; i >= 0; --i) {
      ref.sizes[i] = evaluate(type.shape[static_cast<size_t>(i)], {{"b", kRows}});
      ref.strides[i] = numel;
      numel *= ref.sizes[i];
    }
    found.bytes.emplace_back(static_cast<size_t>(numel * size_bytes(type.dtype)));
    ref.data = found.bytes.back().data();
    for (int64_t i = 0; i < numel; ++i) {
      if (type.dtype == DType::kI64) {
        ref.as<int64_t>()[i] = static_cast<int64_t>(random() % 5);
      } else {
        ref.as<float>()[i] = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
      }
    }
    found.refs.push_back(ref);
  }
  return found;
}

// A step, with whatever the session says that it wants: the bytes of its outputs, then of its gradients.
std::vector<std::string> run(Session& session, const Tensors& given) {
  std::shared_ptr<RunState> state;
  const std::vector<OwnedTensor> outputs = session.forward(given.refs, 11, &state);
  std::vector<TensorRef> saved, incoming;
  for (int input : session.saved_inputs()) saved.push_back(given.refs.at(static_cast<size_t>(input)));
  for (int output : session.grad_outputs()) incoming.push_back(outputs.at(static_cast<size_t>(output)).ref);
  std::vector<std::string> bytes;
  auto add = [&](const TensorRef& tensor) {
    bytes.emplace_back(tensor.as<char>(), static_cast<size_t>(tensor.numel() * size_bytes(tensor.dtype)));
  };
  for (const OwnedTensor& output : outputs) add(output.ref);
  for (const OwnedTensor& gradient : session.backward(*state, incoming, saved).tensors()) add(gradient.ref);
  return bytes;
}

class StoredFuzz : public testing::Test {
 protected:
  void SetUp() override {
    std::printf("seed %llu, %llu runs\n", (unsigned long long)seed, (unsigned long long)runs);
    std::fflush(stdout);
  }

  // What is tried next, for who looks into a crash.
  static void note(const std::string& text) {
    const char* path = std::getenv("LOWTIDE_FUZZ_LAST");
    if (path == nullptr) return;
    std::ofstream(path) << text;
  }

  size_t pick(size_t count) { return count ? random() % count : 0; }

  // One change of what a text says: a number, a word for another, a line, the order.
  std::string mutated(const std::string& text) {
    std::vector<std::pair<size_t, size_t>> numbers, words;
    for (size_t at = 0; at < text.size();) {
      const auto is_digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
      const auto is_word = [&](size_t i) { return i < text.size() && (std::isalnum(text[i]) || text[i] == '_'); };
      size_t end = at;
      if (is_digit(at) && (at == 0 || !is_word(at - 1))) {
        while (is_digit(end)) ++end;
        numbers.emplace_back(at, end - at);
      } else if (is_word(at)) {
        while (is_word(end)) ++end;
        words.emplace_back(at, end - at);
      }
      at = std::max(end, at + 1);
    }
    std::vector<size_t> lines{0};
    for (size_t at = 0; (at = text.find('\n', at)) != text.npos && at + 1 < text.size();) lines.push_back(++at);
    const auto line = [&](size_t index) {
      return text.substr(lines[index], text.find('\n', lines[index]) + 1 - lines[index]);
    };
    std::string changed = text;
    const size_t one = pick(lines.size()), other = pick(lines.size());
    switch (pick(8)) {
      case 0:
      case 1:
      case 2: {  // a number: an extreme, a near one, another of the text
        const auto [at, length] = numbers[pick(numbers.size())];
        constexpr const char* kExtremes[] = {"0",
                                             "1",
                                             "2",
                                             "-1",
                                             "64",
                                             "2147483647",
                                             "4294967296",
                                             "1099511627776",
                                             "4611686018427387904",
                                             "9223372036854775807",
                                             "-9223372036854775808"};
        const auto [from, count] = numbers[pick(numbers.size())];
        return changed.replace(at, length, pick(2) ? kExtremes[pick(std::size(kExtremes))] : text.substr(from, count));
      }
      case 3: {  // a word for another
        const auto [at, length] = words[pick(words.size())];
        const auto [from, count] = words[pick(words.size())];
        return changed.replace(at, length, text.substr(from, count));
      }
      case 4: return changed.erase(lines[one], line(one).size());
      case 5: return changed.insert(lines[one], line(other));
      case 6: {  // two lines for each other
        const size_t first = std::min(one, other), second = std::max(one, other);
        const std::string above = line(first), below = line(second);
        changed.replace(lines[second], below.size(), above);
        return changed.replace(lines[first], above.size(), below);
      }
      default: {  // bytes
        const size_t at = pick(text.size());
        return pick(2) ? changed.erase(at, pick(20)) : changed.insert(at, std::string(1 + pick(3000), text[at]));
      }
    }
  }

  const uint64_t seed = from_environment("LOWTIDE_FUZZ_SEED", 1);
  const uint64_t runs = from_environment("LOWTIDE_FUZZ_RUNS", 200);
  std::mt19937_64 random{seed};
};

TEST_F(StoredFuzz, ChangedGraphsTrainOrAreRefused) {
  for (const char* model : kModels) {
    uint64_t trained = 0;
    for (uint64_t i = 0; i < runs; ++i) {
      std::string text = mutated(model);
      if (pick(3) == 0) text = mutated(text);
      note(text);
      try {
        Graph graph = parse(text);
        verify(graph);
        const Tensors given = inputs_of(parse(model));
        Session session(std::move(graph), {});
        run(session, given);
        ++trained;
      } catch (const Error&) {
      } catch (const std::exception& error) {
        // Of a graph from the exporter, another type would be our bug.
        EXPECT_TRUE(std::string_view(error.what()).find("its lowering gives") != std::string_view::npos)
            << "run " << i << ": " << error.what() << '\n'
            << text;
      }
    }
    EXPECT_GT(trained, runs / 50);
    EXPECT_LT(trained, runs);
  }
}

// Printed, parsed, bound and run: in guard mode too, and planned with and without recomputation.
TEST(StoredPlans, ThatAreReadGiveTheSameBits) {
  for (const char* model : kModels)
    for (const int level : {0, 1, 2}) {
      SessionOptions options;
      options.memory_level = level;
      const Tensors given = inputs_of(parse(model));
      Session planned(parse(model), options);
      const std::vector<std::string> expected = run(planned, given);
      ASSERT_GT(expected.size(), 3u);
      for (const bool guard : {false, true}) {
        options.guard = guard;
        Session writer(parse(model), options);
        Session reader(parse(model), options, writer.stored_plan(std::vector<int64_t>{kRows}));
        EXPECT_EQ(run(reader, given), expected) << model;
        EXPECT_EQ(print(parse_program(print(reader.program()))), print(reader.program()));
      }
    }
}

TEST_F(StoredFuzz, ChangedPlansTrainOrAreRefused) {
  for (const char* model : kModels) {
    const std::string good = Session(parse(model), {}).stored_plan(std::vector<int64_t>{kRows});
    const std::string key = good.substr(0, good.find("checksum "));
    const std::string before = good.substr(good.find("lowered "), good.find("lowtide program") - good.find("lowered "));
    const size_t begin = good.find("lowtide program");
    const std::string program = good.substr(begin, good.rfind("\nend ") + 1 - begin);
    const Tensors given = inputs_of(parse(model));
    uint64_t trained = 0;
    for (uint64_t i = 0; i < 2 * runs; ++i) {
      std::string head = before, rest = program;
      if (pick(10) == 0) {
        head = mutated(before);
      } else {
        rest = mutated(program);
        if (pick(3) == 0) rest = mutated(rest);
      }
      rest += concat("end ", checksum(rest), "\n");
      const std::string text = concat(key, "checksum ", checksum(head + rest), "\n", head, rest);
      note(text);
      try {
        Session session(parse(model), {}, text);
        run(session, given);
        ++trained;
      } catch (const Error&) {
      } catch (const std::exception& error) {
        ADD_FAILURE() << "run " << i << ": " << error.what() << '\n' << rest;
      }
    }
    EXPECT_GT(trained, runs / 50);
    EXPECT_LT(trained, 2 * runs);
  }
}

}  // namespace
}  // namespace lowtide::fuzz
