#include "kernels/cpu/reductions/cumulation.h"

#include "base/half.h"
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"

namespace lowtide::cpu {

namespace {

constexpr int64_t kColumns = 64;  // whose sums go along the axis together

// Sums are doubles or i64, rounded where they are stored.
template <class T, class Total>
void cumulate(const Cumulation& along, const T* x, T* y) {
  const int64_t panels = (along.inner + kColumns - 1) / kColumns, size = along.size, inner = along.inner;
  const int64_t width = std::min(kColumns, inner), step = along.reverse ? -inner : inner;
  for_row_chunks(along.outer * panels, size * width, 1, [&](int64_t begin, int64_t count) {
    for (int64_t task = begin; task < begin + count; ++task) {
      const int64_t column = task % panels * kColumns, n = std::min(kColumns, inner - column);
      int64_t at = (task / panels * size + (along.reverse ? size - 1 : 0)) * inner + column;
      Total totals[kColumns] = {};
      for (int64_t k = 0; k < size; ++k, at += step) {
        for (int64_t i = 0; i < n; ++i) {
          totals[i] += static_cast<Total>(x[at + i]);
          y[at + i] = static_cast<T>(totals[i]);
        }
      }
    }
  });
}

template <class T, class Total>
KernelStatus cumulate(const KernelCall& call, const Cumulation& along) {
  cumulate<T, Total>(along, call.inputs[0].as<T>(), call.outputs[0].as<T>());
  return nullptr;
}

}  // namespace

const char* supports_cum_sum(const KernelQuery& query) {
  switch (query.inputs[0].dtype) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBF16:
    case DType::kF16:
    case DType::kI32:
    case DType::kI64: return query.outputs[0].dtype == query.inputs[0].dtype ? nullptr : "converts";
    default: return "of another dtype";
  }
}

KernelStatus cum_sum(const KernelCall& call, const Cumulation& along) {
  switch (call.inputs[0].dtype) {
    case DType::kF32: return cumulate<float, double>(call, along);
    case DType::kF64: return cumulate<double, double>(call, along);
    case DType::kBF16: return cumulate<BFloat16, double>(call, along);
    case DType::kF16: return cumulate<Float16, double>(call, along);
    case DType::kI32: return cumulate<int32_t, int64_t>(call, along);
    default: return cumulate<int64_t, int64_t>(call, along);
  }
}

}  // namespace lowtide::cpu
