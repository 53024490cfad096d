// The text form over random graphs, and the parser over texts that nobody would write. LOWTIDE_FUZZ_SEED and
// LOWTIDE_FUZZ_RUNS (default 1 and 20000) choose another or longer search.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "random_graph.h"

namespace lowtide::fuzz {
namespace {

uint64_t from_environment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

class TextFuzz : public testing::Test {
 protected:
  void SetUp() override { std::printf("seed %llu, %llu runs\n", (unsigned long long)seed, (unsigned long long)runs); }
  const uint64_t seed = from_environment("LOWTIDE_FUZZ_SEED", 1);
  const uint64_t runs = from_environment("LOWTIDE_FUZZ_RUNS", 20000);
};

TEST_F(TextFuzz, RandomGraphsReadBack) {
  for (uint64_t run = 0; run < runs / 10; ++run) {
    const Graph graph = random_text_graph(seed * 1000003 + run);
    ASSERT_NO_THROW(verify(graph)) << "run " << run << '\n' << print(graph);
    const std::string text = print(graph);
    std::string again;
    ASSERT_NO_THROW(again = print(parse(text))) << "run " << run << '\n' << text;
    ASSERT_EQ(again, text) << "run " << run;
    ASSERT_EQ(print(graph.clone()), text) << "run " << run;
  }
}

// One random edit of a text: a byte, a piece of itself or a word of the grammar inserted, removed or repeated.
std::string mutated(std::string text, std::mt19937_64& random) {
  const auto pick = [&](size_t count) { return count ? random() % count : 0; };
  const std::string_view words[] = {"graph",
                                    "%x",
                                    "_",
                                    "=",
                                    "(",
                                    ")",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    "//",
                                    "-",
                                    "**",
                                    "min(",
                                    "\"",
                                    "inf",
                                    "1e5",
                                    "return",
                                    "where",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "// x",
                                    "aten::",
                                    "YieldOp(grads=[0])",
                                    "FusedGroup",
                                    "f32[",
                                    ",",
                                    ":",
                                    "\n",
                                    "%",
                                    "*",
                                    "+",
                                    "0",
                                    "update",
                                    "gradient"};
  for (size_t edits = 1 + pick(4); edits > 0; --edits) {
    const size_t at = pick(text.size() + 1), length = pick(std::min<size_t>(text.size() - at, 20) + 1);
    switch (pick(6)) {
      case 0: text.insert(at, 1, static_cast<char>(pick(256))); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(pick(text.size() + 1), pick(40))); break;
      case 3: text.insert(at, words[pick(std::size(words))]); break;
      case 4: text.replace(at, length, words[pick(std::size(words))]); break;
      default: {
        std::string many;
        const std::string_view word = words[pick(std::size(words))];
        for (size_t i = pick(200); i > 0; --i) many += word;
        text.insert(at, many);
      }
    }
  }
  return text;
}

TEST_F(TextFuzz, DamagedTextsAreReadOrRefused) {
  std::mt19937_64 random(seed);
  uint64_t read = 0;
  for (uint64_t run = 0; run < runs; ++run) {
    const std::string text = mutated(print(random_text_graph(seed * 1000003 + run % 100)), random);
    try {
      const std::string once = print(parse(text));
      ASSERT_EQ(print(parse(once)), once) << "run " << run << '\n' << text;
      ++read;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kInvalidGraph) << "run " << run << ": " << error.what() << '\n' << text;
    } catch (const std::exception& error) {
      FAIL() << "run " << run << ": " << error.what() << '\n' << text;
    }
  }
  // Both ways must have been taken for the run to mean something.
  EXPECT_GT(read, runs / 100);
  EXPECT_LT(read, runs);
}

}  // namespace
}  // namespace lowtide::fuzz
