#include "kernels/cpu/softmax/plane_softmax.h"

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/softmax/double_rows_table.h"
#include "kernels/cpu/softmax/softmax_table.h"
#include "kernels/cpu/supports.h"

namespace lowtide::cpu {

namespace {

constexpr int64_t kSideBySide = 256;  // rows of a task: runs of whole cache lines

// body(offset of the first row's first number, rows), on all threads
template <class Body>
void for_each_panel(const SoftmaxPlanes& planes, double cost, Body body) {
  const int64_t panels = (planes.inner + kSideBySide - 1) / kSideBySide;
  const int64_t width = std::min(kSideBySide, planes.inner);
  for_row_chunks(planes.outer * panels, planes.size * width, cost, [&](int64_t begin, int64_t count) {
    for (int64_t task = begin; task < begin + count; ++task) {
      const int64_t first = task % panels * kSideBySide;
      body(task / panels * planes.size * planes.inner + first, std::min(kSideBySide, planes.inner - first));
    }
  });
}

KernelStatus run(const KernelCall& call, const SoftmaxPlanes& planes, SoftmaxTable::Planes loop) {
  const float* x = input_floats(call, 0);
  float* y = output_floats(call, 0);
  for_each_panel(planes, 0.8, [&](int64_t at, int64_t n) { loop(x + at, y + at, planes.inner, planes.size, n); });
  return nullptr;
}

KernelStatus run_grad(const KernelCall& call, const SoftmaxPlanes& planes, SoftmaxTable::GradPlanes loop) {
  const float *dy = input_floats(call, 0), *y = input_floats(call, 1);
  float* dx = output_floats(call, 0);
  for_each_panel(planes, 0.6,
                 [&](int64_t at, int64_t n) { loop(y + at, dy + at, dx + at, planes.inner, planes.size, n); });
  return nullptr;
}

KernelStatus run_doubles(const KernelCall& call, const SoftmaxPlanes& planes, DoubleRowsTable::Plane loop) {
  const double* x = call.inputs[0].as<double>();
  double* y = call.outputs[0].as<double>();
  for_each_panel(planes, 2, [&](int64_t at, int64_t n) { loop(x + at, y + at, planes.inner, planes.size, n); });
  return nullptr;
}

KernelStatus run_doubles_grad(const KernelCall& call, const SoftmaxPlanes& planes, DoubleRowsTable::GradPlane loop) {
  const double *dy = call.inputs[0].as<double>(), *y = call.inputs[1].as<double>();
  double* dx = call.outputs[0].as<double>();
  for_each_panel(planes, 1,
                 [&](int64_t at, int64_t n) { loop(dy + at, y + at, dx + at, planes.inner, planes.size, n); });
  return nullptr;
}

bool is_over_last_axis(const KernelQuery& query) {
  const int rank = query.inputs[0].rank;
  return rank == 0 || query.attrs->i("axis") == rank - 1;
}

}  // namespace

const char* supports_planes(const KernelQuery& query) {
  return is_over_last_axis(query) ? "over the last axis" : supports_f32(query);
}

KernelStatus plane_softmax(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run(call, planes, softmax_table().plane_softmax);
}
KernelStatus plane_log_softmax(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run(call, planes, softmax_table().plane_log_softmax);
}
KernelStatus plane_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run_grad(call, planes, softmax_table().plane_softmax_grad);
}
KernelStatus plane_log_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run_grad(call, planes, softmax_table().plane_log_softmax_grad);
}

const char* supports_double_planes(const KernelQuery& query) {
  if (query.inputs[0].dtype != DType::kF64) return "not f64";
  return is_over_last_axis(query) ? "over the last axis" : nullptr;
}

KernelStatus double_plane_softmax(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run_doubles(call, planes, double_rows_table().plane_softmax);
}
KernelStatus double_plane_log_softmax(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run_doubles(call, planes, double_rows_table().plane_log_softmax);
}
KernelStatus double_plane_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run_doubles_grad(call, planes, double_rows_table().plane_softmax_grad);
}
KernelStatus double_plane_log_softmax_grad(const KernelCall& call, const SoftmaxPlanes& planes) {
  return run_doubles_grad(call, planes, double_rows_table().plane_log_softmax_grad);
}

}  // namespace lowtide::cpu
