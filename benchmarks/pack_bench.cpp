// Height over lower bound, and processor time (packing uses one thread), of every packer on the generated problems and
// on recorded plans.
//   pack_bench [file.csv …]      without files: the generated problems and benchmarks/plans/*.csv
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>

#include "base/check.h"
#include "pack/csv.h"
#include "pack/generate.h"
#include "pack/pack.h"
#include "pack/packers.h"
#include "pack/validator.h"

namespace lowtide {
namespace {

struct Way {
  const char* name;
  std::function<Solution(const Problem&)> pack;
};

const std::vector<Way> kWays = {
    {"size", pack_by_size},
    {"area", pack_by_area},
    {"duration", pack_by_duration},
    {"start", pack_by_start},
    {"pressure", pack_by_pressure},
    {"best_fit", pack_best_fit},
    {"skyline", pack_skyline},
    {"fast", [](const Problem& p) { return pack(p, PackEffort::kFast); }},
    {"thorough", [](const Problem& p) { return pack(p, PackEffort::kThorough); }},
};

NamedProblem read_plan(const std::string& path) {
  std::ifstream file(path);
  LT_USER_CHECK(ErrorKind::kInvalidArgument, file.good(), "cannot read ", path);
  std::ostringstream text;
  text << file.rdbuf();
  return {path, read_csv(text.str()).problem};
}

void report(const NamedProblem& named) {
  const int64_t bound = lower_bound(named.problem);
  std::printf("%-28s %6zu buffers %12.3f MB\n", named.name.c_str(), named.problem.buffers.size(), bound / 1e6);
  for (const Way& way : kWays) {
    const std::clock_t start = std::clock();
    const Solution solution = way.pack(named.problem);
    const double time_ms = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    const auto wrong = validate(named.problem, solution);
    std::printf("    %-10s %9.4f x bound %10.2f ms%s%s\n", way.name,
                bound > 0 ? static_cast<double>(solution.height) / static_cast<double>(bound) : 1.0, time_ms,
                wrong ? "  INVALID: " : "", wrong ? wrong->c_str() : "");
  }
}

int run(std::span<char*> files) {
  std::vector<NamedProblem> problems;
  for (const char* path : files) problems.push_back(read_plan(path));
  if (files.empty()) {
    problems = training_problems();
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      problems.push_back({concat("random/1000/", seed), generate_random(1000, seed)});
    }
    const std::filesystem::path plans = "benchmarks/plans";
    if (std::filesystem::is_directory(plans)) {
      for (const auto& entry : std::filesystem::directory_iterator(plans)) {
        if (entry.path().extension() == ".csv") problems.push_back(read_plan(entry.path().string()));
      }
    }
  }
  for (const NamedProblem& problem : problems) report(problem);
  return 0;
}

}  // namespace
}  // namespace lowtide

int main(int argc, char** argv) {
  try {
    return lowtide::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
