// Rows in order, their first few, and the places of their extremes. bf16 and f16 are compared as floats.
#include <bit>

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/reference/moving_states.h"
#include "kernels/rooms.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

using reference::Ranking, reference::SortRanking, reference::TopRanking;

// ---- rows, each in scratch of the thread that has it

int64_t in_slots(int64_t bytes) { return aligned(bytes) / kFloatBytes; }

// body(offsets, own) for every row.
template <class Body>
void for_each_ranked(const KernelCall& call, const Ranking& ranking, int64_t slot_numbers, Body body) {
  const int64_t rows_each = std::max<int64_t>(1, 2048 / std::max<int64_t>(1, ranking.size));
  const int64_t tasks = (ranking.count + rows_each - 1) / rows_each;
  run_tasks(tasks, slot_numbers, call.scratch, call.scratch_bytes, tasks == 1, [&](int64_t task, float* own) {
    const int64_t first = task * rows_each;
    ranking.rows.for_each(first, std::min(ranking.count, first + rows_each),
                          [&](int64_t, const auto& offsets) { body(offsets, own); });
  });
}

// Whole numbers that are in the order of the floats: NaN is the largest, and equal numbers are equal.
uint32_t word_of(float value) {
  if (value != value) return 0xffffffff;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value == 0) return 0x80000000;
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

// A word and, below it, the place that it came from.
using Key = uint64_t;
constexpr int kWordBits = 32, kDigitBits = 8, kDigits = 1 << kDigitBits;

// By the digits of the words, last digit first; keys of one word stay in order. Returns which of the two buffers has
// them in the end.
Key* sort_by_word(Key* keys, Key* other, int64_t size) {
  constexpr int kPasses = kWordBits / kDigitBits;
  const auto digit = [](Key key, int pass) { return key >> (kWordBits + pass * kDigitBits) & (kDigits - 1); };
  uint32_t counts[kPasses][kDigits] = {};
  for (int64_t i = 0; i < size; ++i)
    for (int pass = 0; pass < kPasses; ++pass) ++counts[pass][digit(keys[i], pass)];
  for (int pass = 0; pass < kPasses; ++pass) {
    uint32_t* places = counts[pass];
    if (places[digit(keys[0], pass)] == size) continue;  // one digit for all
    uint32_t before = 0;
    for (int each = 0; each < kDigits; ++each) before += std::exchange(places[each], before);
    for (int64_t i = 0; i < size; ++i) other[places[digit(keys[i], pass)]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

int64_t sort_slot(const Ranking& ranking) {
  return in_slots(ranking.size * static_cast<int64_t>(2 * sizeof(Key) + sizeof(float)));
}

int64_t sort_scratch(const BoundCall& call) {
  return std::max<int64_t>(64, sort_slot(SortRanking(call)) * kFloatBytes * parallel_threads());
}

KernelStatus sort(const KernelCall& call, const SortRanking& ranking) {
  const TensorRef &x = call.inputs[0], *values = output(call, 0), *indices = output(call, 1);
  const int64_t size = ranking.size;
  if (size == 0) return nullptr;
  const auto& steps = ranking.steps;
  const uint32_t turned = ranking.descending ? 0xffffffff : 0;
  for_each_ranked(call, ranking, sort_slot(ranking), [&](const auto& at, float* own) {
    Key *keys = reinterpret_cast<Key*>(own), *other = keys + size;
    float* row = reinterpret_cast<float*>(other + size);
    for (int64_t first = 0; first < size; first += kRun) {
      const int64_t n = std::min(kRun, size - first);
      const float* from = read(x, at[0] + first * steps[0], steps[0], n, row + first);
      if (from != row + first) std::copy_n(from, n, row + first);
    }
    for (int64_t i = 0; i < size; ++i) keys[i] = Key{word_of(row[i]) ^ turned} << kWordBits | static_cast<Key>(i);
    constexpr int64_t kShort = 96;  // counting digits does not pay
    if (size < kShort) {
      std::sort(keys, keys + size);
    } else {
      keys = sort_by_word(keys, other, size);
    }
    const auto place = [&](int64_t i) { return static_cast<uint32_t>(keys[i]); };
    for (int64_t first = 0; values && first < size; first += kRun) {
      float sorted[kRun];
      const int64_t n = std::min(kRun, size - first);
      for (int64_t i = 0; i < n; ++i) sorted[i] = row[place(first + i)];
      write(*values, at[1] + first * steps[1], steps[1], n, sorted);
    }
    if (!indices) return;
    int64_t* to = indices->as<int64_t>() + at[2];
    for (int64_t i = 0; i < size; ++i) to[i * steps[2]] = place(i);
  });
  return nullptr;
}

// ---- the first k: the algorithms of the reference, which says why, on the same pairs

struct Entry {
  float value;
  int64_t index;
};

int64_t top_k_slot(const Ranking& ranking) { return in_slots(ranking.size * static_cast<int64_t>(sizeof(Entry))); }

int64_t top_k_scratch(const BoundCall& call) {
  return std::max<int64_t>(64, top_k_slot(TopRanking(call)) * kFloatBytes * parallel_threads());
}

template <bool descending>
bool comes_before(const Entry& a, const Entry& b) {
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  if constexpr (descending) return (a_nan && !b_nan) || a.value > b.value;
  return (!a_nan && b_nan) || a.value < b.value;
}

template <bool descending>
void top_rows(const KernelCall& call, const TopRanking& ranking) {
  const TensorRef &x = call.inputs[0], *values = output(call, 0), *indices = output(call, 1);
  const int64_t size = ranking.size, k = ranking.k;
  const auto& steps = ranking.steps;
  const auto before = [](const Entry& a, const Entry& b) { return comes_before<descending>(a, b); };
  for_each_ranked(call, ranking, top_k_slot(ranking), [&](const auto& at, float* own) {
    Entry* row = reinterpret_cast<Entry*>(own);
    for (int64_t first = 0; first < size; first += kRun) {
      float buffer[kRun];
      const int64_t n = std::min(kRun, size - first);
      const float* from = read(x, at[0] + first * steps[0], steps[0], n, buffer);
      for (int64_t i = 0; i < n; ++i) row[first + i] = {from[i], first + i};
    }
    if (k * 64 <= size) {
      std::partial_sort(row, row + k, row + size, before);
    } else {
      std::nth_element(row, row + k - 1, row + size, before);
      if (ranking.sorted) std::sort(row, row + k - 1, before);
    }
    for (int64_t i = 0; i < k; ++i) {
      if (values) write(*values, at[1] + i * steps[1], 1, 1, &row[i].value);
      if (indices) indices->as<int64_t>()[at[2] + i * steps[2]] = row[i].index;
    }
  });
}

KernelStatus top_k(const KernelCall& call, const TopRanking& ranking) {
  if (ranking.k == 0 || ranking.size == 0) return nullptr;
  ranking.descending ? top_rows<true>(call, ranking) : top_rows<false>(call, ranking);
  return nullptr;
}

// ---- the first place of the largest or smallest, or of NaN if there is one

// Row-major [outer, size, inner], along the middle.
struct Extremes {
  explicit Extremes(const BoundCall& call) {
    const TensorRef& x = call.inputs[0];
    const int64_t axis = call.attrs->i("axis");
    outer = product_of_sizes(x, 0, axis);
    size = x.rank == 0 ? 1 : x.sizes[axis];
    inner = product_of_sizes(x, axis + 1, x.rank);
  }
  int64_t outer, size, inner;
};

int64_t first_place(const float* values, int64_t n, float wanted) {
  constexpr int64_t kBlock = 64;
  const auto same = [&](int64_t i) { return values[i] == wanted || (wanted != wanted && values[i] != values[i]); };
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    bool any = false;
    for (int64_t j = i; j < i + kBlock; ++j) any |= same(j);
    if (any) break;
  }
  while (i < n && !same(i)) ++i;
  return i;
}

template <RowReduce op>
bool is_better(float value, float best) {
  return op == RowReduce::kMax ? value > best : value < best;
}

template <RowReduce op>
int64_t extreme_of_row(const TensorRef& x, int64_t offset, int64_t size) {
  const auto reduce = reductions_table().rows[static_cast<int>(op)];
  float best = 0;
  int64_t place = -1;
  for (int64_t first = 0; first < size && best == best; first += kRun) {
    float buffer[kRun], top;
    const int64_t n = std::min(kRun, size - first);
    const float* from = read(x, offset + first, 1, n, buffer);
    reduce(from, &top, 1, n);
    if (place >= 0 && top == top && !is_better<op>(top, best)) continue;
    best = top;
    place = first + first_place(from, n, top);
  }
  return place;
}

constexpr int64_t kPanel = 256;  // columns that are searched side by side

template <RowReduce op>
void extremes_of_panel(const TensorRef& x, int64_t offset, const Extremes& sizes, int64_t width, int64_t* places) {
  float best[kPanel], buffer[kPanel];
  int32_t at[kPanel] = {};
  std::copy_n(read(x, offset, 1, width, buffer), width, best);
  for (int64_t i = 1; i < sizes.size; ++i) {
    const float* from = read(x, offset + i * sizes.inner, 1, width, buffer);
    const int32_t here = static_cast<int32_t>(i);
    for (int64_t c = 0; c < width; ++c) {
      const float value = from[c];
      const bool better = (best[c] == best[c]) & (is_better<op>(value, best[c]) | (value != value));
      best[c] = better ? value : best[c];
      at[c] = better ? here : at[c];
    }
  }
  std::copy_n(at, width, places);
}

template <RowReduce op>
KernelStatus arg_extreme(const KernelCall& call, const Extremes& sizes) {
  const TensorRef& x = call.inputs[0];
  int64_t* places = call.outputs[0].as<int64_t>();
  const int64_t panels = (sizes.inner + kPanel - 1) / kPanel;
  for_row_chunks(sizes.outer * panels, sizes.size * std::min(sizes.inner, kPanel), 0.5, [&](int64_t first, int64_t n) {
    for (int64_t task = first; task < first + n; ++task) {
      const int64_t outer = task / panels, column = task % panels * kPanel;
      const int64_t offset = outer * sizes.size * sizes.inner + column;
      int64_t* to = places + outer * sizes.inner + column;
      if (sizes.inner == 1)
        *to = extreme_of_row<op>(x, offset, sizes.size);
      else
        extremes_of_panel<op>(x, offset, sizes, std::min(kPanel, sizes.inner - column), to);
    }
  });
  return nullptr;
}

KernelStatus arg_max(const KernelCall& call, const Extremes& sizes) {
  return arg_extreme<RowReduce::kMax>(call, sizes);
}
KernelStatus arg_min(const KernelCall& call, const Extremes& sizes) {
  return arg_extreme<RowReduce::kMin>(call, sizes);
}

}  // namespace

std::span<const Kernel> orders_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/cpu/orders/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
