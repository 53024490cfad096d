#include "kernels/cpu/copy.h"

#include <algorithm>
#include <cstring>

#include "base/parallel.h"
#include "kernels/cpu/copy_table.h"

namespace lowtide::cpu {
namespace {

constexpr int kMaxDims = 8;
constexpr int64_t kGrainBytes = 1 << 18;  // about 30 us of copying

struct Dim {
  int64_t size, src, dst;
};

// The box without dims of size 1, outermost destination stride first, dims merged that follow each other in both.
struct Box {
  Dim dims[kMaxDims];
  int rank = 0;

  Box(int given, const int64_t* sizes, const int64_t* src, const int64_t* dst) {
    for (int i = 0; i < given; ++i) {
      if (sizes[i] != 1) dims[rank++] = {sizes[i], src[i], dst[i]};
    }
    std::stable_sort(dims, dims + rank, [](const Dim& a, const Dim& b) { return a.dst > b.dst; });
    int kept = 0;
    for (int i = 1; i < rank; ++i) {
      Dim& outer = dims[kept];
      if (outer.src == dims[i].src * dims[i].size && outer.dst == dims[i].dst * dims[i].size) {
        outer = {outer.size * dims[i].size, dims[i].src, dims[i].dst};
      } else {
        dims[++kept] = dims[i];
      }
    }
    if (rank > 0) rank = kept + 1;
  }

  Dim take(int at) {
    const Dim dim = dims[at];
    std::copy(dims + at + 1, dims + rank--, dims + at);
    return dim;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i].size;
    return n;
  }
};

// body(src, dst) for each of the box's places, on all threads; offsets in bytes.
template <class Body>
void for_each_place(const Box& box, int64_t bytes_each, int64_t element, const char* src, char* dst, Body body) {
  parallel_for(box.numel(), std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, bytes_each)),
               [&](int64_t begin, int64_t end) {
                 int64_t index[kMaxDims] = {}, from = 0, to = 0, rest = begin;
                 for (int i = box.rank - 1; i >= 0; --i) {
                   index[i] = rest % box.dims[i].size;
                   rest /= box.dims[i].size;
                   from += index[i] * box.dims[i].src;
                   to += index[i] * box.dims[i].dst;
                 }
                 for (int64_t at = begin; at < end; ++at) {
                   body(src + from * element, dst + to * element);
                   for (int i = box.rank - 1; i >= 0; --i) {
                     from += box.dims[i].src;
                     to += box.dims[i].dst;
                     if (++index[i] < box.dims[i].size) break;
                     from -= index[i] * box.dims[i].src;
                     to -= index[i] * box.dims[i].dst;
                     index[i] = 0;
                   }
                 }
               });
}

template <class T>
void copy_run(const Dim& run, const char* src, char* dst) {
  const T* x = reinterpret_cast<const T*>(src);
  T* y = reinterpret_cast<T*>(dst);
  if (run.src == 1 && run.dst == 1) {
    std::memcpy(y, x, run.size * sizeof(T));
  } else if (run.src == 0 && run.dst == 1) {
    std::fill(y, y + run.size, *x);
  } else {
    for (int64_t i = 0; i < run.size; ++i) y[i * run.dst] = x[i * run.src];
  }
}

// across is contiguous in src, along in dst.
template <class T>
void transpose_block(const char* src, const Dim& along, char* dst, const Dim& across) {
  const T* x = reinterpret_cast<const T*>(src);
  T* y = reinterpret_cast<T*>(dst);
  if constexpr (sizeof(T) == 4) {
    copy_table().transpose(reinterpret_cast<const float*>(x), along.src, reinterpret_cast<float*>(y), across.dst,
                           along.size, across.size);
  } else {
    for (int64_t j = 0; j < across.size; ++j) {
      for (int64_t i = 0; i < along.size; ++i) y[j * across.dst + i] = x[i * along.src + j];
    }
  }
}

template <class T>
void copy_box(Box box, const char* src, char* dst) {
  if (box.rank == 0) {
    std::memcpy(dst, src, sizeof(T));
    return;
  }
  Dim along = box.take(box.rank - 1);
  const auto contiguous = [](const Dim& dim) { return dim.src == 1; };
  const Dim* found = std::find_if(box.dims, box.dims + box.rank, contiguous);
  if (along.dst == 1 && along.src > 1 && found != box.dims + box.rank) {
    Dim across = box.take(static_cast<int>(found - box.dims));
    // Blocks of 64 x 64: both sides stay in L1. The counts of blocks become dims of the box.
    constexpr int64_t kBlock = 64;
    Box blocks = box;
    const int64_t down = (along.size + kBlock - 1) / kBlock, right = (across.size + kBlock - 1) / kBlock;
    for_each_place(blocks, along.size * across.size * sizeof(T), sizeof(T), src, dst, [&](const char* from, char* to) {
      const auto block = [&](int64_t at) {
        const int64_t i = at % down * kBlock, j = at / down * kBlock;
        const Dim block_along{std::min(kBlock, along.size - i), along.src, 1};
        const Dim block_across{std::min(kBlock, across.size - j), 1, across.dst};
        transpose_block<T>(from + (i * along.src + j) * sizeof(T), block_along, to + (i + j * across.dst) * sizeof(T),
                           block_across);
      };
      if (box.numel() == 1) {
        parallel_for(down * right, std::max<int64_t>(1, kGrainBytes / (kBlock * kBlock * sizeof(T))),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t at = begin; at < end; ++at) block(at);
                     });
      } else {
        for (int64_t at = 0; at < down * right; ++at) block(at);
      }
    });
    return;
  }
  if (box.rank == 0) {
    // One run: its parts become the places.
    const int64_t part = std::max<int64_t>(1, kGrainBytes / sizeof(T));
    parallel_for(along.size, part, [&](int64_t begin, int64_t end) {
      copy_run<T>({end - begin, along.src, along.dst}, src + begin * along.src * static_cast<int64_t>(sizeof(T)),
                  dst + begin * along.dst * static_cast<int64_t>(sizeof(T)));
    });
    return;
  }
  for_each_place(box, along.size * sizeof(T), sizeof(T), src, dst,
                 [&](const char* from, char* to) { copy_run<T>(along, from, to); });
}

}  // namespace

void copy_strided(int rank, const int64_t* sizes, const void* src, const int64_t* src_strides, void* dst,
                  const int64_t* dst_strides, int64_t element_bytes) {
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] == 0) return;
  }
  const Box box(rank, sizes, src_strides, dst_strides);
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(dst);
  switch (element_bytes) {
    case 1: return copy_box<uint8_t>(box, from, to);
    case 2: return copy_box<uint16_t>(box, from, to);
    case 4: return copy_box<uint32_t>(box, from, to);
    default: return copy_box<uint64_t>(box, from, to);
  }
}

}  // namespace lowtide::cpu
