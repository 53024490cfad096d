#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

void copy_all(const TensorRef& from, const TensorRef& to) {
  if (from.data == to.data) return;
  const int64_t size = size_bytes(to.dtype);
  for_each_run<2>(to, {strides_of(from), strides_of(to)}, 4096,
                  [&](int64_t, const auto& at, const auto& steps, int64_t n) {
                    copy_elements(address(to, at[1]), steps[1], address(from, at[0]), steps[0], n, size);
                  });
}

void fill_zero(const TensorRef& tensor) {
  for_each_run<1>(tensor, {strides_of(tensor)}, kRun, [&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const int64_t zeros[kRun] = {};
    store(tensor, at[0], steps[0], n, zeros);
  });
}

// Negative indices count from the end.
int64_t wrapped(int64_t index, int64_t size) { return index < 0 ? index + size : index; }

bool all_inside(const TensorRef& indices, int64_t size) {
  bool good = true;
  grid_over<1>(indices, {strides_of(indices)}).for_each([&](int64_t, const auto& at) {
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

// data.shape[:axis] + indices.shape + data.shape[axis+1:] as three grids. Offsets: data, gathered.
struct Gathered {
  Grid<2> before, after;
  Grid<2> middle;  // indices, gathered
};

Gathered split(const TensorRef& data, const TensorRef& indices, const TensorRef& gathered, int64_t axis) {
  Gathered grids;
  for (int i = 0; i < axis; ++i) grids.before.add_dim(data.sizes[i], {data.strides[i], gathered.strides[i]});
  for (int i = 0; i < indices.rank; ++i) {
    grids.middle.add_dim(indices.sizes[i], {indices.strides[i], gathered.strides[axis + i]});
  }
  for (int i = static_cast<int>(axis) + 1; i < data.rank; ++i) {
    grids.after.add_dim(data.sizes[i], {data.strides[i], gathered.strides[i - 1 + indices.rank]});
  }
  grids.after.collapse();
  return grids;
}

}  // namespace

KernelStatus gather(const KernelCall& call, const Axis& along) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const int64_t axis = along.axis, size = data.sizes[axis], bytes = size_bytes(data.dtype);
  if (!all_inside(indices, size)) return "Gather: an index is out of range";
  const Gathered grids = split(data, indices, y, axis);
  grids.before.for_each([&](int64_t, const auto& outer) {
    grids.middle.for_each([&](int64_t, const auto& at) {
      const int64_t from = outer[0] + wrapped(get_int(indices, at[0]), size) * data.strides[axis];
      grids.after.for_each([&](int64_t, const auto& inner) {
        copy_elements(address(y, outer[1] + at[1] + inner[1]), 1, address(data, from + inner[0]), 1, 1, bytes);
      });
    });
  });
  return nullptr;
}

GatherGradRows::GatherGradRows(const BoundCall& call)
    : Axis(call),
      padding(call.attrs->has("padding_idx") ? wrapped(call.attrs->i("padding_idx"), call.outputs[0].sizes[axis])
                                             : -1) {}

KernelStatus gather_grad(const KernelCall& call, const GatherGradRows& rows) {
  const TensorRef &dy = call.inputs[0], &indices = call.inputs[1], &dx = call.outputs[0];
  const int64_t axis = rows.axis, size = dx.sizes[axis];
  if (!all_inside(indices, size)) return "GatherGrad: an index is out of range";
  if (call.inputs.size() > 2 && call.inputs[2].present) {
    copy_all(call.inputs[2], dx);
  } else {
    fill_zero(dx);
  }
  const Gathered grids = split(dx, indices, dy, axis);
  grids.before.for_each([&](int64_t, const auto& outer) {
    grids.middle.for_each([&](int64_t, const auto& at) {
      const int64_t index = wrapped(get_int(indices, at[0]), size);
      if (index == rows.padding) return;
      grids.after.for_each([&](int64_t, const auto& inner) {
        add_element(dx, outer[0] + index * dx.strides[axis] + inner[0], dy, outer[1] + at[1] + inner[1]);
      });
    });
  });
  return nullptr;
}

// Positions of `indices` with the offsets of two tensors that agree with it in all dims but (perhaps) `axis`.
// A 0-d tensor counts as one of shape [1].
static Grid<3> elements_grid(const TensorRef& indices, const TensorRef& along, const TensorRef& other, int64_t axis) {
  Strides along_strides = strides_of(along);
  along_strides.at[axis] = 0;
  return grid_over<3>(indices, {strides_of(indices), along_strides, strides_of(other)});
}

KernelStatus gather_elements(const KernelCall& call, const Axis& along) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const int64_t axis = along.axis, size = data.rank > 0 ? data.sizes[axis] : 1;
  const int64_t bytes = size_bytes(data.dtype), stride = data.rank > 0 ? data.strides[axis] : 0;
  if (!all_inside(indices, size)) return "GatherElements: an index is out of range";
  elements_grid(indices, data, y, axis).for_each([&](int64_t, const auto& at) {
    const int64_t from = at[1] + wrapped(get_int(indices, at[0]), size) * stride;
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

Scattering::Scattering(const BoundCall& call) {
  const std::string& reduction = call.attrs->s("reduction");
  joining = reduction == "add"   ? Joining::kAdd
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

KernelStatus scatter_elements(const KernelCall& call, const AxisScattering& scattering) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2], &y = call.outputs[0];
  const int64_t axis = scattering.axis, size = y.rank > 0 ? y.sizes[axis] : 1;
  const int64_t stride = y.rank > 0 ? y.strides[axis] : 0;
  if (!all_inside(indices, size)) return "ScatterElements: an index is out of range";
  copy_all(data, y);
  elements_grid(indices, y, updates, axis).for_each([&](int64_t, const auto& at) {
    const int64_t to = at[1] + wrapped(get_int(indices, at[0]), size) * stride;
    join_element(scattering.joining, y, to, updates, at[2]);
  });
  return nullptr;
}

namespace {

// indices [.., K] pick slices data[i1, .., iK] of shape data.shape[K:].
struct Slices {
  Grid<2> tuples;  // indices, slices
  Grid<2> slice;   // data, slices
  int64_t depth, index_stride;
};

Slices slices_of(const TensorRef& data, const TensorRef& indices, const TensorRef& slices) {
  Slices result;
  const int last = indices.rank - 1;
  result.depth = indices.sizes[last];
  result.index_stride = indices.strides[last];
  for (int i = 0; i < last; ++i) result.tuples.add_dim(indices.sizes[i], {indices.strides[i], slices.strides[i]});
  for (int i = static_cast<int>(result.depth); i < data.rank; ++i) {
    result.slice.add_dim(data.sizes[i], {data.strides[i], slices.strides[last + i - result.depth]});
  }
  return result;
}

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

KernelStatus gather_nd(const KernelCall& call) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &y = call.outputs[0];
  const Slices slices = slices_of(data, indices, y);
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

KernelStatus scatter_nd(const KernelCall& call, const Scattering& scattering) {
  const TensorRef &data = call.inputs[0], &indices = call.inputs[1], &updates = call.inputs[2], &y = call.outputs[0];
  const Slices slices = slices_of(y, indices, updates);
  if (!all_slices_inside(slices, y, indices)) return "ScatterND: an index is out of range";
  copy_all(data, y);
  slices.tuples.for_each([&](int64_t, const auto& at) {
    const int64_t to = slice_offset(slices, y, indices, at[0]);
    slices.slice.for_each([&](int64_t, const auto& inner) {
      join_element(scattering.joining, y, to + inner[0], updates, at[1] + inner[1]);
    });
  });
  return nullptr;
}

}  // namespace lowtide::reference
