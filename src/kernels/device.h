// A memory that is not the host's, and the kernels that reach it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/kernel.h"

namespace lowtide {

// Host code keeps its pointers and never follows them. Its Copy kernels move bytes between it and the host, or within
// it; all others find every operand there.
struct Device {
  const char* name;  // as Program::devices has it
  std::span<const Kernel> kernels;
  // 64-byte aligned, of any contents; Error(kOutOfMemory).
  std::shared_ptr<char> (*allocate)(int64_t size_bytes);
};

}  // namespace lowtide
