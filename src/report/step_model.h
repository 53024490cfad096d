// A step in numbers (memory/budget/model.h) as JSON: what a search for a cheaper plan knows of it, and all that another
// solver needs to look for itself.
#pragma once

#include <string>

#include "memory/budget/model.h"

namespace lowtide {

// {"yield": position, "values": [{"value": name, "bytes": …, "producer": position, "held_until": …, "is_optional": …,
// "may_run_again": …, "is_default": …}], "nodes": [{"node": …, "reads": [value], "reads_again": […], "makes": […],
// "takeovers": [[to, from]], "scratch": …, "copies": …, "ms": …, "is_kept_alive": …}], "fixed": [[first, last, bytes]],
// "other_bytes": …}. Values and nodes are named by their places in these lists; -1: none. `graph` is the model's.
std::string step_model_json(const StepModel& model, const Graph& graph);

}  // namespace lowtide
