#include "bindings.h"

NB_MODULE(_lowtide, module) {
  // Sessions live as long as users' modules, often until the interpreter ends.
  nanobind::set_leak_warnings(false);
  lowtide::bindings::bind_errors(module);
  lowtide::bindings::bind_tensors(module);
  lowtide::bindings::bind_graph(module);
  lowtide::bindings::bind_calls(module);
  lowtide::bindings::bind_guards(module);
  lowtide::bindings::bind_graph_inputs(module);
  lowtide::bindings::bind_instances(module);
  lowtide::bindings::bind_size_formula(module);
  lowtide::bindings::bind_process(module);
  lowtide::bindings::bind_step_memory(module);
  lowtide::bindings::bind_session(module);
}
