// A small pool for processes without PyTorch (with PyTorch its own pool serves: a second one beside OpenMP's slows
// both).
#pragma once

namespace lowtide {

// Starts `threads` - 1 workers for the rest of the process and installs them as parallel_for. Later calls change
// nothing.
void install_thread_pool(int threads);

}  // namespace lowtide
