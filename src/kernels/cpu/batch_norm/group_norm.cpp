#include "kernels/cpu/batch_norm/group_norm.h"

#include <cmath>

#include "kernels/cpu/batch_norm/group_norm_rows.h"
#include "kernels/cpu/batch_norm/images.h"
#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/dense.h"

namespace lowtide::cpu {
namespace {

// Of an image's groups, [N, G], as floats: where they lie, or in the scratch.
float* statistics_to(const TensorRef* wanted, float* spare) {
  return wanted != nullptr && wanted->dtype == DType::kF32 ? wanted->as<float>() : spare;
}

// Numbers of channels if they are halves; each image's statistics; two numbers for each of its channels; what rows
// take.
int64_t scratch_of(const BoundCall& call, const Groups& shape) {
  const int64_t widened = ChannelVectors::widened(call) * shape.channels;
  const int64_t of_rows = shape.channels_last ? RowScratch::floats(shape) : 0;
  return (widened + 2 * shape.images * (shape.groups + shape.channels) + of_rows) * kFloatBytes;
}

// ---- row-major: planes

void group_norm_of_planes(const KernelCall& call, const Groups& shape, const float* weight, const float* bias,
                          const GroupStatistics& to, float* means, float* squares) {
  const BatchNormLoops& table = loops(call.inputs[0].dtype);
  const Image x(call.inputs[0]);
  const TensorRef* y = output(call, 0);
  for_row_chunks(shape.images * shape.groups, shape.of_group * shape.inner, 0.5, [&](int64_t first, int64_t n) {
    for (int64_t group = first; group < first + n; ++group) {
      const int64_t plane = group * shape.of_group;
      double m = 0, deviations = 0;
      for (int64_t c = 0; c < shape.of_group; ++c) {
        table.plane_moments(x.at((plane + c) * shape.inner), shape.inner, means + plane + c, squares + plane + c);
        const double delta = means[plane + c] - m, share = 1.0 / static_cast<double>(c + 1);
        m += delta * share;
        deviations +=
            squares[plane + c] + delta * delta * static_cast<double>(c) * share * static_cast<double>(shape.inner);
      }
      to.mean[group] = static_cast<float>(m);
      const double count = static_cast<double>(shape.of_group * shape.inner);
      to.inv_std[group] = static_cast<float>(1 / std::sqrt(deviations / count + shape.epsilon));
      for (int64_t c = 0; y != nullptr && c < shape.of_group; ++c) {
        const int64_t channel = plane % shape.channels + c, at = (plane + c) * shape.inner;
        const float a = (weight == nullptr ? 1.0f : weight[channel]) * to.inv_std[group];
        const float b = (bias == nullptr ? 0.0f : bias[channel]) - to.mean[group] * a;
        table.plane_affine(x.at(at), Image(*y).at(at), shape.inner, a, b);
      }
    }
  });
}

void group_norm_grad_of_planes(const KernelCall& call, const Groups& shape, const float* weight, const float* mean,
                               const float* inv_std, float* sums, float* dots) {
  const BatchNormLoops& table = loops(call.inputs[1].dtype);
  const Image dy(call.inputs[0]), x(call.inputs[1]);
  const TensorRef* dx = output(call, 0);
  for_row_chunks(shape.images * shape.groups, shape.of_group * shape.inner, 0.7, [&](int64_t first, int64_t n) {
    for (int64_t group = first; group < first + n; ++group) {
      const int64_t plane = group * shape.of_group;
      const double r = inv_std[group], count = static_cast<double>(shape.of_group * shape.inner);
      const auto weight_of = [&](int64_t c) { return weight == nullptr ? 1.0f : weight[plane % shape.channels + c]; };
      double sum = 0, dot = 0;
      for (int64_t c = 0; c < shape.of_group; ++c) {
        const int64_t at = (plane + c) * shape.inner;
        table.plane_sums(dy.at(at), x.at(at), shape.inner, mean[group], sums + plane + c, dots + plane + c);
        sum += double{weight_of(c)} * sums[plane + c];
        dot += double{weight_of(c)} * dots[plane + c];
      }
      for (int64_t c = 0; dx != nullptr && c < shape.of_group; ++c) {
        const int64_t at = (plane + c) * shape.inner;
        table.plane_grad(dy.at(at), x.at(at), Image(*dx).at(at), shape.inner, mean[group],
                         static_cast<float>(weight_of(c) * r), static_cast<float>(-r * r * r * dot / count),
                         static_cast<float>(-r * sum / count));
      }
    }
  });
}

}  // namespace

int64_t Groups::blocks() const { return row_blocks(inner); }

Groups::Groups(const BoundCall& call, const TensorRef& x)
    : images(x.sizes[0]),
      channels(x.sizes[1]),
      inner(product_of_sizes(x, 2, x.rank)),
      groups(call.attrs->i("num_groups")),
      of_group(channels / groups),
      channels_last(!x.is_row_major()),
      epsilon(call.attrs->has("epsilon") ? call.attrs->f("epsilon") : 0) {}

int64_t group_norm_scratch(const BoundCall& call) { return scratch_of(call, Groups(call)); }
int64_t group_norm_grad_scratch(const BoundCall& call) { return scratch_of(call, GroupsGrad(call)); }

KernelStatus group_norm(const KernelCall& call, const Groups& shape) {
  const int64_t all = shape.images * shape.groups, planes = shape.images * shape.channels;
  float* means = static_cast<float*>(call.scratch);
  float *squares = means + planes, *spare = squares + planes;
  ChannelVectors vectors(call, shape.channels, spare + 2 * all);
  const float *weight = vectors.in(1), *bias = vectors.in(2);
  const TensorRef *mean_out = output(call, 1), *inv_std_out = output(call, 2);
  const GroupStatistics to = {statistics_to(mean_out, spare), statistics_to(inv_std_out, spare + all)};
  if (shape.channels_last) {
    group_norm_of_rows(call, shape, weight, bias, to, {shape, vectors.end()});
  } else {
    group_norm_of_planes(call, shape, weight, bias, to, means, squares);
  }
  if (mean_out != nullptr) write(*mean_out, 0, 1, all, to.mean);
  if (inv_std_out != nullptr) write(*inv_std_out, 0, 1, all, to.inv_std);
  return nullptr;
}

KernelStatus group_norm_grad(const KernelCall& call, const GroupsGrad& shape) {
  const int64_t all = shape.images * shape.groups, planes = shape.images * shape.channels;
  float* sums = static_cast<float*>(call.scratch);
  float *dots = sums + planes, *spare = dots + planes;
  ChannelVectors vectors(call, shape.channels, spare + 2 * all);
  const float *mean = read(call.inputs[2], 0, 1, all, spare), *inv_std = read(call.inputs[3], 0, 1, all, spare + all);
  const float* weight = vectors.in(4);
  float *dweight = vectors.out(1), *dbias = vectors.out(2);
  if (shape.channels_last) {
    group_norm_grad_of_rows(call, shape, weight, mean, inv_std, sums, dots, {shape, vectors.end()});
  } else {
    group_norm_grad_of_planes(call, shape, weight, mean, inv_std, sums, dots);
  }
  for (int64_t c = 0; c < shape.channels; ++c) {
    double sum = 0, dot = 0;
    for (int64_t n = 0; n < shape.images; ++n) {
      sum += sums[n * shape.channels + c];
      dot += double{dots[n * shape.channels + c]} * inv_std[n * shape.groups + c / shape.of_group];
    }
    if (dweight != nullptr) dweight[c] = static_cast<float>(dot);
    if (dbias != nullptr) dbias[c] = static_cast<float>(sum);
  }
  return nullptr;
}

}  // namespace lowtide::cpu
