#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

namespace {

constexpr KernelStatus kOtherCount = "the condition is true in other places than were counted";

bool is_true(const TensorRef& condition, int64_t offset) { return condition.as<int8_t>()[offset] != 0; }

}  // namespace

KernelStatus count_true(const KernelCall& call, const Places& places) {
  int64_t count = 0;
  places.grid.for_each([&](int64_t, const auto& at) { count += is_true(call.inputs[0], at[0]) ? 1 : 0; });
  *call.outputs[0].as<int64_t>() = count;
  return nullptr;
}

KernelStatus data_size(const KernelCall& call) {
  *call.outputs[0].as<int64_t>() = *call.inputs[0].as<int64_t>();
  return nullptr;
}

KernelStatus non_zero(const KernelCall& call, const Places& places) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  int64_t found = 0;
  places.grid.for_each([&](int64_t position, const auto& at) {
    if (!is_true(x, at[0]) || found++ >= y.sizes[0]) return;
    for (int dim = x.rank - 1; dim >= 0; --dim) {
      set_int(y, (found - 1) * y.strides[0] + dim * y.strides[1], position % x.sizes[dim]);
      position /= x.sizes[dim];
    }
  });
  return found == y.sizes[0] ? nullptr : kOtherCount;
}

MaskedRows::MaskedRows(const BoundCall& call, const TensorRef& all, const TensorRef& chosen)
    : rows(all.sizes[0]),
      chosen_rows(chosen.sizes[0]),
      all_stride(all.strides[0]),
      chosen_stride(chosen.strides[0]),
      condition_stride(call.inputs[1].strides[0]) {
  for (int i = 1; i < all.rank; ++i) row.add_dim(all.sizes[i], {all.strides[i], chosen.strides[i]});
  row.collapse();
}

KernelStatus compress(const KernelCall& call, const Compressed& walk) {
  const TensorRef &x = call.inputs[0], &condition = call.inputs[1], &y = call.outputs[0];
  const int64_t bytes = size_bytes(x.dtype);
  int64_t found = 0;
  for (int64_t i = 0; i < walk.rows; ++i) {
    if (!is_true(condition, i * walk.condition_stride) || found++ >= walk.chosen_rows) continue;
    const int64_t from = i * walk.all_stride, to = (found - 1) * walk.chosen_stride;
    walk.row.for_each([&](int64_t, const auto& at) {
      copy_elements(address(y, to + at[1]), 1, address(x, from + at[0]), 1, 1, bytes);
    });
  }
  return found == walk.chosen_rows ? nullptr : kOtherCount;
}

KernelStatus masked_scatter(const KernelCall& call, const Scattered& walk) {
  const TensorRef &data = call.inputs[0], &condition = call.inputs[1], &updates = call.inputs[2], &y = call.outputs[0];
  const int64_t bytes = size_bytes(y.dtype);
  if (data.data != y.data)
    walk.copy.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
      copy_elements(address(y, at[1]), steps[1], address(data, at[0]), steps[0], n, bytes);
    });
  int64_t found = 0;
  for (int64_t i = 0; i < walk.rows; ++i) {
    if (!is_true(condition, i * walk.condition_stride) || found++ >= walk.chosen_rows) continue;
    const int64_t to = i * walk.all_stride, from = (found - 1) * walk.chosen_stride;
    walk.row.for_each([&](int64_t, const auto& at) {
      copy_elements(address(y, to + at[0]), 1, address(updates, from + at[1]), 1, 1, bytes);
    });
  }
  return found == walk.chosen_rows ? nullptr : kOtherCount;
}

}  // namespace lowtide::reference
