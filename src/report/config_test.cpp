#include "report/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/check.h"

namespace lowtide {
namespace {

// The codes of configurations.
constexpr int kNone = 0, kConfigRecompute = 1, kConfigRecomputeWithCompromise = 2, kConfigCompress = 3;
using Requests = std::vector<MemoryRequest>;

std::string error_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

// A file that is gone after the test.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& name, std::string_view text)
      : path_(std::filesystem::path(testing::TempDir()) / name) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(MemoryConfig, ReadsPlans) {
  EXPECT_EQ(parse_memory_config(""), Requests{});
  EXPECT_EQ(parse_memory_config("  "), Requests{});
  EXPECT_EQ(parse_memory_config("FastGelu+:1:12"), (Requests{{"FastGelu+", kConfigRecompute, 12}}));
  EXPECT_EQ(
      parse_memory_config("Cast+Where+Softmax+:2:-1,A+:0:0,B+:3:5"),
      (Requests{
          {"Cast+Where+Softmax+", kConfigRecomputeWithCompromise, -1}, {"A+", kNone, 0}, {"B+", kConfigCompress, 5}}));
}

TEST(MemoryConfig, IgnoresSpacesAroundParts) {
  EXPECT_EQ(parse_memory_config(" FastGelu+ : 1 :12 ,\n Cast+:2: -1 "),
            (Requests{{"FastGelu+", kConfigRecompute, 12}, {"Cast+", kConfigRecomputeWithCompromise, -1}}));
}

// Joined by scripts that leave parts out.
TEST(MemoryConfig, DropsEmptyParts) {
  for (std::string_view text : {"A+:1:-1,", ",A+:1:-1", " , ,A+:1:-1 , ,"})
    EXPECT_EQ(parse_memory_config(text), (Requests{{"A+", kConfigRecompute, -1}})) << text;
  EXPECT_EQ(parse_memory_config("A+:1:-1,,B+:1:-1"),
            (Requests{{"A+", kConfigRecompute, -1}, {"B+", kConfigRecompute, -1}}));
  EXPECT_EQ(parse_memory_config(","), Requests{});
}

TEST(MemoryConfig, ReadsTargetsOfCalls) {
  EXPECT_EQ(parse_memory_config("aten::sort.stable+Cast+:1:-1"),
            (Requests{{"aten::sort.stable+Cast+", kConfigRecompute, -1}}));
}

// ORTModule keyed by the cluster alone, so that the second request here silently replaced the first.
TEST(MemoryConfig, KeepsBothTypesOfACluster) {
  EXPECT_EQ(parse_memory_config("X+:1:-1,X+:2:3"),
            (Requests{{"X+", kConfigRecompute, -1}, {"X+", kConfigRecomputeWithCompromise, 3}}));
}

TEST(MemoryConfig, LastOfTheSameClusterAndTypeHolds) {
  EXPECT_EQ(parse_memory_config("X+:1:-1,Y+:1:1,X+:1:3"),
            (Requests{{"X+", kConfigRecompute, 3}, {"Y+", kConfigRecompute, 1}}));
}

TEST(MemoryConfig, Type0TakesBackWhatWasAskedBefore) {
  EXPECT_EQ(parse_memory_config("X+:1:-1,X+:2:-1,Y+:1:-1,X+:0:-1"),
            (Requests{{"Y+", kConfigRecompute, -1}, {"X+", kNone, -1}}));
  EXPECT_EQ(parse_memory_config("X+:0:-1,X+:1:-1"), (Requests{{"X+", kConfigRecompute, -1}}));
}

TEST(MemoryConfig, WritesWhatItReads) {
  const std::string text = "aten::sort.stable+Cast+:1:-1,Y+:3:0";
  const std::string written = join(parse_memory_config(text), ",",
                                   [](std::ostream& out, const MemoryRequest& request) { out << to_string(request); });
  EXPECT_EQ(written, text);
}

TEST(MemoryConfig, SaysWhereAndWhatIsWrong) {
  struct Case {
    std::string_view config;
    int position;
    std::string_view expected, found;
  };
  constexpr std::string_view kCluster = "a cluster: op types, each followed by '+'";
  constexpr std::string_view kType = "the type: 0 (off)", kCount = "the count: -1 (all)";
  const Case cases[] = {
      {"FastGelu+", 9, "':' and the type", "the end"},
      {"FastGelu+:1", 11, "':' and the count", "the end"},
      {"FastGelu+:1:12:3", 14, "',' or the end", "':'"},
      {"FastGelu:1:12", 8, "'+' after the op type 'FastGelu'", "':'"},
      {"Cast+Where:1:12", 10, "'+' after the op type 'Where'", "':'"},
      {":1:12", 0, kCluster, "':'"},
      {"+:1:12", 0, kCluster, "'+'"},
      {"A++:1:12", 2, "':' and the type", "'+'"},
      {"A-B+:1:12", 1, "'+' after the op type 'A'", "'-B+'"},
      {"9A+:1:12", 0, kCluster, "'9A+'"},
      {"A+::1:12", 3, kType, "':'"},
      {"A+:4:12", 3, kType, "'4'"},
      {"A+:-1:12", 3, kType, "'-1'"},
      {"A+:1x:12", 3, kType, "'1x'"},
      {"A+:one:12", 3, kType, "'one'"},
      {"A+:1:-2", 5, kCount, "'-2'"},
      {"A+:1:12abc", 5, kCount, "'12abc'"},
      {"A+:1:1.5", 5, kCount, "'1.5'"},
      {"A+:1:99999999999", 5, kCount, "'99999999999'"},
      {"A+:1:", 5, kCount, "the end"},
      {"A+:1:1 2", 7, "',' or the end", "'2'"},
      {"A+:1:1,,:1:1", 8, kCluster, "':'"},
      {"A+:1:1;B+:1:1", 5, kCount, "'1;B+'"},
      {"  A+ B+:1:1", 5, "':' and the type", "'B+'"},
  };
  for (const Case& item : cases) {
    const std::string message = error_of([&] { parse_memory_config(item.config); });
    EXPECT_TRUE(message.starts_with(concat("memory configuration, character ", item.position, ": expected ")))
        << item.config << ": " << message;
    EXPECT_NE(message.find(item.expected), std::string::npos) << item.config << ": " << message;
    EXPECT_NE(message.find(concat(", found ", item.found, " in ")), std::string::npos)
        << item.config << ": " << message;
    EXPECT_NE(message.find("Example: FastGelu+:1:12"), std::string::npos) << message;
  }
}

// Whatever is written there: it is read, and reads back as written, or refused with words.
TEST(MemoryConfig, RefusesNonsenseWithWords) {
  constexpr std::string_view kPieces[] = {"A", "Cast", "+",  "+", ":",          ":",  "1", "-1",   "2",  "12abc",
                                          ",", " ",    "::", ".", "9999999999", "\"", "[", "\xff", "\n", "{"};
  std::mt19937 random(5);
  int read = 0;
  for (int run = 0; run < 20000; ++run) {
    std::string text = run % 2 == 0 ? "" : "A+:1:-1";
    for (auto pieces = random() % 8; pieces > 0; --pieces) text += kPieces[random() % std::size(kPieces)];
    try {
      const Requests requests = parse_memory_config(text);
      const std::string written =
          join(requests, ",", [](std::ostream& out, const MemoryRequest& request) { out << to_string(request); });
      EXPECT_EQ(parse_memory_config(written), requests) << text;
      read += requests.empty() ? 0 : 1;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string_view(error.what()).find("expected"), std::string_view::npos) << text;
    }
  }
  EXPECT_GT(read, 1000);
}

TEST(MemoryConfig, ReadsJsonFiles) {
  // Rows of the plan table may be pasted whole; older versions wrote blank strings for what a level left out.
  const TemporaryFile file("lowtide_plans.json",
                           " [ \"FastGelu+:1:12\" ,\n\"A+:1:-1,B+:1:-1\", \"\", \"A\\u002b:1:2\"] \n");
  EXPECT_EQ(parse_memory_config(file.path()),
            (Requests{{"FastGelu+", kConfigRecompute, 12}, {"A+", kConfigRecompute, 2}, {"B+", kConfigRecompute, -1}}));
  const TemporaryFile empty("lowtide_empty.json", "[]");
  EXPECT_EQ(parse_memory_config(concat(" ", empty.path(), " ")), Requests{});
}

TEST(MemoryConfig, TakesAnExistingFileOfAnyName) {
  const TemporaryFile file("lowtide_plans_without_extension", "[\"A+:1:-1\"]");
  EXPECT_EQ(parse_memory_config(file.path()), (Requests{{"A+", kConfigRecompute, -1}}));
}

TEST(MemoryConfig, NamesTheFileThatIsWrong) {
  struct Case {
    std::string_view json, expected;
  };
  const Case cases[] = {
      {"", ", character 0: expected a JSON array of strings, found the end"},
      {"{\"A+\": 1}", ", character 0: expected a JSON array of strings, found '{"},
      {"[\"A+:1:1\",]", ", character 10: expected a string in double quotes, found ']'"},
      {"[3]", ", character 1: expected a string in double quotes, found '3]'"},
      {"[\"A+:1:1\"", ", character 9: expected ',' or ']', found the end"},
      {"[\"A+:1:1", ", character 8: expected '\"', found the end"},
      {"[\"A+:1:1\"] x", ", character 11: expected the end of the file, found 'x'"},
      {"[\"\\x\"]", ", character 3: expected one of \" \\ / b f n r t u after a backslash, found 'x"},
      {"[\"\\u12g4\"]", ", character 6: expected four hexadecimal digits after \\u, found 'g4"},
      {"[\"\\ud800\"]", ", character 8: expected \\u and the second half of a surrogate pair"},
      {"[\"A+\n:1:1\"]", ", character 4: expected '\"' on the same line"},
      {"[\"A+:1:1\", \"B+:1:x\"]", ", string 2, character 5: expected the count"},
  };
  for (const Case& item : cases) {
    const TemporaryFile file("lowtide_bad.json", item.json);
    const std::string message = error_of([&] { parse_memory_config(file.path()); });
    EXPECT_TRUE(message.starts_with(file.path() + std::string(item.expected))) << item.json << ": " << message;
    EXPECT_NE(message.find("FastGelu+:1:12"), std::string::npos) << message;
  }
  EXPECT_NE(error_of([] { parse_memory_config("nowhere.json"); }).find("nowhere.json: expected a JSON file"),
            std::string::npos);
}

TEST(ProbeConfig, ReadsLevelAndBoundary) {
  auto read = [](std::string_view text) {
    const ProbeConfig probe = parse_probe_config(text);
    return std::pair(probe.level, probe.boundary);
  };
  EXPECT_EQ(read(""), std::pair(1, 0));
  EXPECT_EQ(read("0"), std::pair(0, 0));
  EXPECT_EQ(read("1:1"), std::pair(1, 1));
  EXPECT_EQ(read(" 0 : 1 "), std::pair(0, 1));
}

TEST(ProbeConfig, SaysWhereAndWhatIsWrong) {
  for (const auto& [text, position] : {std::pair("2", 0), {"1:2", 2}, {"1:", 2}, {"x", 0}, {"1:0:1", 3}, {"1,0", 1}}) {
    const std::string message = error_of([&] { parse_probe_config(text); });
    EXPECT_TRUE(message.starts_with(concat("probe configuration, character ", position, ": expected ")))
        << text << ": " << message;
    EXPECT_NE(message.find("Example: 1:0"), std::string::npos) << message;
  }
}

TEST(NearestClusters, CountsEditsOfWholeOpTypes) {
  const std::vector<std::string> known = {"FastGelu+", "Gelu+", "Reshape+Where+BiasSoftmax+", "Cast+Where+Softmax+"};
  // Every one-type cluster is one edit away; the characters decide.
  EXPECT_EQ(nearest_clusters("FastGelo+", known, 2), (std::vector<std::string>{"FastGelu+", "Gelu+"}));
  EXPECT_EQ(nearest_clusters("Reshape+Where+Softmax+", known, 2),
            (std::vector<std::string>{"Reshape+Where+BiasSoftmax+", "Cast+Where+Softmax+"}));
  EXPECT_EQ(nearest_clusters("BiasGelu+", {}, 3), std::vector<std::string>{});
  EXPECT_EQ(nearest_clusters("A+", {"C+", "B+", "C+"}, 5), (std::vector<std::string>{"B+", "C+"}));
}

}  // namespace
}  // namespace lowtide
