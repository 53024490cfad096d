#include "base/libraries.h"

namespace lowtide {

// Process-wide like the threads: what is loaded belongs to the process.
static Libraries installed;

void set_libraries(const Libraries& libraries) { installed = libraries; }
const Libraries& libraries() { return installed; }

}  // namespace lowtide
