#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "report/clusters.h"
#include "report/insight_source.h"

namespace lowtide {
namespace {

// Nodes that stash alike and have the same options. One option: one candidate of each node.
struct Cluster {
  std::string id;
  int frequency = 0;
  std::vector<std::vector<int32_t>> options;
};

struct Line {
  std::string frequency, text, peak;
  bool ends_row = false;  // a separator follows
};

std::string shape_text(const InsightSource& source, const GivenUp& output) {
  return symbolic_shape(source.graph.type(output.value).shape);
}

int64_t element_bytes(const InsightSource& source, const GivenUp& output) {
  return size_bytes(source.graph.type(output.value).dtype);
}

int percent(const GivenUp& output) { return static_cast<int>(std::floor(output.saved * 100 + 1e-9)); }

std::string_view last_op_type(std::string_view cluster) {
  cluster.remove_suffix(1);
  return cluster.substr(cluster.rfind('+') + 1);
}

// Everything that the lines of a row show of a candidate, the node's op type first: rows of equal frequency are sorted
// by it.
std::string activation_pattern(const InsightSource& source, int32_t index) {
  const Candidate& candidate = source.candidates[static_cast<size_t>(index)];
  const std::string& cluster = source.clusters[static_cast<size_t>(index)];
  std::string text = concat(last_op_type(cluster), "|", candidate.strategy->code);
  for (const GivenUp& output : candidate.outputs)
    text += concat("|", output.output_index, ":", shape_text(source, output), ":",
                   name(source.graph.type(output.value).dtype), ":", percent(output));
  return concat(text, "|", cluster, ";");
}

std::vector<Cluster> clusters_of(const InsightSource& source) {
  std::map<NodeId, std::vector<int32_t>> by_node;
  for (size_t i = 0; i < source.candidates.size(); ++i)
    by_node[source.candidates[i].entry].push_back(static_cast<int32_t>(i));
  std::map<std::string, Cluster> by_id;
  for (const auto& [node, candidates] : by_node) {
    std::string id;
    for (const int32_t index : candidates) id += activation_pattern(source, index);
    Cluster& cluster = by_id[id];
    cluster.id = id;
    ++cluster.frequency;
    cluster.options.resize(candidates.size());
    for (size_t option = 0; option < candidates.size(); ++option) cluster.options[option].push_back(candidates[option]);
  }
  std::vector<Cluster> clusters;
  for (auto& [id, cluster] : by_id) clusters.push_back(std::move(cluster));
  std::sort(clusters.begin(), clusters.end(), [](const Cluster& a, const Cluster& b) {
    return a.frequency != b.frequency ? a.frequency > b.frequency : a.id > b.id;
  });
  return clusters;
}

class Table {
 public:
  Table(const InsightSource& source, const PeakAfter& peak_after)
      : source_(source), peak_after_(peak_after), chosen_(chosen_flags(source)) {
    for (const Stash& stash : source.stashes)
      for (const ValueId read : stash.reads) viewed_[stash.value] = viewed_[stash.value] || read != stash.value;
    lines_.push_back({"Freq", " Memory Optimization Opportunities (Clustered by node-level activation patterns)",
                      " Peak after ", true});
    for (const Cluster& cluster : clusters_of(source)) add(cluster);
  }

  std::string text() const {
    size_t width = 0, peak_width = 0;
    for (const Line& line : lines_) {
      width = std::max(width, line.text.size());
      peak_width = std::max(peak_width, line.peak.size());
    }
    width += 2 + width % 2;  // even, so that the separators' pattern ends whole
    peak_width += peak_width % 2;
    const std::string border(kFrequencyWidth + width + peak_width + 4, '=');
    const std::string separator = concat("|_ _ _ _|", underscores(width), "|", underscores(peak_width), "|\n");
    std::string text = concat(border, "\n");
    for (const Line& line : lines_) {
      text += concat("|", left(line.frequency, kFrequencyWidth), "|", left(line.text, width), "|",
                     std::string(peak_width - line.peak.size(), ' '), line.peak, "|\n");
      if (line.ends_row) text += separator;
    }
    return concat(text, border, "\n");
  }

 private:
  static constexpr size_t kFrequencyWidth = 7, kLabelWidth = 15;

  static std::string left(std::string text, size_t width) {
    text.resize(std::max(width, text.size()), ' ');
    return text;
  }
  static std::string underscores(size_t width) {
    std::string text;
    while (text.size() < width) text += "_ ";
    return text;
  }

  void write(std::string text, std::string peak = {}) { lines_.push_back({{}, std::move(text), std::move(peak)}); }
  void write_labelled(std::string label, std::string_view text, std::string peak = {}) {
    write(concat(left(std::move(label), kLabelWidth), ": ", text), std::move(peak));
  }

  void add(const Cluster& cluster) {
    const size_t first = lines_.size();
    write("For each row options are mutually exclusive, only one of them can be enabled.");
    lines_[first].frequency = concat(cluster.frequency);
    for (size_t option = 0; option < cluster.options.size(); ++option) {
      write("");
      add_option(option + 1, cluster.options[option]);
    }
    lines_.back().ends_row = true;
  }

  void add_option(size_t number, const std::vector<int32_t>& candidates) {
    const Candidate& shown = source_.candidates[static_cast<size_t>(candidates.front())];
    const std::string& cluster = source_.clusters[static_cast<size_t>(candidates.front())];
    write_labelled(concat(">>Option ", number), concat(shown.strategy->name, " subgraph ", cluster),
                   concat(" ", peak_after_ ? with_commas(peak_after_(candidates)) : "-", " "));
    write_labelled("  Status", status(cluster, *shown.strategy, candidates));
    write("  Stashed Activations:");
    if (const std::string reuse = reuse_frequencies(candidates); !reuse.empty())
      write_labelled("   - ReuseFreq", reuse);
    for (const GivenUp& output : shown.outputs)
      write_labelled(concat("   - Output ", output.output_index),
                     concat("[", shape_text(source_, output), "], byte/elem: ", element_bytes(source_, output), ", ",
                            percent(output), "% saved"));
  }

  std::string status(const std::string& cluster, const Strategy& strategy,
                     const std::vector<int32_t>& candidates) const {
    const std::optional<int> requested = requested_count(source_, cluster, strategy);
    if (!requested)
      return concat("Disabled. Enable with export ORTMODULE_MEMORY_OPT_CONFIG=",
                    to_string(MemoryRequest{cluster, strategy.code, -1}));
    const auto applied = std::count_if(candidates.begin(), candidates.end(),
                                       [&](int32_t index) { return chosen_[static_cast<size_t>(index)]; });
    return concat("Enabled, requested count=", *requested, ", actual applied count=", applied);
  }

  // " Output 0(3),": for how many nodes of the row backward reads the output's bytes through views of them.
  std::string reuse_frequencies(const std::vector<int32_t>& candidates) const {
    std::map<int, int> frequencies;
    for (const int32_t index : candidates) {
      for (const GivenUp& output : source_.candidates[static_cast<size_t>(index)].outputs) {
        const auto found = viewed_.find(output.value);
        if (found != viewed_.end() && found->second) ++frequencies[output.output_index];
      }
    }
    std::string text;
    for (const auto& [output, frequency] : frequencies) text += concat(" Output ", output, "(", frequency, "),");
    return text;
  }

  const InsightSource& source_;
  const PeakAfter& peak_after_;
  std::vector<bool> chosen_;
  std::map<ValueId, bool> viewed_;  // by stash: whether views of it are read
  std::vector<Line> lines_;
};

// A line for each strategy that is in force without being asked for: "DefaultRematerialisation is in force for Cast+
// (3), Swish+ (12); LOWTIDE_DISABLE_PASSES=default_rematerialisation switches it off."
std::string default_notes(const InsightSource& source) {
  std::string text;
  for (const Strategy* strategy : strategies()) {
    std::map<std::string, int> frequencies;
    for (const Candidate& candidate : source.defaults)
      if (candidate.strategy == strategy) ++frequencies[cluster_of(source.graph, candidate)];
    if (frequencies.empty()) continue;
    text += concat(strategy->name, " is in force for ",
                   join(frequencies, ", ",
                        [](std::ostream& out, const auto& item) { out << item.first << " (" << item.second << ")"; }),
                   "; LOWTIDE_DISABLE_PASSES=", strategy->default_name, " switches it off.\n");
  }
  return text;
}

}  // namespace

std::string insight_summary(const InsightSource& source, const PeakAfter& peak_after) {
  const std::string config = user_config(source);
  return concat("MemoryInsight Summary - User config: ", config.empty() ? "not provided" : config, "\n",
                Table(source, peak_after).text(),
                "Note: use comma as a separator for enabling more than one subgraphs.\n", default_notes(source));
}

}  // namespace lowtide
