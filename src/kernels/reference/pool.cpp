// Pooling over d1..dk of [N, C, d1..dk], and resizing of the last two dims.
#include <atomic>
#include <span>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// Coordinates of a row-major position in the spatial dims of `tensor`, and the offset that they mean.
struct Point {
  int64_t at[kMaxRank];
};
Point point_of(const TensorRef& tensor, int64_t position) {
  Point point;
  for (int i = tensor.rank - 1; i >= 2; --i) {
    point.at[i - 2] = position % tensor.sizes[i];
    position /= tensor.sizes[i];
  }
  return point;
}
int64_t offset_of(const TensorRef& tensor, const int64_t* at) {
  int64_t offset = 0;
  for (int i = 2; i < tensor.rank; ++i) offset += at[i - 2] * tensor.strides[i];
  return offset;
}
int64_t spatial_numel(const TensorRef& tensor) { return product(tensor.sizes, 2, tensor.rank); }

// Calls body(n*C + c, offset of that channel in each tensor) on all threads.
template <size_t N, class Body>
void for_each_channel(const std::array<const TensorRef*, N>& tensors, Body body) {
  const int64_t channels = tensors[0]->sizes[1];
  parallel_for(tensors[0]->sizes[0] * channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::array<int64_t, N> offsets;
      for (size_t t = 0; t < N; ++t) {
        offsets[t] = tensors[t] ? i / channels * tensors[t]->strides[0] + i % channels * tensors[t]->strides[1] : 0;
      }
      body(offsets);
    }
  });
}

// body(at) for the first place of each row, along the last dim, of the box from `begin` to `end`, in row-major order.
template <class Body>
void for_each_row(const int64_t* begin, const int64_t* end, int spatial, Body body) {
  int64_t at[kMaxRank];
  for (int i = 0; i < spatial; ++i) {
    if (begin[i] >= end[i]) return;
    at[i] = begin[i];
  }
  for (;;) {
    body(at);
    int i = spatial - 2;
    while (i >= 0 && ++at[i] == end[i]) {
      at[i] = begin[i];
      --i;
    }
    if (i < 0) return;
  }
}
// All of a channel.
template <class Body>
void for_each_row(const TensorRef& tensor, Body body) {
  constexpr int64_t kOrigin[kMaxRank] = {};
  for_each_row(kOrigin, tensor.sizes + 2, tensor.rank - 2, body);
}

void fill_zero(const TensorRef& tensor, int64_t offset) {
  constexpr double kZeros[kRun] = {};
  const int64_t size = tensor.sizes[tensor.rank - 1], step = tensor.strides[tensor.rank - 1];
  for_each_row(tensor, [&](const int64_t* at) {
    const int64_t row = offset + offset_of(tensor, at);
    for (int64_t i = 0; i < size; i += kRun) store(tensor, row + i * step, step, std::min(kRun, size - i), kZeros);
  });
}

// Whether the places of a channel lie one after another.
bool is_dense(const TensorRef& tensor) {
  for (int i = 2; i < tensor.rank; ++i)
    if (tensor.strides[i] != product(tensor.sizes, i + 1, tensor.rank)) return false;
  return true;
}

}  // namespace

PoolWindow::PoolWindow(const BoundCall& call) {
  const BoundAttrs& attrs = *call.attrs;
  offsets = attrs.b("offsets", attrs.has("kernel_shape") && attrs.has("shape"));
  const size_t spatial = attrs.has("kernel_shape") ? attrs.ints("kernel_shape").size() : 0;
  for (size_t i = 0; i < spatial; ++i) {
    kernel[i] = attrs.ints("kernel_shape")[i];
    strides[i] = attrs.ints("strides")[i];
    pads[i] = attrs.ints("pads")[i];
    end_pads[i] = attrs.ints("pads")[spatial + i];
    dilations[i] = attrs.has("dilations") ? attrs.ints("dilations")[i] : 1;
    taps *= kernel[i];
  }
  include_pad = attrs.b("count_include_pad", false);
}

namespace {

// Which outputs [begin, end) of a row read inside of x by one tap: the first, past the last, the offset in x that the
// first reads and its flat place there; the others follow by the window's stride.
struct Reached {
  int64_t begin, end, from, flat;
};

// visit(reached) for the taps of outputs [begin, end) of the row that starts at `row`, in row-major order, or those of
// each row of taps backwards: then what the outputs bring to a place comes in their order.
template <bool kBackwards = false, class Visit>
void for_each_tap(const PoolWindow& window, const TensorRef& x, int64_t channel, const int64_t* row, int64_t begin,
                  int64_t end, Visit visit) {
  const int spatial = x.rank - 2, last = spatial - 1;
  int64_t start[kMaxRank], first[kMaxRank], past[kMaxRank];  // of the taps that read inside, but for the last dim
  for (int i = 0; i < last; ++i) {
    const int64_t dilation = window.dilations[i], size = x.sizes[2 + i];
    start[i] = row[i] * window.strides[i] - window.pads[i];
    first[i] = start[i] < 0 ? (-start[i] + dilation - 1) / dilation : 0;
    past[i] = start[i] < size ? std::min(window.kernel[i], (size - start[i] + dilation - 1) / dilation) : 0;
  }
  first[last] = 0;
  past[last] = 1;
  const int64_t width = x.sizes[2 + last], step = window.strides[last];
  for_each_row(first, past, spatial, [&](const int64_t* tap) {
    int64_t flat = 0, from = channel;
    for (int i = 0; i < last; ++i) {
      const int64_t place = start[i] + tap[i] * window.dilations[i];
      flat = flat * x.sizes[2 + i] + place;
      from += place * x.strides[2 + i];
    }
    for (int64_t each = 0; each < window.kernel[last]; ++each) {
      const int64_t k = kBackwards ? window.kernel[last] - 1 - each : each;
      const int64_t shift = k * window.dilations[last] - window.pads[last];  // output o reads o * step + shift
      const int64_t inside = std::max(begin, shift < 0 ? (-shift + step - 1) / step : 0);
      const int64_t outside = std::min(end, shift < width ? (width - shift + step - 1) / step : 0);
      const int64_t place = inside * step + shift;
      if (inside < outside) visit(Reached{inside, outside, from + place * x.strides[2 + last], flat * width + place});
    }
  });
}

// body(row, begin, end) for parts of at most kRun outputs of each row.
template <class Body>
void for_each_part(const TensorRef& outputs, Body body) {
  const int64_t width = outputs.sizes[outputs.rank - 1];
  for_each_row(outputs, [&](const int64_t* row) {
    for (int64_t begin = 0; begin < width; begin += kRun) body(row, begin, std::min(width, begin + kRun));
  });
}

}  // namespace

namespace {

// Of the image's place `flat` in the window of the output at (row[0], col); and back, -1 where that lies outside.
int64_t place_in_window(const PoolWindow& window, const TensorRef& x, const int64_t* row, int64_t col, int64_t flat) {
  const int64_t h = flat / x.sizes[3] - (row[0] * window.strides[0] - window.pads[0]);
  const int64_t w = flat % x.sizes[3] - (col * window.strides[1] - window.pads[1]);
  return h / window.dilations[0] * window.kernel[1] + w / window.dilations[1];
}
int64_t flat_of_place(const PoolWindow& window, const TensorRef& x, const int64_t* row, int64_t col, int64_t place) {
  const int64_t kh = place / window.kernel[1], kw = place % window.kernel[1];
  const int64_t h = row[0] * window.strides[0] - window.pads[0] + kh * window.dilations[0];
  const int64_t w = col * window.strides[1] - window.pads[1] + kw * window.dilations[1];
  const bool inside = kh < window.kernel[0] && h >= 0 && h < x.sizes[2] && w >= 0 && w < x.sizes[3];
  return inside ? h * x.sizes[3] + w : -1;
}

}  // namespace

KernelStatus max_pool(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &x = call.inputs[0], *y = output(call, 0), *indices = output(call, 1);
  const int last = x.rank - 1;
  const int64_t step = window.strides[last - 2];
  for_each_channel<3>({&x, y, indices}, [&](const auto& offsets) {
    for_each_part(y ? *y : *indices, [&](const int64_t* row, int64_t begin, int64_t end) {
      double best[kRun];
      int64_t best_at[kRun];
      std::fill_n(best, end - begin, -kInfinity);
      std::fill_n(best_at, end - begin, -1);
      for_each_tap(window, x, offsets[0], row, begin, end, [&](const Reached& tap) {
        for (int64_t i = 0; i < tap.end - tap.begin; ++i) {
          const double value = get(x, tap.from + i * step * x.strides[last]);
          const int64_t at = tap.begin - begin + i;
          if (best_at[at] >= 0 && !(value > best[at]) && value == value) continue;
          best[at] = value;
          best_at[at] = tap.flat + i * step;
        }
      });
      const auto first_of = [&](const TensorRef& tensor) {
        return offset_of(tensor, row) + begin * tensor.strides[last];
      };
      if (y) store(*y, offsets[1] + first_of(*y), y->strides[last], end - begin, best);
      if (indices && window.offsets)
        for (int64_t i = 0; i < end - begin; ++i) best_at[i] = place_in_window(window, x, row, begin + i, best_at[i]);
      if (indices) store(*indices, offsets[2] + first_of(*indices), indices->strides[last], end - begin, best_at);
    });
  });
  return nullptr;
}

KernelStatus max_pool_grad(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &dy = call.inputs[0], &indices = call.inputs[1], &dx = call.outputs[0];
  const int64_t size = spatial_numel(dx);
  const int last = dy.rank - 1;
  const bool dense = is_dense(dx);
  std::atomic<bool> good = true;
  for_each_channel<3>({&dy, &indices, &dx}, [&](const auto& offsets) {
    fill_zero(dx, offsets[2]);
    for_each_row(dy, [&](const int64_t* row) {
      int64_t from = offsets[0] + offset_of(dy, row), index = offsets[1] + offset_of(indices, row);
      for (int64_t o = 0; o < dy.sizes[last]; ++o, from += dy.strides[last], index += indices.strides[last]) {
        const int64_t given = get_int(indices, index);
        const int64_t flat = window.offsets ? flat_of_place(window, dx, row, o, given) : given;
        if (flat < 0 || flat >= size) {
          good = false;
          continue;
        }
        const int64_t to = offsets[2] + (dense ? flat : offset_of(dx, point_of(dx, flat).at));
        set(dx, to, get(dx, to) + get(dy, from));
      }
    });
  });
  return good ? nullptr : "MaxPoolGrad: an index is out of range";
}

namespace {

// How many places of one dim output o of an average pool counts: what it divides by is the product over the dims.
int64_t counted(const PoolWindow& window, const TensorRef& x, int i, int64_t o) {
  const int64_t begin = o * window.strides[i] - window.pads[i], size = x.sizes[2 + i];
  const int64_t end = std::min(begin + window.kernel[i], size + window.end_pads[i]);
  if (window.include_pad) return end - begin;
  return std::max<int64_t>(std::min(end, size) - std::max<int64_t>(begin, 0), 0);
}

// values[o - begin] by what output o of a row divides by.
void divide(const PoolWindow& window, const TensorRef& x, const int64_t* row, int64_t begin, int64_t end,
            double* values) {
  const int last = x.rank - 3;
  int64_t area = 1;
  for (int i = 0; i < last; ++i) area *= counted(window, x, i, row[i]);
  for (int64_t o = begin; o < end; ++o) values[o - begin] /= static_cast<double>(area * counted(window, x, last, o));
}

}  // namespace

KernelStatus average_pool(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int last = x.rank - 1;
  const int64_t step = window.strides[last - 2] * x.strides[last];
  for_each_channel<2>({&x, &y}, [&](const auto& offsets) {
    for_each_part(y, [&](const int64_t* row, int64_t begin, int64_t end) {
      double sums[kRun] = {};
      for_each_tap(window, x, offsets[0], row, begin, end, [&](const Reached& tap) {
        for (int64_t i = 0; i < tap.end - tap.begin; ++i) sums[tap.begin - begin + i] += get(x, tap.from + i * step);
      });
      divide(window, x, row, begin, end, sums);
      store(y, offsets[1] + offset_of(y, row) + begin * y.strides[last], y.strides[last], end - begin, sums);
    });
  });
  return nullptr;
}

KernelStatus average_pool_grad(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  const int last = dx.rank - 1;
  const int64_t step = window.strides[last - 2] * dx.strides[last];
  for_each_channel<2>({&dy, &dx}, [&](const auto& offsets) {
    fill_zero(dx, offsets[1]);
    for_each_part(dy, [&](const int64_t* row, int64_t begin, int64_t end) {
      double shares[kRun];
      load(dy, offsets[0] + offset_of(dy, row) + begin * dy.strides[last], dy.strides[last], end - begin, shares);
      divide(window, dx, row, begin, end, shares);
      for_each_tap<true>(window, dx, offsets[1], row, begin, end, [&](const Reached& tap) {
        for (int64_t i = 0; i < tap.end - tap.begin; ++i) {
          const int64_t to = tap.from + i * step;
          set(dx, to, get(dx, to) + shares[tap.begin - begin + i]);
        }
      });
    });
  });
  return nullptr;
}

namespace {

// Which two input positions an output position mixes, and how much of the second.
struct Mix {
  int64_t first, second;
  double of_second;
};

// Of one dim.
struct Scale {
  Scale(const Resizing& resizing, int64_t from, int64_t to)
      : nearest(resizing.nearest), corners(resizing.align_corners), in(from), out(to) {
    f32 = static_cast<float>(in) / static_cast<float>(out);
    f64 = static_cast<double>(in) / static_cast<double>(out);
  }
  Mix at(int64_t place) const {
    if (nearest) {
      const int64_t from = std::min(static_cast<int64_t>(static_cast<float>(place) * f32), in - 1);
      return {from, from, 0};
    }
    double position;
    if (corners) {
      position = out > 1 ? static_cast<double>(place) * static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
    } else {
      position = std::max(0.0, (static_cast<double>(place) + 0.5) * f64 - 0.5);
    }
    const int64_t first = std::min(static_cast<int64_t>(position), in - 1);
    return {first, std::min(first + 1, in - 1), std::clamp(position - static_cast<double>(first), 0.0, 1.0)};
  }

  bool nearest, corners;
  int64_t in, out;
  float f32;
  double f64;
};

struct Term {
  double weight;
  int64_t from;  // offset in small
};

// visit(terms, offset in large) for every element of the map small -> large over the last two dims; those of one image
// in one thread.
template <class Visit>
void resize_terms(const Resizing& resizing, const TensorRef& small, const TensorRef& large, Visit visit) {
  const int h = small.rank - 2, w = small.rank - 1;
  const Scale by_rows(resizing, small.sizes[h], large.sizes[h]), by_cols(resizing, small.sizes[w], large.sizes[w]);
  const int64_t places = std::max<int64_t>(1, large.sizes[h] * large.sizes[w]);
  parallel_for(resizing.images.numel(), std::max<int64_t>(1, 1024 / places), [&](int64_t begin, int64_t end) {
    resizing.images.for_each(begin, end, [&](int64_t, const auto& at) {
      for (int64_t i = 0; i < large.sizes[h]; ++i) {
        const Mix rows = by_rows.at(i);
        for (int64_t j = 0; j < large.sizes[w]; ++j) {
          const Mix cols = by_cols.at(j);
          const int64_t to = at[1] + i * large.strides[h] + j * large.strides[w];
          auto from = [&](int64_t r, int64_t c) { return at[0] + r * small.strides[h] + c * small.strides[w]; };
          if (resizing.nearest) {
            const Term only{1, from(rows.first, cols.first)};
            visit(std::span<const Term>(&only, 1), to);
            continue;
          }
          const Term terms[4] = {
              {(1 - rows.of_second) * (1 - cols.of_second), from(rows.first, cols.first)},
              {(1 - rows.of_second) * cols.of_second, from(rows.first, cols.second)},
              {rows.of_second * (1 - cols.of_second), from(rows.second, cols.first)},
              {rows.of_second * cols.of_second, from(rows.second, cols.second)},
          };
          visit(std::span<const Term>(terms), to);
        }
      }
    });
  });
}

}  // namespace

Resizing::Resizing(const BoundCall& call, const TensorRef& small, const TensorRef& large)
    : nearest(call.attrs->s("mode") == "nearest"), align_corners(call.attrs->b("align_corners")) {
  for (int i = 0; i < small.rank - 2; ++i) images.add_dim(small.sizes[i], {small.strides[i], large.strides[i]});
}

KernelStatus resize(const KernelCall& call, const Resizing& resizing) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  resize_terms(resizing, x, y, [&](std::span<const Term> terms, int64_t to) {
    double sum = 0;
    for (const Term& term : terms)
      if (term.weight != 0) sum += term.weight * get(x, term.from);
    set(y, to, sum);
  });
  return nullptr;
}

KernelStatus resize_grad(const KernelCall& call, const ResizingGrad& resizing) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  resizing.dx.for_each([&](int64_t, const auto& at) { set(dx, at[0], 0.0); });
  resize_terms(resizing, dx, dy, [&](std::span<const Term> terms, int64_t from) {
    for (const Term& term : terms)
      if (term.weight != 0) set(dx, term.from, get(dx, term.from) + term.weight * get(dy, from));
  });
  return nullptr;
}

}  // namespace lowtide::reference
