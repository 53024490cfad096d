#include <type_traits>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// For every output element: fold(values, n) over the runs of what it reduces, in row-major order, then finish(count).
// Make() gives a fresh fold.
template <class T, class Make>
KernelStatus reduce(const KernelCall& call, const Reduction& reduction, Make make) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const Grid<2>& outer = reduction.outer;
  const Grid<1>& inner = reduction.inner;
  const int64_t count = reduction.count, length = reduction.length, stride = reduction.stride;
  parallel_for(outer.numel(), std::max<int64_t>(1, 4096 / std::max<int64_t>(count, 1)),
               [&](int64_t begin, int64_t end) {
                 outer.for_each(begin, end, [&](int64_t, const auto& offsets) {
                   auto fold = make();
                   if (count > 0) {
                     inner.for_each([&](int64_t, const auto& row) {
                       for (int64_t first = 0; first < length; first += kRun) {
                         T values[kRun];
                         const int64_t n = std::min(kRun, length - first);
                         load(x, offsets[0] + row[0] + first * stride, stride, n, values);
                         fold.run(values, n);
                       }
                     });
                   }
                   const T result = fold.finish(count);
                   store(y, offsets[1], 1, 1, &result);
                 });
               });
  return nullptr;
}

// What sums and products are kept in: integers wrap.
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;

template <class T>
struct SumFold {
  Total<T> total = 0;
  void run(const T* values, int64_t n) {
    Total<T> block = 0;
    for (int64_t i = 0; i < n; ++i) block += static_cast<Total<T>>(values[i]);
    total += block;
  }
  T finish(int64_t) const { return static_cast<T>(total); }
};

struct MeanFold : SumFold<double> {
  double finish(int64_t count) const { return total / static_cast<double>(count); }
};

template <class T>
struct ProductFold {
  Total<T> total = 1;
  void run(const T* values, int64_t n) {
    for (int64_t i = 0; i < n; ++i) total *= static_cast<Total<T>>(values[i]);
  }
  T finish(int64_t) const { return static_cast<T>(total); }
};

struct NormFold {
  double total = 0;
  void run(const double* values, int64_t n) {
    double block = 0;
    for (int64_t i = 0; i < n; ++i) block += values[i] * values[i];
    total += block;
  }
  double finish(int64_t) const { return std::sqrt(total); }
};

// The largest (sign 1) or smallest (-1); NaN wins over everything.
template <class T, int sign>
struct ExtremeFold {
  T best = 0;
  int64_t at = -1, seen = 0;
  void run(const T* values, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const bool better = sign > 0 ? values[i] > best : values[i] < best;
      if (at < 0 || (!is_nan_value(best) && (better || is_nan_value(values[i])))) {
        best = values[i];
        at = seen + i;
      }
    }
    seen += n;
  }
  T finish(int64_t) const { return best; }
};

// Scaled by the largest value seen so far.
struct LogSumExpFold {
  double largest = -kInfinity, total = 0;
  void run(const double* values, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double x = values[i];
      if (x > largest) {
        total = total * std::exp(largest - x) + 1;
        largest = x;
      } else if (x != -kInfinity) {
        total += x == largest ? 1 : std::exp(x - largest);
      }
    }
  }
  double finish(int64_t) const {
    return std::fabs(largest) == kInfinity && total == total ? largest : largest + std::log(total);
  }
};

template <int sign>
KernelStatus extreme(const KernelCall& call, const Reduction& reduction) {
  if (is_float(call.inputs[0].dtype))
    return reduce<double>(call, reduction, [] { return ExtremeFold<double, sign>(); });
  return reduce<int64_t>(call, reduction, [] { return ExtremeFold<int64_t, sign>(); });
}

template <class T, int sign>
KernelStatus arg_extreme(const KernelCall& call, const Reduction& reduction) {
  struct Fold : ExtremeFold<T, sign> {
    T finish(int64_t) const { return static_cast<T>(this->at); }
  };
  return reduce<T>(call, reduction, [] { return Fold(); });
}

// The sums of doubles: those of several blocks at once, none of which waits for another. Each is summed in the order of
// SumFold.
constexpr int kAtOnce = 8;

template <class Term>
struct BlockSums {
  int64_t stride;
  Term term;

  // Of a block for each output.
  void of_blocks(const double* const (&from)[kAtOnce], int64_t n, double (&totals)[kAtOnce]) const {
    bool side_by_side = true;
    for (int g = 1; g < kAtOnce; ++g) side_by_side = side_by_side && from[g] == from[0] + g;
    double sums[kAtOnce] = {};
    if (side_by_side) {
      for (int64_t i = 0; i < n; ++i)
        for (int g = 0; g < kAtOnce; ++g) sums[g] += term(from[0][i * stride + g]);
    } else {
      for (int64_t i = 0; i < n; ++i)
        for (int g = 0; g < kAtOnce; ++g) sums[g] += term(from[g][i * stride]);
    }
    for (int g = 0; g < kAtOnce; ++g) totals[g] += sums[g];
  }

  // Of all blocks of a row for one output.
  void of_row(const double* from, int64_t length, double& total) const {
    int64_t first = 0;
    for (; first + kAtOnce * kRun <= length; first += kAtOnce * kRun) {
      double sums[kAtOnce] = {};
      for (int64_t i = 0; i < kRun; ++i)
        for (int g = 0; g < kAtOnce; ++g) sums[g] += term(from[(first + g * kRun + i) * stride]);
      for (const double sum : sums) total += sum;
    }
    for (; first < length; first += kRun) {
      double sum = 0;
      for (int64_t i = first; i < std::min(length, first + kRun); ++i) sum += term(from[i * stride]);
      total += sum;
    }
  }
};

// y = finish(the sum of term(x)), of f64.
template <class Term, class Finish>
KernelStatus sum_doubles(const KernelCall& call, const Reduction& reduction, Term term, Finish finish) {
  const double* x = call.inputs[0].as<double>();
  double* y = call.outputs[0].as<double>();
  const int64_t count = reduction.count, length = reduction.length;
  const BlockSums<Term> blocks{reduction.stride, term};
  const auto for_rows = [&](auto body) {
    if (count > 0) reduction.inner.for_each([&](int64_t, const auto& row) { body(row[0]); });
  };
  const auto sum_each = [&](const int64_t(*at)[2], int outputs) {
    double totals[kAtOnce] = {};
    if (outputs == kAtOnce) {
      for_rows([&](int64_t row) {
        for (int64_t first = 0; first < length; first += kRun) {
          const double* from[kAtOnce];
          for (int g = 0; g < kAtOnce; ++g) from[g] = x + at[g][0] + row + first * reduction.stride;
          blocks.of_blocks(from, std::min(kRun, length - first), totals);
        }
      });
    } else {
      for (int g = 0; g < outputs; ++g)
        for_rows([&](int64_t row) { blocks.of_row(x + at[g][0] + row, length, totals[g]); });
    }
    for (int g = 0; g < outputs; ++g) y[at[g][1]] = finish(totals[g]);
  };
  const int64_t grain = std::max<int64_t>(kAtOnce, 4096 / std::max<int64_t>(count, 1));
  parallel_for(reduction.outer.numel(), grain, [&](int64_t begin, int64_t end) {
    int64_t at[kAtOnce][2];
    int outputs = 0;
    reduction.outer.for_each(begin, end, [&](int64_t, const auto& offsets) {
      at[outputs][0] = offsets[0];
      at[outputs][1] = offsets[1];
      if (++outputs < kAtOnce) return;
      sum_each(at, outputs);
      outputs = 0;
    });
    sum_each(at, outputs);
  });
  return nullptr;
}

bool are_doubles(const KernelCall& call) {
  return call.inputs[0].dtype == DType::kF64 && call.outputs[0].dtype == DType::kF64;
}
struct Itself {
  double operator()(double value) const { return value; }
};

}  // namespace

Reduction::Reduction(const BoundCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  bool reduced[kMaxRank] = {};
  if (call.attrs->has("axis")) {
    reduced[call.attrs->i("axis")] = true;
  } else {
    for (int64_t axis : call.attrs->ints("axes")) reduced[axis] = true;
  }
  const bool keepdims = call.attrs->b("keepdims");
  for (int i = 0, out = 0; i < x.rank; ++i) {
    if (reduced[i]) {
      inner.add_dim(x.sizes[i], {x.strides[i]});
      out += keepdims;
    } else {
      outer.add_dim(x.sizes[i], {x.strides[i], y.strides[out++]});
    }
  }
  inner.collapse();
  count = inner.numel();
  if (inner.rank == 0) return;
  --inner.rank;
  length = inner.sizes[inner.rank];
  stride = inner.strides[inner.rank][0];
}

KernelStatus reduce_sum(const KernelCall& call, const Reduction& reduction) {
  if (are_doubles(call)) return sum_doubles(call, reduction, Itself{}, Itself{});
  if (is_float(call.inputs[0].dtype)) return reduce<double>(call, reduction, [] { return SumFold<double>(); });
  return reduce<int64_t>(call, reduction, [] { return SumFold<int64_t>(); });
}
KernelStatus reduce_mean(const KernelCall& call, const Reduction& reduction) {
  const double count = static_cast<double>(reduction.count);
  if (are_doubles(call)) return sum_doubles(call, reduction, Itself{}, [=](double total) { return total / count; });
  return reduce<double>(call, reduction, [] { return MeanFold(); });
}
KernelStatus reduce_max(const KernelCall& call, const Reduction& reduction) { return extreme<1>(call, reduction); }
KernelStatus reduce_min(const KernelCall& call, const Reduction& reduction) { return extreme<-1>(call, reduction); }
KernelStatus reduce_prod(const KernelCall& call, const Reduction& reduction) {
  if (is_float(call.inputs[0].dtype)) return reduce<double>(call, reduction, [] { return ProductFold<double>(); });
  return reduce<int64_t>(call, reduction, [] { return ProductFold<int64_t>(); });
}
KernelStatus reduce_l2(const KernelCall& call, const Reduction& reduction) {
  if (are_doubles(call)) {
    return sum_doubles(
        call, reduction, [](double value) { return value * value; }, [](double total) { return std::sqrt(total); });
  }
  return reduce<double>(call, reduction, [] { return NormFold(); });
}
KernelStatus reduce_log_sum_exp(const KernelCall& call, const Reduction& reduction) {
  return reduce<double>(call, reduction, [] { return LogSumExpFold(); });
}
KernelStatus arg_max(const KernelCall& call, const Reduction& reduction) {
  return is_float(call.inputs[0].dtype) ? arg_extreme<double, 1>(call, reduction)
                                        : arg_extreme<int64_t, 1>(call, reduction);
}
KernelStatus arg_min(const KernelCall& call, const Reduction& reduction) {
  return is_float(call.inputs[0].dtype) ? arg_extreme<double, -1>(call, reduction)
                                        : arg_extreme<int64_t, -1>(call, reduction);
}

template <class T>
static KernelStatus cumulate(const KernelCall& call, const Cumulation& rows) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int64_t size = rows.size;
  rows.for_each(4096 / std::max<int64_t>(size, 1), [&](const auto& offsets) {
    Total<T> total = 0;
    for (int64_t k = 0; k < size; ++k) {
      const int64_t i = rows.reverse ? size - 1 - k : k;
      T value;
      load(x, offsets[0] + i * rows.steps[0], 1, 1, &value);
      total += static_cast<Total<T>>(value);
      value = static_cast<T>(total);
      store(y, offsets[1] + i * rows.steps[1], 1, 1, &value);
    }
  });
  return nullptr;
}

KernelStatus cum_sum(const KernelCall& call, const Cumulation& cumulation) {
  return is_float(call.inputs[0].dtype) ? cumulate<double>(call, cumulation) : cumulate<int64_t>(call, cumulation);
}

// Every row in order, ties by index. scratch: the row's values and its indices.
template <class T>
static KernelStatus order_rows(const KernelCall& call, const Ranking& ranking) {
  const TensorRef &x = call.inputs[0], *values_out = output(call, 0), *indices_out = output(call, 1);
  const int64_t size = ranking.size;
  const bool descending = ranking.descending;
  const auto& steps = ranking.steps;
  T* values = static_cast<T*>(call.scratch);
  int64_t* order = static_cast<int64_t*>(call.scratch) + size;
  ranking.rows.for_each([&](int64_t, const auto& offsets) {
    load(x, offsets[0], steps[0], size, values);
    for (int64_t i = 0; i < size; ++i) order[i] = i;
    // NaN counts as the largest.
    auto before = [&](int64_t a, int64_t b) {
      const T p = values[a], q = values[b];
      const bool p_nan = is_nan_value(p), q_nan = is_nan_value(q);
      if (p_nan != q_nan) return descending ? p_nan : q_nan;
      if (p_nan || p == q) return a < b;
      return descending ? p > q : p < q;
    };
    std::sort(order, order + size, before);
    for (int64_t i = 0; i < size; ++i) {
      if (values_out) store(*values_out, offsets[1] + i * steps[1], 1, 1, values + order[i]);
      if (indices_out) set_int(*indices_out, offsets[2] + i * steps[2], order[i]);
    }
  });
  return nullptr;
}

// The first `k` of every row. Which of equal entries, and in which order, is what the standard library's algorithms
// make of them: PyTorch's kernel runs the same ones on the same pairs, by the same rule. scratch: the row.
template <class T>
static KernelStatus top_rows(const KernelCall& call, const TopRanking& ranking) {
  struct Entry {
    T value;
    int64_t index;
  };
  const TensorRef &x = call.inputs[0], *values_out = output(call, 0), *indices_out = output(call, 1);
  const int64_t size = ranking.size, k = ranking.k;
  const bool descending = ranking.descending;
  const auto& steps = ranking.steps;
  Entry* row = static_cast<Entry*>(call.scratch);
  // NaN counts as the largest.
  const auto before = [descending](const Entry& a, const Entry& b) {
    const bool a_nan = is_nan_value(a.value), b_nan = is_nan_value(b.value);
    if (descending) return (a_nan && !b_nan) || a.value > b.value;
    return (!a_nan && b_nan) || a.value < b.value;
  };
  ranking.rows.for_each([&](int64_t, const auto& offsets) {
    for (int64_t first = 0; first < size; first += kRun) {
      T values[kRun];
      const int64_t n = std::min(kRun, size - first);
      load(x, offsets[0] + first * steps[0], steps[0], n, values);
      for (int64_t i = 0; i < n; ++i) row[first + i] = {values[i], first + i};
    }
    if (k * 64 <= size) {
      std::partial_sort(row, row + k, row + size, before);
    } else {
      std::nth_element(row, row + k - 1, row + size, before);
      if (ranking.sorted) std::sort(row, row + k - 1, before);
    }
    for (int64_t i = 0; i < k; ++i) {
      if (values_out) store(*values_out, offsets[1] + i * steps[1], 1, 1, &row[i].value);
      if (indices_out) set_int(*indices_out, offsets[2] + i * steps[2], row[i].index);
    }
  });
  return nullptr;
}

KernelStatus top_k(const KernelCall& call, const TopRanking& ranking) {
  return is_float(call.inputs[0].dtype) ? top_rows<double>(call, ranking) : top_rows<int64_t>(call, ranking);
}
KernelStatus sort(const KernelCall& call, const SortRanking& ranking) {
  return is_float(call.inputs[0].dtype) ? order_rows<double>(call, ranking) : order_rows<int64_t>(call, ranking);
}

SortedRows::SortedRows(const BoundCall& call)
    : elements(row_major_order<1>(call, call.outputs[0], {&call.inputs[1]})),
      size(call.inputs[0].sizes[call.inputs[0].rank - 1]),
      stride(call.inputs[0].strides[call.inputs[0].rank - 1]),
      right(call.attrs->b("right")) {
  const TensorRef &ascending = call.inputs[0], &values = call.inputs[1];
  for (int i = 0; i + 1 < ascending.rank; ++i) rows.add_dim(ascending.sizes[i], {ascending.strides[i]});
  values_each = ascending.rank == 1 ? elements.numel() : values.sizes[values.rank - 1];
}

template <class T>
static KernelStatus search_rows(const KernelCall& call, const SortedRows& sorted) {
  const TensorRef &ascending = call.inputs[0], &values = call.inputs[1], &places = call.outputs[0];
  sorted.rows.for_each([&](int64_t row, const auto& begin) {
    const int64_t first = row * sorted.values_each;
    sorted.elements.for_each(first, first + sorted.values_each, [&](int64_t, const auto& at) {
      T value;
      load(values, at[0], 1, 1, &value);
      int64_t low = 0, high = sorted.size;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        T found;
        load(ascending, begin[0] + middle * sorted.stride, 1, 1, &found);
        const bool is_behind = sorted.right ? found > value : found >= value;
        if (is_behind) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      set_int(places, at[1], low);
    });
  });
  return nullptr;
}

KernelStatus search_sorted(const KernelCall& call, const SortedRows& sorted) {
  return is_float(call.inputs[0].dtype) ? search_rows<double>(call, sorted) : search_rows<int64_t>(call, sorted);
}

int64_t sort_scratch(const BoundCall& call) { return 16 * Ranking(call, false).size; }

}  // namespace lowtide::reference
