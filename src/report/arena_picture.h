// A plan's arena as a picture, time × address, in numbers: what the HTML page and the SVG of `lowtide plan` draw.
#pragma once

#include <string>

#include "bind/binding.h"
#include "program/program.h"

namespace lowtide {

// JSON of a step at the binding's sizes:
//   {"name", "dims": {name: size}, "peak_bytes", "arena_bytes", "gradient_bytes", "output_bytes", "external_bytes",
//    "lower_bound_bytes", "forward_end": the step at which backward begins,
//    "steps": [{"what", "made", "module", "line", "live_bytes"}],
//    "buffers": [{"name", "kind", "made", "step": that makes it, "first", "last", "offset", "bytes", "reads": [steps],
//                 "writes": [steps]}]}
//   kind: stash (of forward, read by backward), temporary, gradient, output, scratch, library
//   made: forward, gradient, recomputed
// Offsets are those of the packing; outputs lie above the arena, in the order of their making and to the step's end
// (users keep them), and what a library takes for a while above these, so that nothing is drawn higher than the peak.
// Sizes are padded as they are packed: where live_bytes touches the peak, nothing is wasted.
std::string arena_picture(const Program& program, const Binding& binding);

}  // namespace lowtide
