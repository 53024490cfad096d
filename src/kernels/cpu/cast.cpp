#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "kernels/cpu/copy_table.h"

namespace lowtide::cpu {
namespace {

using Loop = void (*)(const void* src, void* dst, int64_t n);

Loop to_f32(DType from) {
  const CopyTable& table = copy_table();
  switch (from) {
    case DType::kBool: return table.bool_to_f32;
    case DType::kI32: return table.i32_to_f32;
    case DType::kI64: return table.i64_to_f32;
    case DType::kBF16: return table.bf16_to_f32;
    case DType::kF16: return table.f16_to_f32;
    case DType::kF64: return table.f64_to_f32;
    default: return nullptr;
  }
}

Loop from_f32(DType to) {
  const CopyTable& table = copy_table();
  switch (to) {
    case DType::kBool: return table.f32_to_bool;
    case DType::kI32: return table.f32_to_i32;
    case DType::kI64: return table.f32_to_i64;
    case DType::kBF16: return table.f32_to_bf16;
    case DType::kF16: return table.f32_to_f16;
    case DType::kF64: return table.f32_to_f64;
    default: return nullptr;
  }
}

Loop loop_of(DType from, DType to) {
  return to == DType::kF32 ? to_f32(from) : from == DType::kF32 ? from_f32(to) : nullptr;
}

}  // namespace

bool can_cast(DType from, DType to) { return from == to || loop_of(from, to) != nullptr; }

void cast(DType from, DType to, const void* src, void* dst, int64_t n) {
  const Loop loop = loop_of(from, to);
  LT_CHECK(from == to || loop != nullptr, "no cast from ", name(from), " to ", name(to));
  const int64_t from_bytes = size_bytes(from), to_bytes = size_bytes(to);
  parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    const char* x = static_cast<const char*>(src) + begin * from_bytes;
    char* y = static_cast<char*>(dst) + begin * to_bytes;
    if (loop == nullptr) {
      std::memmove(y, x, (end - begin) * to_bytes);
    } else {
      loop(x, y, end - begin);
    }
  });
}

}  // namespace lowtide::cpu
