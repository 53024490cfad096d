// Golden files: text in → what a stage gives → text out, compared with what stands in the file.
//
//   // a comment
//   ==== name of the case [options]
//   input
//   ---- expect
//   output
#pragma once

#include <functional>
#include <string>

namespace lowtide {

// What the file expects of a case: `options` is what stands in brackets at the end of its title (empty: none), `file`
// the name of the golden file without its folder.
using GoldenStage =
    std::function<std::string(const std::string& input, const std::string& options, const std::string& file)>;

// The body of a golden runner's main: [--update] FILE…; --update writes what the stage gives into the files. Returns
// the exit code: 0 if every case of every file holds.
int run_goldens(int count, char** arguments, const GoldenStage& stage);

}  // namespace lowtide
