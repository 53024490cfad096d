#include "session/stored_plan.h"

#include <algorithm>

#include "base/check.h"
#include "base/libraries.h"
#include "base/scanner.h"
#include "kernels/cpu/isa.h"
#include "kernels/kernel.h"
#include "program/text.h"
#include "report/config.h"
#include "session/stages.h"

namespace lowtide {

namespace {

constexpr int kVersion = 5;

std::string quoted_list(const std::vector<std::string>& texts) {
  return concat("[", join(texts, " ", [](std::ostream& out, const std::string& text) { out << quote(text); }), "]");
}

template <class Read>
auto read_list(Scanner& in, Read&& read) {
  std::vector<decltype(read())> items;
  in.expect("[");
  while (!in.accept("]")) items.push_back(read());
  return items;
}

int read_signed(Scanner& in) {
  const bool negative = in.accept("-");
  const int64_t value = in.natural();
  if (value > INT32_MAX) in.fail_expected("a 32-bit integer");
  return static_cast<int>(negative ? -value : value);
}

RequestOutcome read_outcome(Scanner& in) {
  RequestOutcome outcome;
  outcome.request.cluster = in.quoted();
  outcome.request.code = read_signed(in);
  if (find_strategy(outcome.request.code) == nullptr) in.fail_expected("the code of a strategy");
  outcome.request.count = read_signed(in);
  outcome.found = read_signed(in);
  outcome.applied = read_signed(in);
  return outcome;
}

StoredPlan read_body(std::string_view body) {
  Scanner in(body);
  StoredPlan stored;
  auto text = [&] { return in.quoted(); };
  in.expect("lowered");
  stored.lowering.lowered = read_signed(in);
  in.expect("fallbacks");
  stored.lowering.fallbacks = read_list(in, text);
  in.expect("bugs");
  stored.lowering.bugs = read_list(in, text);
  in.expect("warnings");
  stored.warnings = read_list(in, text);
  in.expect("archives");
  stored.archives = read_list(in, text);
  while (in.accept("outcome")) stored.outcomes.push_back(read_outcome(in));
  while (in.accept("sources")) stored.gradient_sources.push_back(read_list(in, [&] { return read_signed(in); }));
  in.expect("reads");
  stored.gradient_reads = read_list(in, [&] { return read_signed(in); });
  while (in.accept("choice")) {
    KernelChoice choice{in.quoted(), in.quoted(), {}};
    choice.refusals = read_list(in, text);
    stored.choices.push_back(std::move(choice));
  }
  in.skip_space();
  stored.program = parse_program(in.rest());
  return stored;
}

// The program is one for this graph and this build.
void check_fits(const StoredPlan& stored, const Graph& captured) {
  const Program& program = stored.program;
  const std::vector<GraphInput>& inputs = captured.inputs();
  LT_USER_CHECK(ErrorKind::kInvalidProgram, program.inputs.size() == inputs.size(), "a plan for ",
                program.inputs.size(), " inputs, the graph has ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = captured.value(inputs[i].value);
    const ProgramInput& planned = program.inputs[i];
    LT_USER_CHECK(ErrorKind::kInvalidProgram,
                  planned.name == value.name && planned.dtype == value.type.dtype &&
                      planned.sizes.size() == value.type.shape.size(),
                  "a plan with the input %", planned.name, " where the graph has %", value.name);
  }
  LT_USER_CHECK(ErrorKind::kInvalidProgram,
                program.gradient_targets.empty() || stored.gradient_sources.size() == inputs.size(), "sources of ",
                stored.gradient_sources.size(), " gradients for ", inputs.size(), " inputs");
  for (const std::vector<int>& sources : stored.gradient_sources)
    for (int source : sources)
      LT_USER_CHECK(ErrorKind::kInvalidProgram,
                    source >= 0 && static_cast<size_t>(source) < program.gradient_outputs.size(),
                    "a gradient comes from output ", source, " of ", program.gradient_outputs.size());
  for (int read : stored.gradient_reads)
    LT_USER_CHECK(ErrorKind::kInvalidProgram, read >= 0 && static_cast<size_t>(read) < inputs.size(),
                  "gradients read input ", read, " of ", inputs.size());
  for (const ProgramStep& step : program.steps)
    LT_USER_CHECK(ErrorKind::kInvalidProgram, step.kind != StepKind::kKernel || find_kernel(step.kernel) != nullptr,
                  "this build has no kernel ", step.kernel);
}

}  // namespace

uint64_t plan_key(std::string_view captured_text, const SessionOptions& options) {
  const MemoryOptions memory =
      memory_options(options, options.memory_config, options.probe_config, options.memory_level);
  const Libraries loaded = libraries();
  std::ostringstream text;
  text << captured_text << "\ntraining " << options.training << " guard " << options.guard << " passes "
       << quoted_list(options.disabled_passes) << " kernels " << quoted_list(options.disabled_kernels) << " pure "
       << quoted_list(options.pure_calls) << " casts " << options.cast_level << " " << quoted_list(options.cast_allow)
       << " labels " << options.label_sparsity << options.padding_sparsity << " gradients ["
       << join(options.output_needs_grad, " ") << "] level " << memory.level
       << (memory.ignores_requests ? " alone" : "") << " probe " << memory.probe.level << " " << memory.probe.boundary;
  // An archive answers every budget; beside one, configurations count for nothing.
  if (has_budget(options) || options.memory_knee) text << " budget " << quote(options.prices);
  for (const MemoryRequest& request : memory.requests) text << " " << quote(to_string(request));
  // What kernels refuse by.
  text << " isa " << static_cast<int>(cpu::isa()) << " libraries " << (loaded.sgemm != nullptr)
       << (loaded.dgemm != nullptr) << (loaded.convolution != nullptr) << (loaded.convolution_backward != nullptr);
  return checksum(text.str());
}

std::string print(const StoredPlan& stored, uint64_t key) {
  std::ostringstream out;
  out << "lowered " << stored.lowering.lowered << "\nfallbacks " << quoted_list(stored.lowering.fallbacks) << "\nbugs "
      << quoted_list(stored.lowering.bugs) << "\nwarnings " << quoted_list(stored.warnings) << "\narchives "
      << quoted_list(stored.archives) << "\n";
  for (const RequestOutcome& outcome : stored.outcomes)
    out << "outcome " << quote(outcome.request.cluster) << " " << outcome.request.code << " " << outcome.request.count
        << " " << outcome.found << " " << outcome.applied << "\n";
  for (const std::vector<int>& sources : stored.gradient_sources) out << "sources [" << join(sources, " ") << "]\n";
  out << "reads [" << join(stored.gradient_reads, " ") << "]\n";
  for (const KernelChoice& choice : stored.choices)
    out << "choice " << quote(choice.node) << " " << quote(choice.kernel) << " " << quoted_list(choice.refusals)
        << "\n";
  out << print(stored.program);
  const std::string body = std::move(out).str();
  return concat("lowtide plan ", kVersion, "\nkey ", key, "\nchecksum ", checksum(body), "\n", body);
}

StoredPlan parse_stored_plan(std::string_view text, uint64_t key, const Graph& captured) {
  std::string_view rest = text;
  // A line of a word or two and a number, compared as it was written.
  auto take = [&](const std::string& line, const char* what) {
    LT_USER_CHECK(ErrorKind::kInvalidProgram, rest.substr(0, line.size()) == line, what);
    rest.remove_prefix(line.size());
  };
  take(concat("lowtide plan ", kVersion, "\n"), "no plan of this version");
  take(concat("key ", key, "\n"), "a plan for another graph, other options or another processor");
  const std::string_view body = rest.substr(std::min(rest.size(), rest.find('\n')));
  take(concat("checksum ", checksum(body.substr(body.empty() ? 0 : 1)), "\n"), "the plan is damaged");
  StoredPlan stored = read_body(rest);
  check_fits(stored, captured);
  return stored;
}

}  // namespace lowtide
