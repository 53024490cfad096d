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
  const size_t spatial = attrs.ints("kernel_shape").size();
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

KernelStatus max_pool(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &x = call.inputs[0], *y = output(call, 0), *indices = output(call, 1);
  const TensorRef& shape = y ? *y : *indices;
  const int spatial = x.rank - 2, last = spatial - 1;
  const int64_t step = window.dilations[last];
  for_each_channel<3>({&x, y, indices}, [&](const auto& offsets) {
    for_each_row(shape, [&](const int64_t* row) {
      int64_t out[kMaxRank], start[kMaxRank], begin[kMaxRank], end[kMaxRank];  // of taps, those inside
      std::copy_n(row, spatial, out);
      const auto enter = [&](int i) {
        const int64_t dilation = window.dilations[i];
        start[i] = out[i] * window.strides[i] - window.pads[i];
        begin[i] = start[i] < 0 ? (-start[i] + dilation - 1) / dilation : 0;
        end[i] = start[i] < x.sizes[2 + i]
                     ? std::min(window.kernel[i], (x.sizes[2 + i] - start[i] + dilation - 1) / dilation)
                     : 0;
      };
      for (int i = 0; i < last; ++i) enter(i);
      for (; out[last] < shape.sizes[2 + last]; ++out[last]) {
        enter(last);
        double best = -kInfinity;
        int64_t best_at = -1;
        for_each_row(begin, end, spatial, [&](const int64_t* tap) {
          int64_t flat = 0, from = offsets[0];
          for (int i = 0; i < spatial; ++i) {
            const int64_t place = start[i] + tap[i] * window.dilations[i];
            flat = flat * x.sizes[2 + i] + place;
            from += place * x.strides[2 + i];
          }
          for (int64_t k = begin[last]; k < end[last]; ++k, flat += step, from += step * x.strides[2 + last]) {
            const double value = get(x, from);
            if (best_at < 0 || value > best || value != value) {
              best = value;
              best_at = flat;
            }
          }
        });
        if (y) set(*y, offsets[1] + offset_of(*y, out), best);
        if (indices) set_int(*indices, offsets[2] + offset_of(*indices, out), best_at);
      }
    });
  });
  return nullptr;
}

KernelStatus max_pool_grad(const KernelCall& call) {
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
        const int64_t flat = get_int(indices, index);
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

// The part of x that one output of an average pool covers, and what it divides by.
struct Box {
  int64_t begin[kMaxRank], end[kMaxRank];
  double divisor;
};
Box box_of(const PoolWindow& window, const TensorRef& x, const Point& out) {
  const int spatial = x.rank - 2;
  int64_t padded = 1, inside = 1;
  Box box;
  for (int i = 0; i < spatial; ++i) {
    const int64_t begin = out.at[i] * window.strides[i] - window.pads[i];
    const int64_t end = std::min(begin + window.kernel[i], x.sizes[2 + i] + window.end_pads[i]);
    box.begin[i] = std::max<int64_t>(begin, 0);
    box.end[i] = std::min(end, x.sizes[2 + i]);
    padded *= end - begin;
    inside *= std::max<int64_t>(box.end[i] - box.begin[i], 0);
  }
  box.divisor = static_cast<double>(window.include_pad ? padded : inside);
  return box;
}
// visit(offset in x) over the box, in row-major order.
template <class Visit>
void for_each_in(const Box& box, const TensorRef& x, int64_t channel, Visit visit) {
  const int spatial = x.rank - 2;
  const int64_t count = box.end[spatial - 1] - box.begin[spatial - 1], step = x.strides[x.rank - 1];
  for_each_row(box.begin, box.end, spatial, [&](const int64_t* at) {
    const int64_t row = channel + offset_of(x, at);
    for (int64_t i = 0; i < count; ++i) visit(row + i * step);
  });
}

}  // namespace

KernelStatus average_pool(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  for_each_channel<2>({&x, &y}, [&](const auto& offsets) {
    for (int64_t o = 0; o < spatial_numel(y); ++o) {
      const Point out = point_of(y, o);
      const Box box = box_of(window, x, out);
      double sum = 0;
      for_each_in(box, x, offsets[0], [&](int64_t at) { sum += get(x, at); });
      set(y, offsets[1] + offset_of(y, out.at), sum / box.divisor);
    }
  });
  return nullptr;
}

KernelStatus average_pool_grad(const KernelCall& call, const PoolWindow& window) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  for_each_channel<2>({&dy, &dx}, [&](const auto& offsets) {
    fill_zero(dx, offsets[1]);
    for (int64_t o = 0; o < spatial_numel(dy); ++o) {
      const Point out = point_of(dy, o);
      const Box box = box_of(window, dx, out);
      const double share = get(dy, offsets[0] + offset_of(dy, out.at)) / box.divisor;
      for_each_in(box, dx, offsets[1], [&](int64_t to) { set(dx, to, get(dx, to) + share); });
    }
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
