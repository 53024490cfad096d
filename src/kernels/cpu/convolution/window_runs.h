// Products of windows on all threads.
#pragma once

#include "kernels/cpu/convolution/window_table.h"

namespace lowtide::cpu {

// The same product of each group; scratch_bytes are for one thread or more, as WindowTable says.
void run_windows(const WindowProduct& product, int64_t groups, void* scratch, int64_t scratch_bytes);

}  // namespace lowtide::cpu
