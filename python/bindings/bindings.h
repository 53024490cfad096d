// The Python module _lowtide: one file per subject, each adding its names to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace lowtide {
class Graph;
}

namespace lowtide::bindings {

void bind_errors(nanobind::module_& module);
void bind_tensors(nanobind::module_& module);
void bind_graph(nanobind::module_& module);
void bind_graph_nodes(nanobind::module_& module, nanobind::class_<Graph>& graph);
void bind_calls(nanobind::module_& module);
void bind_guards(nanobind::module_& module);
void bind_graph_inputs(nanobind::module_& module);
void bind_instances(nanobind::module_& module);
void bind_size_formula(nanobind::module_& module);
void bind_process(nanobind::module_& module);
void bind_step_memory(nanobind::module_& module);
void bind_session(nanobind::module_& module);

}  // namespace lowtide::bindings
