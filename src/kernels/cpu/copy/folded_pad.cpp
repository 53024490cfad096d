#include "kernels/cpu/copy/folded_pad.h"

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/supports.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {
namespace {

int64_t modulo(int64_t at, int64_t period) { return (at % period + period) % period; }

template <class T>
void pad_rows(const KernelCall& call, const FoldedPad& pad) {
  const T* x = call.inputs[0].as<const T>();
  T* y = call.outputs[0].as<T>();
  const int last = pad.last;
  const int64_t width = pad.padded[last];
  for_row_chunks(pad.padded_rows, width, 0.3, [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) {
      const T* from = x + pad.source_row(row) * pad.plain[last];
      T* to = y + row * width;
      for (int64_t c = 0; c < pad.begin; ++c) to[c] = from[pad.source(last, c)];
      std::copy(from + pad.begin - pad.before[last], from + pad.end - pad.before[last], to + pad.begin);
      for (int64_t c = pad.end; c < width; ++c) to[c] = from[pad.source(last, c)];
    }
  });
}

int64_t row_numbers(const FoldedPad& pad) { return std::max<int64_t>(16, (pad.plain[pad.last] + 15) / 16 * 16); }

// sums += what a row of dy hands to the row that it comes from.
void add_padded_row(const TensorRef& dy, int64_t row, const FoldedPad& pad, float* sums) {
  const int last = pad.last;
  const int64_t width = pad.padded[last];
  for (int64_t first = 0; first < width; first += kRun) {
    float buffer[kRun];
    const int64_t end = std::min(width, first + kRun);
    const float* from = read(dy, row * width + first, 1, end - first, buffer) - first;
    const int64_t inside = std::clamp(pad.begin, first, end), outside = std::clamp(pad.end, inside, end);
    for (int64_t c = first; c < inside; ++c) sums[pad.source(last, c)] += from[c];
    float* to = sums - pad.before[last];
    for (int64_t c = inside; c < outside; ++c) to[c] += from[c];
    for (int64_t c = outside; c < end; ++c) sums[pad.source(last, c)] += from[c];
  }
}

}  // namespace

FoldedPad::FoldedPad(const BoundCall& call, const TensorRef& plain_tensor, const TensorRef& padded_tensor,
                     bool channels_last)
    : last(plain_tensor.rank - 1) {
  const std::string& name = call.attrs->s("mode");
  mode = name == "reflect" ? Mode::kReflect : name == "edge" ? Mode::kEdge : Mode::kWrap;
  for (int i = 0; i <= last; ++i) {
    const int dim = !channels_last || i == 0 ? i : i == last ? 1 : i + 1;
    before[i] = call.attrs->ints("pads")[dim];
    plain[i] = plain_tensor.sizes[dim];
    padded[i] = padded_tensor.sizes[dim];
    plain_rows *= i < last ? plain[i] : 1;
    padded_rows *= i < last ? padded[i] : 1;
  }
  begin = std::clamp<int64_t>(before[last], 0, padded[last]);
  end = std::clamp(before[last] + plain[last], begin, padded[last]);
}

int64_t FoldedPad::source(int dim, int64_t coordinate) const {
  const int64_t at = coordinate - before[dim], size = plain[dim];
  if (at >= 0 && at < size) return at;
  if (mode == Mode::kEdge || size == 1) return at < 0 ? 0 : size - 1;
  if (mode == Mode::kWrap) return modulo(at, size);
  const int64_t once = at < 0 ? -at : 2 * (size - 1) - at;
  if (once >= 0 && once < size) return once;
  const int64_t folded = modulo(at, 2 * (size - 1));  // wider than x
  return folded < size ? folded : 2 * (size - 1) - folded;
}

int64_t FoldedPad::source_row(int64_t padded_row) const {
  int64_t row = 0, rows = 1;
  for (int i = last - 1; i >= 0; --i) {
    row += source(i, padded_row % padded[i]) * rows;
    padded_row /= padded[i];
    rows *= plain[i];
  }
  return row;
}

template <class Body>
void FoldedPad::for_each_padded(int dim, int64_t at, Body body) const {
  const int64_t size = plain[dim], low = -before[dim], high = padded[dim] - before[dim];
  if (low == 0 && high == size) return body(at);
  if (mode == Mode::kEdge || size == 1) {
    const int64_t first = at == 0 && low < 0 ? low : at, past = at == size - 1 && high > size ? high : at + 1;
    for (int64_t c = std::max(first, low); c < std::min(past, high); ++c) body(c - low);
    return;
  }
  const int64_t period = mode == Mode::kWrap ? size : 2 * (size - 1);
  const auto each = [&](int64_t residue) {
    for (int64_t c = low + modulo(residue - low, period); c < high; c += period) body(c - low);
  };
  each(at);
  if (mode == Mode::kReflect && at != 0 && at != size - 1) each(-at);
}

template <class Body>
void FoldedPad::for_each_padded_row(const int64_t* at, int dim, int64_t row, const Body& body) const {
  if (dim == last) return body(row);
  for_each_padded(dim, at[dim], [&](int64_t c) { for_each_padded_row(at, dim + 1, row * padded[dim] + c, body); });
}

const char* supports_folded_pad(const KernelQuery& query) {
  if (query.attrs->s("mode") == "constant") return "padded with a constant";
  if (is_complex(query.inputs[0].dtype)) return "complex numbers";
  if (query.inputs[0].dtype != query.outputs[0].dtype) return "mixed dtypes";
  return query.inputs[0].rank > 0 ? nullptr : "no dims";
}

KernelStatus folded_pad(const KernelCall& call, const FoldedPad& pad) {
  switch (size_bytes(call.inputs[0].dtype)) {
    case 1: pad_rows<uint8_t>(call, pad); break;
    case 2: pad_rows<uint16_t>(call, pad); break;
    case 4: pad_rows<uint32_t>(call, pad); break;
    default: pad_rows<uint64_t>(call, pad);
  }
  return nullptr;
}

namespace {

int64_t sums_scratch(const FoldedPad& pad) { return row_numbers(pad) * kFloatBytes * parallel_threads(); }

KernelStatus sum_rows(const KernelCall& call, const FoldedPad& pad) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  const int64_t width = pad.plain[pad.last], numbers = row_numbers(pad);
  const int64_t rows_each = std::max<int64_t>(1, 16384 / numbers);
  const int64_t tasks = (pad.plain_rows + rows_each - 1) / rows_each;
  run_tasks(tasks, numbers, call.scratch, call.scratch_bytes, tasks == 1, [&](int64_t task, float* sums) {
    const int64_t past = std::min(pad.plain_rows, (task + 1) * rows_each);
    for (int64_t row = task * rows_each; row < past; ++row) {
      int64_t at[kMaxRank], rest = row;
      for (int i = pad.last - 1; i >= 0; --i) {
        at[i] = rest % pad.plain[i];
        rest /= pad.plain[i];
      }
      std::fill_n(sums, width, 0.0f);
      pad.for_each_padded_row(at, 0, 0, [&](int64_t padded_row) { add_padded_row(dy, padded_row, pad, sums); });
      write(dx, row * width, 1, width, sums);
    }
  });
  return nullptr;
}

const char* supports_images_layout(const KernelQuery& query) {
  const OperandInfo& images = query.inputs[0];
  return images.rank == 4 && images.layout == Layout::kChannelsLast ? nullptr : "channels are not last";
}

}  // namespace

int64_t folded_pad_grad_scratch(const BoundCall& call) { return sums_scratch(FoldedPadGrad(call)); }
KernelStatus folded_pad_grad(const KernelCall& call, const FoldedPadGrad& pad) { return sum_rows(call, pad); }

const char* supports_images_pad(const KernelQuery& query) {
  const char* reason = supports_images_layout(query);
  return reason != nullptr ? reason : supports_folded_pad(query);
}
KernelStatus images_pad(const KernelCall& call, const ImagesPad& pad) { return folded_pad(call, pad); }

const char* supports_images_pad_grad(const KernelQuery& query) {
  const char* reason = supports_images_layout(query);
  return reason != nullptr ? reason : supports_float(query);
}
int64_t images_pad_grad_scratch(const BoundCall& call) { return sums_scratch(ImagesPadGrad(call)); }
KernelStatus images_pad_grad(const KernelCall& call, const ImagesPadGrad& pad) { return sum_rows(call, pad); }

}  // namespace lowtide::cpu
