// For tests: counts what the whole process allocates by operator new. For one file of a binary.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

static std::atomic<int64_t> allocations{0};

// Inlined, the compiler would take malloc and operator delete for a pair that does not match.
__attribute__((noinline)) void* operator new(std::size_t size) {
  ++allocations;
  if (void* bytes = std::malloc(size == 0 ? 1 : size)) return bytes;
  throw std::bad_alloc();
}
__attribute__((noinline)) void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
__attribute__((noinline)) void* operator new(std::size_t size, std::align_val_t alignment) {
  ++allocations;
  void* bytes = nullptr;
  if (posix_memalign(&bytes, static_cast<std::size_t>(alignment), size == 0 ? 1 : size) == 0) return bytes;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* bytes) noexcept { std::free(bytes); }
__attribute__((noinline)) void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }
__attribute__((noinline)) void operator delete(void* bytes, std::align_val_t) noexcept { std::free(bytes); }
__attribute__((noinline)) void operator delete(void* bytes, std::size_t, std::align_val_t) noexcept {
  std::free(bytes);
}
