// Ops that move elements: each output position takes one input position, or a fill.
#include <cstring>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// y[c0, c1, …] = x[source(0, c0), source(1, c1), …], or `fill` where a source is -1. `sizes` are y's (or those of a
// part). visit(y offset, x offset or -1) per position, in row-major order of y.
template <class Source, class Visit>
void visit_sources(const TensorRef& x, const TensorRef& y, Source source, Visit visit) {
  if (y.numel() == 0) return;
  if (y.rank == 0) return visit(0, 0);
  const int last = y.rank - 1;
  const int64_t row = y.sizes[last];
  for (int64_t outer = 0; outer < y.numel() / row; ++outer) {
    int64_t rest = outer, from = 0, to = 0;
    bool inside = true;
    for (int i = last - 1; i >= 0; --i) {
      const int64_t coordinate = rest % y.sizes[i], taken = source(i, coordinate);
      rest /= y.sizes[i];
      to += coordinate * y.strides[i];
      inside &= taken >= 0;
      from += taken * x.strides[i];
    }
    for (int64_t c = 0; c < row; ++c) {
      const int64_t taken = inside ? source(last, c) : -1;
      visit(to + c * y.strides[last], taken >= 0 ? from + taken * x.strides[last] : -1);
    }
  }
}

template <class Source>
KernelStatus take(const KernelCall& call, double fill, Source source) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int64_t size = size_bytes(y.dtype);
  visit_sources(x, y, source, [&](int64_t to, int64_t from) {
    if (from >= 0) {
      copy_elements(address(y, to), 1, address(x, from), 1, 1, size);
    } else {
      set(y, to, fill);
    }
  });
  return nullptr;
}

// Copies x into the region of y that starts at `offset`.
void copy_into(const Runs<2>& runs, const TensorRef& x, const TensorRef& y, int64_t offset) {
  const int64_t size = size_bytes(y.dtype);
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    copy_elements(address(y, offset + at[1]), steps[1], address(x, at[0]), steps[0], n, size);
  });
}

// Where a padded coordinate of one axis comes from; -1: the fill.
int64_t padded_source(int64_t coordinate, int64_t begin, int64_t size, char mode) {
  const int64_t at = coordinate - begin;
  if (at >= 0 && at < size) return at;
  switch (mode) {
    case 'r': {  // reflect: the edge itself is not repeated
      if (size == 1) return 0;
      const int64_t period = 2 * (size - 1), folded = (at % period + period) % period;
      return folded < size ? folded : period - folded;
    }
    case 'e': return at < 0 ? 0 : size - 1;
    case 'w': return (at % size + size) % size;
    default: return -1;
  }
}

}  // namespace

Part::Part(const BoundCall& call, size_t operand) {
  if (operand >= call.inputs.size()) return;
  const int64_t axis = call.attrs->i("axis");
  TensorRef part = call.outputs[0];
  part.sizes[axis] = call.inputs[operand].sizes[axis];
  runs = pairs(call, call.inputs[operand], part);
  for (size_t i = 0; i < operand; ++i) offset += call.inputs[i].sizes[axis] * part.strides[axis];
}

KernelStatus concat(const KernelCall& call, std::span<const Part> parts) {
  for (size_t i = 0; i < call.inputs.size(); ++i)
    copy_into(parts[i].runs, call.inputs[i], call.outputs[0], parts[i].offset);
  return nullptr;
}

SlicePlace::SlicePlace(const BoundCall& call) : base(pairs(call, call.inputs[0], call.outputs[0])) {
  const int64_t axis = call.attrs->i("axis");
  TensorRef part = call.outputs[0];
  offset = call.attrs->i("start") * part.strides[axis];
  part.strides[axis] *= call.attrs->i("step");
  update = pairs(call, call.inputs[1], part);
}

KernelStatus slice_scatter(const KernelCall& call, const SlicePlace& place) {
  const TensorRef &base = call.inputs[0], &y = call.outputs[0];
  if (base.data != y.data) copy_into(place.base, base, y, 0);
  copy_into(place.update, call.inputs[1], y, place.offset);
  return nullptr;
}

Padding::Padding(const BoundCall& call) : mode(call.attrs->s("mode")[0]), fill(call.attrs->f("value", 0)) {
  std::copy_n(call.attrs->ints("pads").begin(), call.inputs[0].rank, before);
}

KernelStatus pad(const KernelCall& call, const Padding& padding) {
  const TensorRef& x = call.inputs[0];
  return take(call, padding.fill, [&](int dim, int64_t coordinate) {
    return padded_source(coordinate, padding.before[dim], x.sizes[dim], padding.mode);
  });
}

KernelStatus pad_grad(const KernelCall& call, const PaddingGrad& padding) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  padding.dx.for_each([&](int64_t, const auto& at) { set(dx, at[0], 0.0); });
  visit_sources(
      dx, dy,
      [&](int dim, int64_t coordinate) {
        return padded_source(coordinate, padding.before[dim], dx.sizes[dim], padding.mode);
      },
      [&](int64_t from, int64_t to) {
        if (to >= 0) set(dx, to, get(dx, to) + get(dy, from));
      });
  return nullptr;
}

KernelStatus tile(const KernelCall& call) {
  const TensorRef& x = call.inputs[0];
  return take(call, 0, [&](int dim, int64_t coordinate) { return coordinate % x.sizes[dim]; });
}

KernelStatus repeat_interleave(const KernelCall& call, const Repeats& repeated) {
  return take(call, 0, [&](int dim, int64_t coordinate) {
    return dim == repeated.axis ? coordinate / repeated.repeats : coordinate;
  });
}

Flipped::Flipped(const BoundCall& call) {
  for (int64_t axis : call.attrs->ints("axes")) axes[axis] = true;
}

KernelStatus flip(const KernelCall& call, const Flipped& flipped) {
  const TensorRef& x = call.inputs[0];
  return take(call, 0, [&](int dim, int64_t coordinate) {
    return flipped.axes[dim] ? x.sizes[dim] - 1 - coordinate : coordinate;
  });
}

Shifts::Shifts(const BoundCall& call) {
  const auto &axes = call.attrs->ints("axes"), &shifts = call.attrs->ints("shifts");
  for (size_t i = 0; i < axes.size(); ++i) by_axis[axes[i]] += shifts[i];
}

KernelStatus roll(const KernelCall& call, const Shifts& shifts) {
  const TensorRef& x = call.inputs[0];
  return take(call, 0, [&](int dim, int64_t coordinate) {
    const int64_t size = x.sizes[dim];
    return ((coordinate - shifts.by_axis[dim]) % size + size) % size;
  });
}

KernelStatus trilu(const KernelCall& call, const Triangle& kept) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int64_t rows = x.sizes[x.rank - 2], cols = x.sizes[x.rank - 1];
  const int64_t size = size_bytes(y.dtype);
  kept.positions.for_each([&](int64_t position, const auto& at) {
    const int64_t j = position % cols, i = position / cols % rows;
    if (kept.upper ? j - i >= kept.k : j - i <= kept.k) {
      copy_elements(address(y, at[1]), 1, address(x, at[0]), 1, 1, size);
    } else {
      std::memset(address(y, at[1]), 0, size);
    }
  });
  return nullptr;
}

}  // namespace lowtide::reference
