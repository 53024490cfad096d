// A library to preload: counts every live byte of a process, from malloc and from mmap, and remembers the peak.
//
//   LD_PRELOAD=liblowtide_memory_counter.so program
//
// Counted are the usable size of each live heap block and the length of each live anonymous mapping, from its
// reservation on. glibc's malloc maps memory without passing here, so nothing is counted twice; thread stacks, files
// and the program's own image are not counted. The resident set would not do instead: it holds what malloc keeps back
// from earlier steps.

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#define PUBLIC extern "C" __attribute__((visibility("default")))

extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* block, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* block);
}

namespace {

// The one place in this repository with mutable globals: malloc has no other state to hang them on.
std::atomic<long> live_bytes{0};
std::atomic<long> peak_bytes{0};

void grow(long bytes) {
  long now = live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  long seen = peak_bytes.load(std::memory_order_relaxed);
  while (now > seen && !peak_bytes.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void shrink(long bytes) { live_bytes.fetch_sub(bytes, std::memory_order_relaxed); }

void* counted(void* block) {
  if (block) grow(static_cast<long>(malloc_usable_size(block)));
  return block;
}

// The counted mappings, as disjoint address ranges. munmap may cut any piece out of them.
class Mappings {
 public:
  void add(uintptr_t begin, uintptr_t end) {
    Guard guard(lock_);
    remove_locked(begin, end);
    if (count_ == kCapacity) return;  // an undercount: more mappings than any program of ours has
    ranges_[count_++] = {begin, end};
    grow(static_cast<long>(end - begin));
  }

  void remove(uintptr_t begin, uintptr_t end) {
    Guard guard(lock_);
    remove_locked(begin, end);
  }

  bool contains(uintptr_t address) {
    Guard guard(lock_);
    return std::any_of(ranges_, ranges_ + count_, [&](Range r) { return r.begin <= address && address < r.end; });
  }

 private:
  struct Range {
    uintptr_t begin, end;
  };
  struct Guard {
    explicit Guard(std::atomic_flag& lock) : lock(lock) {
      while (lock.test_and_set(std::memory_order_acquire)) {
      }
    }
    ~Guard() { lock.clear(std::memory_order_release); }
    std::atomic_flag& lock;
  };

  void remove_locked(uintptr_t begin, uintptr_t end) {
    for (size_t i = 0; i < count_;) {
      Range range = ranges_[i];
      uintptr_t cut_begin = std::max(begin, range.begin), cut_end = std::min(end, range.end);
      if (cut_begin >= cut_end) {
        ++i;
        continue;
      }
      shrink(static_cast<long>(cut_end - cut_begin));
      ranges_[i] = ranges_[--count_];
      if (range.begin < cut_begin && count_ < kCapacity) ranges_[count_++] = {range.begin, cut_begin};
      if (cut_end < range.end && count_ < kCapacity) ranges_[count_++] = {cut_end, range.end};
    }
  }

  static constexpr size_t kCapacity = 1 << 16;
  std::atomic_flag lock_ = ATOMIC_FLAG_INIT;
  size_t count_ = 0;
  Range ranges_[kCapacity];
};

Mappings mappings;

uintptr_t pages(size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void* counted_map(void* address, size_t length, int protection, int flags, int file, off_t offset) {
  auto* mapped =
      reinterpret_cast<void*>(syscall(SYS_mmap, address, length, protection, flags, file, offset));  // errno is set
  if (mapped == MAP_FAILED) return mapped;
  const auto begin = reinterpret_cast<uintptr_t>(mapped);
  if (flags & MAP_ANONYMOUS) {
    mappings.add(begin, begin + pages(length));
  } else if (flags & MAP_FIXED) {
    mappings.remove(begin, begin + pages(length));
  }
  return mapped;
}

}  // namespace

// ---------------------------------------------------------------- what the measuring side calls

PUBLIC long lowtide_memory_live() { return live_bytes.load(); }
PUBLIC long lowtide_memory_peak() { return peak_bytes.load(); }
PUBLIC void lowtide_memory_reset_peak() { peak_bytes.store(live_bytes.load()); }

// ---------------------------------------------------------------- what is replaced

PUBLIC void* malloc(size_t size) noexcept { return counted(__libc_malloc(size)); }
PUBLIC void* calloc(size_t count, size_t size) noexcept { return counted(__libc_calloc(count, size)); }
PUBLIC void* memalign(size_t alignment, size_t size) noexcept { return counted(__libc_memalign(alignment, size)); }
PUBLIC void* aligned_alloc(size_t alignment, size_t size) noexcept { return counted(__libc_memalign(alignment, size)); }
PUBLIC void* valloc(size_t size) noexcept { return counted(__libc_memalign(pages(1), size)); }
PUBLIC void* pvalloc(size_t size) noexcept { return counted(__libc_memalign(pages(1), pages(size))); }

PUBLIC int posix_memalign(void** block, size_t alignment, size_t size) noexcept {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) return EINVAL;
  void* made = counted(__libc_memalign(alignment, size));
  if (!made) return ENOMEM;
  *block = made;
  return 0;
}

PUBLIC void free(void* block) noexcept {
  if (block) shrink(static_cast<long>(malloc_usable_size(block)));
  __libc_free(block);
}

PUBLIC void* realloc(void* block, size_t size) noexcept {
  const long before = block ? static_cast<long>(malloc_usable_size(block)) : 0;
  void* moved = __libc_realloc(block, size);
  if (moved || size == 0) shrink(before);  // a failed realloc leaves the block as it was
  return counted(moved);
}

PUBLIC void* mmap(void* address, size_t length, int protection, int flags, int file, off_t offset) noexcept {
  return counted_map(address, length, protection, flags, file, offset);
}

PUBLIC void* mmap64(void* address, size_t length, int protection, int flags, int file, off64_t offset) noexcept {
  return counted_map(address, length, protection, flags, file, offset);
}

PUBLIC int munmap(void* address, size_t length) noexcept {
  // First forgotten, then unmapped: another thread may be given the same addresses at once.
  const auto begin = reinterpret_cast<uintptr_t>(address);
  mappings.remove(begin, begin + pages(length));
  return static_cast<int>(syscall(SYS_munmap, address, length));
}

PUBLIC void* mremap(void* address, size_t old_length, size_t new_length, int flags, ...) noexcept {
  va_list arguments;
  va_start(arguments, flags);
  void* wanted = flags & MREMAP_FIXED ? va_arg(arguments, void*) : nullptr;
  va_end(arguments);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  const bool was_counted = mappings.contains(begin);
  auto* moved = reinterpret_cast<void*>(syscall(SYS_mremap, address, old_length, new_length, flags, wanted));
  if (moved != MAP_FAILED && was_counted) {
    const auto moved_begin = reinterpret_cast<uintptr_t>(moved);
    mappings.remove(begin, begin + pages(old_length));
    mappings.add(moved_begin, moved_begin + pages(new_length));
  }
  return moved;
}
