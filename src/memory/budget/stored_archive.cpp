#include "memory/budget/stored_archive.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/scanner.h"
#include "bind/planned_sizes.h"
#include "memory/compress/compress.h"
#include "memory/peak.h"

namespace lowtide {

namespace {

int64_t in_nanoseconds(double milliseconds) { return std::llround(milliseconds * 1e6); }

// By the first of its outputs that somebody wants.
std::string name_of(const Graph& graph, NodeId node) {
  for (ValueId output : graph.node(node).outputs)
    if (output) return quote(graph.value(output).name);
  LT_FAIL("a recipe of a node without results");
}

template <class Items, class Name>
std::string list(const Items& items, Name&& name) {
  return concat("[", join(items, " ", [&](std::ostream& out, const auto& item) { out << name(item); }), "]");
}

class Parser {
  template <class Read>
  auto read_list(Read&& read) {
    std::vector<decltype(read())> items;
    in_.expect("[");
    while (!in_.accept("]")) items.push_back(read());
    return items;
  }

 public:
  Parser(std::string_view text, const Graph& graph, const Program& program)
      : in_(text), graph_(graph), ranges_(graph), program_(program) {}

  PlanArchive run() {
    PlanArchive archive;
    in_.expect("sizes");
    archive.symbol_values = read_list([&] { return in_.natural(); });
    if (!fit_symbols(program_, archive.symbol_values)) in_.fail_expected(concat(program_.symbols.size(), " sizes"));
    archive.dims = named_sizes(program_, archive.symbol_values);
    in_.expect("knee");
    archive.knee = static_cast<size_t>(in_.natural());
    while (in_.accept("rung")) archive.rungs.push_back(read_rung());
    if (!in_.at_end() || archive.knee >= archive.rungs.size()) in_.fail_expected("a rung");
    return archive;
  }

 private:
  double read_milliseconds() {
    const bool negative = in_.accept("-");
    const double value = static_cast<double>(in_.natural()) / 1e6;
    return negative ? -value : value;
  }
  ValueId read_value() {
    const ValueId value = graph_.find_value(in_.quoted());
    if (!value || !graph_.value(value).producer) in_.fail_expected("a value that a node of the graph makes");
    return value;
  }
  NodeId read_node() { return graph_.value(read_value()).producer; }

  Rung read_rung() {
    Rung rung;
    rung.peak_bytes = in_.natural();
    rung.arena_bytes = in_.natural();
    rung.milliseconds = read_milliseconds();
    rung.extra_milliseconds = read_milliseconds();
    rung.least_extra_milliseconds = read_milliseconds();
    while (in_.accept("recipe")) rung.recipes.push_back(read_recipe());
    while (in_.accept("blocks")) rung.row_blocks.push_back(read_blocks());
    in_.expect("again");
    rung.again = read_list([&] { return read_node(); });
    in_.expect("packed");
    rung.packed = read_list([&] { return read_value(); });
    return rung;
  }

  PricedRowBlocks read_blocks() {
    PricedRowBlocks run;
    run.blocks.first = static_cast<int32_t>(in_.natural());
    run.blocks.end = static_cast<int32_t>(in_.natural());
    run.blocks.rows = parse_dim(in_.quoted());
    run.blocks.block_rows = in_.natural();
    run.milliseconds = read_milliseconds();
    return run;
  }

  Candidate read_recipe() {
    Candidate recipe;
    const std::string name = in_.quoted();
    const auto row = std::find_if(strategies().begin(), strategies().end(),
                                  [&](const Strategy* strategy) { return strategy->name == name; });
    if (row == strategies().end()) in_.fail_expected("a strategy");
    recipe.strategy = *row;
    recipe.entry = read_node();
    for (ValueId value : read_list([&] { return read_value(); })) {
      if (recipe.strategy == &strategy::compress) {
        const std::optional<Width> width = narrower(graph_, ranges_, value);
        if (!width) in_.fail_expected("a value that gets smaller");
        add_packed(recipe, graph_, value, *width);
        continue;
      }
      const Dim bytes = numel(graph_.type(value).shape) * Dim(size_bytes(graph_.type(value).dtype));
      recipe.outputs.push_back({value, graph_.value(value).output_index, bytes, 1});
      recipe.saving = recipe.saving + bytes;
    }
    recipe.kept = read_list([&] { return read_value(); });
    if (!recipe.outputs.empty() && recipe.strategy != &strategy::compress) recipe.nodes = {recipe.entry};
    return recipe;
  }

  Scanner in_;
  const Graph& graph_;
  ValueRanges ranges_;
  const Program& program_;
};

}  // namespace

std::string print(const PlanArchive& archive, const Graph& graph) {
  const auto value_name = [&](ValueId value) { return quote(graph.value(value).name); };
  std::ostringstream out;
  out << "sizes " << list(archive.symbol_values, [](int64_t size) { return size; }) << " knee " << archive.knee << "\n";
  for (const Rung& rung : archive.rungs) {
    out << "rung " << rung.peak_bytes << " " << rung.arena_bytes << " " << in_nanoseconds(rung.milliseconds) << " "
        << in_nanoseconds(rung.extra_milliseconds) << " " << in_nanoseconds(rung.least_extra_milliseconds) << "\n";
    for (const Candidate& recipe : rung.recipes)
      out << "recipe " << quote(recipe.strategy->name) << " " << name_of(graph, recipe.entry) << " "
          << list(recipe.outputs, [&](const GivenUp& output) { return value_name(output.value); }) << " "
          << list(recipe.kept, value_name) << "\n";
    for (const auto& [blocks, milliseconds] : rung.row_blocks)
      out << "blocks " << blocks.first << " " << blocks.end << " " << quote(to_string(blocks.rows)) << " "
          << blocks.block_rows << " " << in_nanoseconds(milliseconds) << "\n";
    out << "again " << list(rung.again, [&](NodeId node) { return name_of(graph, node); }) << " packed "
        << list(rung.packed, value_name) << "\n";
  }
  return std::move(out).str();
}

PlanArchive parse_archive(std::string_view text, const Graph& graph, const Program& program) {
  return Parser(text, graph, program).run();
}

}  // namespace lowtide
