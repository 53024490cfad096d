#include "bindings.h"

NB_MODULE(_lowtide, module) {
  lowtide::bindings::bind_errors(module);
  lowtide::bindings::bind_tensors(module);
  lowtide::bindings::bind_graph(module);
#ifdef LOWTIDE_SESSION
  lowtide::bindings::bind_session(module);
#endif
}
