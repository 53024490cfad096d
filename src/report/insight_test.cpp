// The tables against golden/: those called ortmodule_… are the blocks of ORTModule's documents, word for word.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "base/text.h"
#include "report/insight_source.h"

namespace lowtide {
namespace {

// The codes of configurations.
constexpr int kInsightRecompute = 1, kInsightRecomputeWithCompromise = 2, kInsightCompress = 3;

std::string golden(const std::string& name) {
  std::ifstream in(concat("src/report/golden/", name), std::ios::binary);
  EXPECT_TRUE(in.good()) << "run from the repository's root";
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// What was found instead lies under the temporary folder, to be looked at and copied.
void expect_golden(const std::string& text, const std::string& name) {
  if (text == golden(name)) return;
  const std::string found = testing::TempDir() + name;
  std::ofstream(found, std::ios::binary) << text;
  ADD_FAILURE() << "diff src/report/golden/" << name << " " << found << "\n" << text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// One way to save the stash of a node; the first of a node says what is stashed.
struct Option {
  std::string_view cluster;
  int code = kInsightRecompute;
  double saved = 1;
  bool chosen = false;
};

// Nodes that stash alike, `count` of them.
struct Nodes {
  int count = 1;
  std::string_view shape;  // dims between commas
  DType dtype = DType::kF32;
  std::vector<Option> options;
  bool viewed = false;           // backward reads a view of it
  std::string_view prefix = {};  // of the dims' names
};

// The parts of an optimizer that has found these.
class Scenario {
 public:
  Scenario(const std::vector<Nodes>& found, std::string_view config) {
    requests_ = parse_memory_config(config);
    for (const Nodes& nodes : found)
      for (int i = 0; i < nodes.count; ++i) add(nodes);
    for (const MemoryRequest& request : requests_) selection_.outcomes.push_back({request, 0, 0});
  }

  InsightSource source() const {
    return {graph_, stashes_, layers_, candidates_, defaults_, clusters_, requests_, selection_, level};
  }
  // A Swish with a stash of this shape that is made again without being asked for.
  void add_default(std::string_view shape) {
    const TensorType type{DType::kF32, {parse_dim(shape)}};
    const NodeId node = graph_.add_node(Op::kSwish, {}, {type});
    Candidate candidate;
    candidate.strategy = &strategy::default_rematerialisation;
    candidate.entry = node;
    candidate.nodes = {node};
    candidate.outputs = {{graph_.node(node).outputs[0], 0, numel(type.shape) * 4, 1}};
    candidate.saving = candidate.outputs[0].bytes;
    defaults_.push_back(std::move(candidate));
  }
  Graph& graph() { return graph_; }
  std::vector<Candidate>& candidates() { return candidates_; }
  Selection& selection() { return selection_; }

  int level = 0;

 private:
  void add(const Nodes& nodes) {
    TensorType type{nodes.dtype, {}};
    std::istringstream dims{std::string(nodes.shape)};
    for (std::string dim; std::getline(dims, dim, ',');)
      type.shape.push_back(dim == "?" ? Dim::symbol("") : parse_dim(dim));
    const Dim bytes = numel(type.shape) * Dim(size_bytes(type.dtype));
    const NodeId node =
        graph_.add_node(Op::kCast, {}, {type}, {}, {"model.h.0", "model.py:41", OriginKind::kForward, ""});
    const ValueId value = graph_.node(node).outputs[0];
    std::vector<ValueId> reads = {value};
    if (nodes.viewed) reads.push_back(graph_.add_input("view", type, InputKind::kInput));
    stashes_.push_back({value, node, 0, reads, bytes});
    for (const Option& option : nodes.options) {
      Candidate candidate;
      candidate.strategy = find_strategy(option.code);
      clusters_.emplace_back(option.cluster);
      candidate.entry = node;
      candidate.outputs = {{value, 0, bytes, option.saved}};
      candidate.nodes = {node};
      if (option.code == kInsightRecomputeWithCompromise) {
        candidate.kept = {graph_.add_input("kept", {DType::kF16, type.shape}, InputKind::kInput)};
        candidate.kept_bytes = numel(type.shape) * 2;
      } else if (option.code == kInsightCompress) {
        candidate.kept_bytes = floordiv(bytes, 8);
      }
      candidate.saving = bytes - candidate.kept_bytes;
      if (option.chosen) selection_.chosen.push_back(static_cast<int32_t>(candidates_.size()));
      candidates_.push_back(std::move(candidate));
    }
  }

  Graph graph_;
  std::vector<Stash> stashes_;
  std::vector<Layer> layers_ = {{"model.h.0", {}}};
  std::vector<Candidate> candidates_;
  std::vector<std::string> clusters_;
  std::vector<Candidate> defaults_;
  std::vector<MemoryRequest> requests_;
  Selection selection_;
};

constexpr std::string_view kScores = "inputs_input_ids_dim0,32,inputs_input_ids_dim1,inputs_input_ids_dim1";
constexpr std::string_view kShorterScores = "inputs_input_ids_dim0,32,inputs_input_ids_dim1 - 1,inputs_input_ids_dim1";
constexpr std::string_view kHidden = "inputs_input_ids_dim0,inputs_input_ids_dim1,10240";
constexpr std::string_view kShorterHidden = "inputs_input_ids_dim0*(inputs_input_ids_dim1 - 1),10240";
constexpr std::string_view kShorterWidth = "inputs_input_ids_dim0*(inputs_input_ids_dim1 - 1),2560";
constexpr std::string_view kMask = "inputs_input_ids_dim0,1,1,inputs_input_ids_dim1";
constexpr DType kHalf = DType::kF16, kSingle = DType::kF32;

TEST(InsightSummary, LooksLikeOrtmodules) {
  // In another order than the table's: frequency descending, then what is stashed, descending.
  const std::vector<Nodes> found = {
      {1, kShorterWidth, kHalf, {{"Add+"}}},
      {1,
       kMask,
       kSingle,
       {{"Reshape+Unsqueeze+Unsqueeze+Cast+Sub+Mul+Cast+"}, {"Cast+", kInsightRecomputeWithCompromise, 0.5, true}}},
      {2, "?,2560", kHalf, {{"Reshape+"}}, true},
      {2, kHidden, kHalf, {{"FusedMatMul+"}}},
      {2, kScores, kHalf, {{"Cast+"}}},
      {2, kScores, kSingle, {{"Reshape+Where+BiasSoftmax+"}}},
      {1, kShorterHidden, kHalf, {{"BiasGelu+", kInsightRecompute, 1, true}}},
      {2, kHidden, kHalf, {{"BiasGelu+", kInsightRecompute, 1, true}}},
      {2, "inputs_input_ids_dim0,inputs_input_ids_dim1,2560", kHalf, {{"FusedMatMul+Add+FusedMatMul+Add+Add+Add+"}}},
      {1, kScores, kSingle, {{"Reshape+Where+"}}},
      {1, kShorterHidden, kHalf, {{"FusedMatMul+"}}},
      {1, kShorterScores, kHalf, {{"Cast+"}}},
      {1, kShorterScores, kSingle, {{"BiasSoftmax+"}}},
      {3, "inputs_input_ids_dim0,inputs_input_ids_dim1,32,240", kHalf, {{"FusedMatMul+Add+Reshape+"}}, true},
  };
  const Scenario scenario(found, "BiasGelu+:1:-1,Cast+:2:-1");
  const std::string text = insight_summary(scenario.source(), {});
  // Ours has one column more.
  std::string without_peaks;
  for (const std::string& line : lines_of(text))
    without_peaks += concat(line.starts_with("|") || line.starts_with("=") ? line.substr(0, 138) : line, "\n");
  EXPECT_EQ(without_peaks, golden("ortmodule_insight_summary.txt"));
}

TEST(InsightSummary, ShowsPeaksReuseAndEveryKindOfOption) {
  const std::vector<Nodes> found = {
      {2, "b,s,64", DType::kBool, {{"Less+", kInsightCompress, 0.875, true}}, true},
      {3, "b,s,64", kSingle, {{"FastGelu+"}, {"Cast+", kInsightRecomputeWithCompromise, 0.5}}},
  };
  Scenario scenario(found, "FastGelu+:1:2,Less+:3:-1,Cast+:2:0");
  scenario.selection().chosen = {0, 1, 2, 4};  // the first two FastGelus
  const std::string text = insight_summary(scenario.source(), [](const std::vector<int32_t>& candidates) {
    return 12'345'678'900 + candidates.front() * 100 + static_cast<int64_t>(candidates.size());
  });
  expect_golden(text, "insight_summary.txt");
}

TEST(InsightSummary, SaysWhatRules) {
  Scenario scenario({{1, "b", kSingle, {{"FastGelu+"}}}}, "");
  EXPECT_EQ(lines_of(insight_summary(scenario.source(), {}))[0], "MemoryInsight Summary - User config: not provided");
  scenario.level = 1;
  scenario.selection().chosen = {0};
  const std::string text = insight_summary(scenario.source(), {});
  EXPECT_EQ(lines_of(text)[0], "MemoryInsight Summary - User config: ORTMODULE_MEMORY_OPT_LEVEL=1");
  EXPECT_NE(text.find("Enabled, requested count=-1, actual applied count=1"), std::string::npos) << text;
}

std::vector<Nodes> documented_24_layers(int chosen) {
  constexpr std::string_view kCausal =
      "CumSum+Sub+Mul+Unsqueeze+Cast+Mul+Cast+Reshape+Mul+FusedMatMul+Add+Reshape+Cast+Where+Softmax+";
  constexpr std::string_view kAttention = "input_ids_dim0,16,input_ids_dim1,input_ids_dim1";
  constexpr std::string_view kWide = "input_ids_dim0,input_ids_dim1,4096";
  return {{23, kAttention, kSingle, {{kCausal}, {"Cast+Where+Softmax+", kInsightRecomputeWithCompromise, 0.5}}},
          {1, kAttention, kSingle, {{"Cast+Where+Softmax+", kInsightRecomputeWithCompromise, 0.5}}},
          {chosen, kWide, kSingle, {{"FastGelu+", kInsightRecompute, 1, true}}},
          {24 - chosen, kWide, kSingle, {{"FastGelu+"}}}};
}

TEST(OptimizerSummary, LooksLikeOrtmodules) {
  const std::vector<std::string> documented = lines_of(golden("ortmodule_optimizer_summary.txt"));
  const Scenario nothing(documented_24_layers(0), ""), half(documented_24_layers(12), "FastGelu+:1:12");
  // The page lost its line breaks.
  EXPECT_EQ(words_of(optimizer_summary(nothing.source())), words_of(documented.at(0)));
  const std::string text = optimizer_summary(half.source());
  EXPECT_EQ(words_of(text), words_of(documented.at(1)));
  expect_golden(text, "optimizer_summary.txt");
  EXPECT_NE(text.find(" x 4096 x   Frequency:24\n"), std::string::npos);
}

TEST(OptimizerSummary, CountsEachShapeAndShowsCompression) {
  const std::vector<Nodes> found = {{1, "b,s", kSingle, {{"Add+"}}},
                                    {2, "b,4", kSingle, {{"Add+"}}},
                                    {2, "b,s", DType::kBool, {{"Less+", kInsightCompress, 0.875, true}}}};
  const Scenario scenario(found, "Less+:3:5,Add+:1:0");
  const std::string text = optimizer_summary(scenario.source());
  expect_golden(text, "optimizer_summary_compress.txt");
}

TEST(Summaries, ShowWhatIsInForceByDefault) {
  Scenario scenario({{1, "b,s", kSingle, {{"Add+"}}}}, "");
  const std::string insight = insight_summary(scenario.source(), {}), summary = optimizer_summary(scenario.source());
  for (const char* shape : {"b", "b", "s"}) scenario.add_default(shape);
  // Behind all else, and nothing else changes.
  EXPECT_EQ(insight_summary(scenario.source(), {}),
            insight +
                "DefaultRematerialisation is in force for Swish+ (3); "
                "LOWTIDE_DISABLE_PASSES=default_rematerialisation switches it off.\n");
  EXPECT_EQ(optimizer_summary(scenario.source()),
            summary +
                "########DefaultRematerialisation########\n"
                "Subgraph: Swish+\nOptimizationType: DefaultRematerialisation (by default)\nPatterns:\n"
                "PatternShape:b x   Frequency:2\nPatternShape:s x   Frequency:1\n"
                "--------------------------------\n=================================\n");
}

TEST(PlanRows, LookLikeOrtmodules) {
  const std::vector<Nodes> found = {
      {5, kScores, kSingle, {{"Reshape+Where+BiasSoftmax+", kInsightRecompute, 1, true}}},
      {5, kScores, kHalf, {{"Cast+", kInsightRecompute, 1, true}}},
      {1, kShorterScores, kHalf, {{"Cast+"}}},
      {1, kScores, kSingle, {{"Reshape+Where+"}}},
      {1, kShorterScores, kSingle, {{"BiasSoftmax+"}}},
      {5, kHidden, kHalf, {{"BiasGelu+"}}},
      {1, kShorterHidden, kHalf, {{"BiasGelu+"}}},
      {5, kHidden, kHalf, {{"FusedMatMul+"}}},
      {1, kShorterHidden, kHalf, {{"FusedMatMul+"}}},
      {5, "inputs_input_ids_dim0,inputs_input_ids_dim1,2560", kHalf, {{"FusedMatMul+Add+FusedMatMul+Add+Add+Add+"}}},
      {1, kShorterWidth, kHalf, {{"Add+"}}},
      {1,
       kMask,
       kSingle,
       {{"Reshape+Unsqueeze+Unsqueeze+Cast+Sub+Mul+Cast+"}, {"Cast+", kInsightRecomputeWithCompromise, 0.5}}},
  };
  const Scenario scenario(found, "Reshape+Where+BiasSoftmax+:1:-1,Cast+:1:-1");
  std::vector<PlanRow> rows =
      plan_rows(scenario.source(), {{"inputs_input_ids_dim0", 1}, {"inputs_input_ids_dim1", 1024}});
  rows[0].peak_after = 1'234'567'890;
  const std::vector<std::string> lines = lines_of(plan_row_lines(rows));
  const std::vector<std::string> documented = lines_of(golden("ortmodule_plan_rows.txt"));
  ASSERT_EQ(lines.size(), documented.size());
  const size_t peaks = lines[0].find("Peak after(B)");
  ASSERT_NE(peaks, std::string::npos);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string others = lines[i].substr(0, peaks);
    others.erase(others.find_last_not_of(' ') + 1);
    EXPECT_EQ(others, documented[i]);
    EXPECT_EQ(lines[i].substr(peaks), i == 0 ? "Peak after(B)" : i == 1 ? "1,234,567,890" : "-");
  }
}

TEST(PlanRows, CountWhatTwoCandidatesKeepOnce) {
  Scenario scenario({{2, "b,s", kSingle, {{"Cast+", kInsightRecomputeWithCompromise, 0.5}}}}, "");
  scenario.candidates()[1].kept = scenario.candidates()[0].kept;
  const std::vector<PlanRow> rows = plan_rows(scenario.source(), {{"b", 2}, {"s", 10}});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(symbolic_bytes(rows[0].saving), "6.0*b*s");  // 2 x 4 bytes given up, 2 kept
  EXPECT_EQ(rows[0].saving_bytes, 120);
  EXPECT_EQ(rows[0].frequency, 2);
  EXPECT_FALSE(rows[0].on);
}

TEST(PlanNotes, LookLikeOrtmodules) {
  const DimValues dims = {{"inputs_input_ids_dim0", 1},      {"inputs_input_ids_dim1", 1024},
                          {"inputs_attention_mask_dim0", 1}, {"inputs_attention_mask_dim1", 1024},
                          {"inputs_labels_dim0", 1},         {"inputs_labels_dim1", 1024}};
  // ORTModule's dims stand in the order of the inputs, ours in that of their names.
  std::vector<std::string> documented = lines_of(golden("ortmodule_plan_notes.txt"));
  std::sort(documented.begin() + 3, documented.end());
  EXPECT_EQ(lines_of(plan_notes(dims)), documented);
}

// ORTModule replaced the text for each output, so that only the last one counted.
TEST(PlanRows, SumOverOutputs) {
  Scenario scenario({{1, "b,s", kSingle, {{"BiasDropout+"}}}}, "");
  Candidate& candidate = scenario.candidates()[0];
  const ValueId mask =
      scenario.graph().add_node_output(candidate.entry, {DType::kBool, {Dim::symbol("b"), Dim::symbol("s")}});
  candidate.outputs.push_back({mask, 1, parse_dim("b*s"), 1});
  EXPECT_EQ(symbolic_bytes(plan_rows(scenario.source(), {})[0].saving), "5.0*b*s");
}

TEST(PlanRows, WorkWithoutValuesOfTheDims) {
  const Scenario scenario({{1, "b,s", kSingle, {{"Add+"}}}, {1, "16", kSingle, {{"Mul+"}}}}, "");
  const std::vector<PlanRow> rows = plan_rows(scenario.source(), {{"b", 2}});
  EXPECT_EQ(rows[0].combination, "Mul+:1:-1");
  EXPECT_EQ(rows[0].saving_bytes, 64);
  EXPECT_EQ(rows[1].saving_bytes, std::nullopt);
  EXPECT_NE(plan_row_lines(rows).find("4.0*b*s"), std::string::npos);
}

TEST(InsightJson, HoldsEverything) {
  const std::vector<Nodes> found = {
      {2,
       "b,s,64",
       kSingle,
       {{"FastGelu+", kInsightRecompute, 1, true}, {"Cast+", kInsightRecomputeWithCompromise, 0.5}},
       true},
      {1, "n", DType::kBool, {{"Less+", kInsightCompress, 0.875}}},
  };
  Scenario scenario(found, "FastGelu+:1:2");
  scenario.selection().outcomes[0].found = scenario.selection().outcomes[0].applied = 2;
  scenario.selection().warnings = {"no cluster is called \"X+\"\n"};
  scenario.candidates()[0].layer = 0;
  scenario.candidates()[0].extra_flops = parse_dim("b*s*512");
  const DimValues dims = {{"b", 2}, {"s", 10}};
  std::vector<PlanRow> rows = plan_rows(scenario.source(), dims);
  rows[0].peak_after = 4000;
  std::string text = insight_json(scenario.source(), rows, dims, 5000, 4500);
  // A line per object, to read it by.
  for (size_t at = 0; (at = text.find(" {\"", at)) != std::string::npos;) text[at] = '\n';
  expect_golden(concat(text, "\n"), "insight.json");
}

}  // namespace
}  // namespace lowtide
