// lowtide-opt: a text graph in, passes, text out. Beside the passes it knows the other arrows between capture and plan.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/check.h"
#include "grad/gradient.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "lower/lower.h"
#include "ops/rule.h"
#include "passes/optimize.h"
#include "passes/pass.h"
#include "schedule/order.h"

namespace lowtide {
namespace {

constexpr const char* kUsage =
    "usage: lowtide-opt [options] FILE       FILE is a text graph (docs/ir.md), - for standard input\n"
    "  --passes=a,b         run these passes in this order; without it the graph is read, verified and printed\n"
    "  --disable=a,b        leave these out\n"
    "  --stop-after=a       stop after this one\n"
    "  --print-after-all    print the graph after each pass that changed it, to standard error\n"
    "  --verify-types       check the types of all nodes, at the start and after each pass\n"
    "  --timing             print each pass's time to standard error\n"
    "  --list               print the names of all passes, after the stages lower, forward, gradient and training\n";

bool run_lower(Graph& graph) {
  functionalise(graph);
  graph = lower(graph);
  return true;
}
bool run_forward(Graph& graph) { return optimize_forward(graph), true; }
bool run_gradient(Graph& graph) {
  graph = build_gradient(graph);
  return true;
}
bool run_training(Graph& graph) { return optimize_training(graph), true; }

constexpr Pass kStages[] = {
    {"lower", run_lower},        // functionalise, lower
    {"forward", run_forward},    // all passes before the gradient
    {"gradient", run_gradient},  // the training graph
    {"training", run_training},  // all passes after the gradient
};

// What planning does to a graph behind all passes.
constexpr Pass kPlanning[] = {{"schedule_order", schedule_order}};

const Pass* find_stage_or_pass(std::string_view name) {
  for (const Pass& stage : kStages)
    if (stage.name == name) return &stage;
  for (const Pass& pass : kPlanning)
    if (pass.name == name) return &pass;
  return find_pass(name);
}

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> result;
  while (!names.empty()) {
    const size_t end = std::min(names.find(','), names.size());
    if (end > 0) result.emplace_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return result;
}

struct CommandLine {
  std::string file;
  std::vector<Pass> passes;
  PassOptions options;
  bool timing = false;
};

CommandLine read_command_line(int count, char** arguments) {
  CommandLine line;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    const auto value = [&](std::string_view name) {
      return argument.starts_with(name) ? std::optional(argument.substr(name.size())) : std::nullopt;
    };
    if (const auto names = value("--passes=")) {
      for (const std::string& name : split(*names)) {
        const Pass* pass = find_stage_or_pass(name);
        LT_USER_CHECK(ErrorKind::kInvalidArgument, pass, "no pass is called '", name, "' (--list prints them)");
        line.passes.push_back(*pass);
      }
    } else if (const auto disabled = value("--disable=")) {
      line.options.disabled = split(*disabled);
    } else if (const auto last = value("--stop-after=")) {
      line.options.stop_after = *last;
    } else if (argument == "--print-after-all") {
      line.options.after_change = [](std::string_view pass, const Graph& graph) {
        std::cerr << "// after " << pass << '\n' << print(graph) << '\n';
      };
    } else if (argument == "--verify-types") {
      line.options.verify_types = true;
    } else if (argument == "--timing") {
      line.timing = true;
    } else {
      LT_USER_CHECK(ErrorKind::kInvalidArgument, line.file.empty() && (argument == "-" || !argument.starts_with("-")),
                    "unknown argument '", argument, "'\n", kUsage);
      line.file = argument;
    }
  }
  LT_USER_CHECK(ErrorKind::kInvalidArgument, !line.file.empty(), "no file\n", kUsage);
  return line;
}

std::string read(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(path);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, in.good(), "cannot read ", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

void run(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) == "--help") return void(std::cout << kUsage);
    if (std::string_view(arguments[i]) != "--list") continue;
    for (const Pass& stage : kStages) std::cout << stage.name << '\n';
    for (const Pass& pass : all_passes()) std::cout << pass.name << '\n';
    for (const Pass& pass : kPlanning) std::cout << pass.name << '\n';
    return;
  }
  const CommandLine line = read_command_line(count, arguments);
  Graph graph = parse(read(line.file));
  if (line.options.verify_types) verify_types(graph);
  for (const PassRun& pass : run_passes(graph, line.passes, line.options))
    if (line.timing)
      std::cerr << pass.name << (pass.changed ? "  changed  " : "  unchanged  ") << pass.time_ns / 1000 << " us\n";
  std::cout << print(graph);
}

}  // namespace
}  // namespace lowtide

int main(int count, char** arguments) {
  try {
    lowtide::run(count, arguments);
  } catch (const std::exception& error) {
    std::cerr << "lowtide-opt: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
