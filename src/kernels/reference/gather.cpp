#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// Copies all of `from` to `to`, which may be itself.
void copy_all(const Runs<2>& runs, const TensorRef& from, const TensorRef& to) {
  if (from.data == to.data) return;
  const int64_t size = size_bytes(to.dtype);
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    copy_elements(address(to, at[1]), steps[1], address(from, at[0]), steps[0], n, size);
  });
}

// Negative indices count from the end.
int64_t wrapped(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

// `indices` is the first tensor of the grid.
template <size_t N>
bool all_inside(const Grid<N>& grid, const TensorRef& indices, int64_t size) {
  bool good = true;
  grid.for_each([&](int64_t, const auto& at) {
    const int64_t index = wrapped(get_int(indices, at[0]), size);
    good &= index >= 0 && index < size;
  });
  return good;
}

// to += from, elementwise over the shape of a slice.
void add_element(const TensorRef& to, int64_t to_offset, const TensorRef& from, int64_t from_offset) {
  if (is_float(to.dtype)) {
    set(to, to_offset, get(to, to_offset) + get(from, from_offset));
  } else {
    set_int(to, to_offset, get_int(to, to_offset) + get_int(from, from_offset));
  }
}

// The same for n elements in a row.
void add_row(const TensorRef& to, int64_t to_offset, int64_t to_step, const TensorRef& from, int64_t from_offset,
             int64_t from_step, int64_t n) {
  if (to.dtype == DType::kF64 && from.dtype == DType::kF64) {
    double* sums = to.as<double>() + to_offset;
    const double* added = from.as<double>() + from_offset;
    for (int64_t i = 0; i < n; ++i) sums[i * to_step] += added[i * from_step];
    return;
  }
  for (int64_t i = 0; i < n; ++i) add_element(to, to_offset + i * to_step, from, from_offset + i * from_step);
}

// A grid without its last dim, and that dim: a row.
template <size_t N>
struct RowsOf {
  explicit RowsOf(const Grid<N>& grid) : firsts(grid) {
    if (grid.rank == 0) return;
    size = grid.sizes[grid.rank - 1];
    steps = grid.strides[grid.rank - 1];
    firsts.remove_dim(grid.rank - 1);
  }
  Grid<N> firsts;
  int64_t size = 1;
  typename Grid<N>::Offsets steps{};
};

void clear(const TensorRef& tensor, const Grid<1>& grid) {
  constexpr int64_t kZeros[kRun] = {};
  const RowsOf<1> rows(grid);
  rows.firsts.for_each([&](int64_t, const auto& at) {
    for (int64_t i = 0; i < rows.size; i += kRun)
      store(tensor, at[0] + i * rows.steps[0], rows.steps[0], std::min(kRun, rows.size - i), kZeros);
  });
}

}  // namespace

Gathering::Gathering(const BoundCall& call, const TensorRef& data, const TensorRef& gathered) {
  const TensorRef& indices = call.inputs[1];
  const int axis = static_cast<int>(call.attrs->i("axis"));
  size = data.sizes[axis];
  stride = data.strides[axis];
  for (int i = 0; i < axis; ++i) before.add_dim(data.sizes[i], {data.strides[i], gathered.strides[i]});
  for (int i = 0; i < indices.rank; ++i)
    middle.add_dim(indices.sizes[i], {indices.strides[i], gathered.strides[axis + i]});
  for (int i = axis + 1; i < data.rank; ++i)
    after.add_dim(data.sizes[i], {data.strides[i], gathered.strides[i - 1 + indices.rank]});
  after.collapse();
}

KernelStatus gather(const KernelCall& call, const Gathering& grids) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const int64_t bytes = size_bytes(data.dtype);
  if (!all_inside(grids.middle, indices, grids.size)) return "Gather: an index is out of range";
  grids.before.for_each([&](int64_t, const auto& outer) {
    grids.middle.for_each([&](int64_t, const auto& at) {
      const int64_t from = outer[0] + wrapped(get_int(indices, at[0]), grids.size) * grids.stride;
      grids.after.for_each([&](int64_t, const auto& inner) {
        copy_elements(address(y, outer[1] + at[1] + inner[1]), 1, address(data, from + inner[0]), 1, 1, bytes);
      });
    });
  });
  return nullptr;
}

GatheringGrad::GatheringGrad(const BoundCall& call)
    : Gathering(call, call.outputs[0], call.inputs[0]),
      dx(positions(call, call.outputs[0])),
      padding(call.attrs->has("padding_idx") ? wrapped(call.attrs->i("padding_idx"), size) : -1) {
  dx.collapse();
  if (input(call, 2)) onto = pairs(call, call.inputs[2], call.outputs[0]);
}

KernelStatus gather_grad(const KernelCall& call, const GatheringGrad& grids) {
  const TensorRef &dy = call.inputs[0], &indices = call.inputs[1], &dx = call.outputs[0];
  if (!all_inside(grids.middle, indices, grids.size)) return "GatherGrad: an index is out of range";
  if (const TensorRef* onto = input(call, 2)) {
    copy_all(grids.onto, *onto, dx);
  } else {
    clear(dx, grids.dx);
  }
  const RowsOf<2> after(grids.after);
  grids.before.for_each([&](int64_t, const auto& outer) {
    grids.middle.for_each([&](int64_t, const auto& at) {
      const int64_t index = wrapped(get_int(indices, at[0]), grids.size);
      if (index == grids.padding) return;
      after.firsts.for_each([&](int64_t, const auto& inner) {
        add_row(dx, outer[0] + index * grids.stride + inner[0], after.steps[0], dy, outer[1] + at[1] + inner[1],
                after.steps[1], after.size);
      });
    });
  });
  return nullptr;
}

ElementPicks::ElementPicks(const BoundCall& call, const TensorRef& along, const TensorRef& other) {
  const TensorRef& indices = call.inputs[1];
  const int64_t axis = call.attrs->i("axis");
  size = along.rank > 0 ? along.sizes[axis] : 1;
  stride = along.rank > 0 ? along.strides[axis] : 0;
  Strides along_strides = strides_of(along);
  along_strides.at[axis] = 0;
  grid = grid_over<3>(call, indices, {strides_of(indices), along_strides, strides_of(other)});
}

KernelStatus gather_elements(const KernelCall& call, const ElementPicks& picks) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const int64_t bytes = size_bytes(data.dtype);
  if (!all_inside(picks.grid, indices, picks.size)) return "GatherElements: an index is out of range";
  picks.grid.for_each([&](int64_t, const auto& at) {
    const int64_t from = at[1] + wrapped(get_int(indices, at[0]), picks.size) * picks.stride;
    copy_elements(address(y, at[2]), 1, address(data, from), 1, 1, bytes);
  });
  return nullptr;
}

// What stands in the place of `to` afterwards.
template <class T>
static T joined(Joining joining, T to, T from) {
  switch (joining) {
    case Joining::kReplace: return from;
    case Joining::kAdd: return to + from;
    case Joining::kMultiply: return to * from;
    case Joining::kMaximum: return is_nan_value(to) || to > from ? to : from;
    case Joining::kMinimum: return is_nan_value(to) || to < from ? to : from;
  }
  return from;
}

Joining joining_of(const BoundCall& call) {
  const std::string& reduction = call.attrs->s("reduction");
  return reduction == "add"   ? Joining::kAdd
         : reduction == "mul" ? Joining::kMultiply
         : reduction == "max" ? Joining::kMaximum
         : reduction == "min" ? Joining::kMinimum
                              : Joining::kReplace;
}

static void join_element(Joining joining, const TensorRef& to, int64_t to_offset, const TensorRef& from,
                         int64_t offset) {
  if (is_float(to.dtype)) {
    set(to, to_offset, joined(joining, get(to, to_offset), get(from, offset)));
  } else {
    set_int(to, to_offset, joined(joining, get_int(to, to_offset), get_int(from, offset)));
  }
}

KernelStatus scatter_elements(const KernelCall& call, const AxisScattering& picks) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2], &y = call.outputs[0];
  if (!all_inside(picks.grid, indices, picks.size)) return "ScatterElements: an index is out of range";
  copy_all(picks.copy, data, y);
  const auto join_all = [&](Joining joining) {
    picks.grid.for_each([&](int64_t, const auto& at) {
      const int64_t to = at[1] + wrapped(get_int(indices, at[0]), picks.size) * picks.stride;
      join_element(joining, y, to, updates, at[2]);
    });
  };
  // An extreme of updates alone begins with any of them.
  if (picks.anew) join_all(Joining::kReplace);
  join_all(picks.joining);
  return nullptr;
}

Slices::Slices(const TensorRef& data, const TensorRef& indices, const TensorRef& slices) {
  const int last = indices.rank - 1;
  depth = indices.sizes[last];
  index_stride = indices.strides[last];
  for (int i = 0; i < last; ++i) tuples.add_dim(indices.sizes[i], {indices.strides[i], slices.strides[i]});
  for (int i = static_cast<int>(depth); i < data.rank; ++i)
    slice.add_dim(data.sizes[i], {data.strides[i], slices.strides[last + i - depth]});
}

namespace {

// Offset of the slice that the tuple at `offset` picks; -1 if outside.
int64_t slice_offset(const Slices& slices, const TensorRef& data, const TensorRef& indices, int64_t offset) {
  int64_t result = 0;
  for (int64_t k = 0; k < slices.depth; ++k) {
    const int64_t index = wrapped(get_int(indices, offset + k * slices.index_stride), data.sizes[k]);
    if (index < 0 || index >= data.sizes[k]) return -1;
    result += index * data.strides[k];
  }
  return result;
}

bool all_slices_inside(const Slices& slices, const TensorRef& data, const TensorRef& indices) {
  bool good = true;
  slices.tuples.for_each([&](int64_t, const auto& at) { good &= slice_offset(slices, data, indices, at[0]) >= 0; });
  return good;
}

}  // namespace

KernelStatus gather_nd(const KernelCall& call, const Slices& slices) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  if (!all_slices_inside(slices, data, indices)) return "GatherND: an index is out of range";
  const int64_t bytes = size_bytes(data.dtype);
  slices.tuples.for_each([&](int64_t, const auto& at) {
    const int64_t from = slice_offset(slices, data, indices, at[0]);
    slices.slice.for_each([&](int64_t, const auto& inner) {
      copy_elements(address(y, at[1] + inner[1]), 1, address(data, from + inner[0]), 1, 1, bytes);
    });
  });
  return nullptr;
}

KernelStatus scatter_nd(const KernelCall& call, const SliceScattering& slices) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2], &y = call.outputs[0];
  if (!all_slices_inside(slices, y, indices)) return "ScatterND: an index is out of range";
  copy_all(slices.copy, data, y);
  slices.tuples.for_each([&](int64_t, const auto& at) {
    const int64_t to = slice_offset(slices, y, indices, at[0]);
    slices.slice.for_each(
        [&](int64_t, const auto& inner) { join_element(slices.joining, y, to + inner[0], updates, at[1] + inner[1]); });
  });
  return nullptr;
}

}  // namespace lowtide::reference
