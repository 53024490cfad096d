#include "kernels/cpu/batch_norm/group_norm_rows.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/batch_norm/images.h"
#include "kernels/cpu/block_rows.h"

namespace lowtide::cpu {
namespace {

// body(image, where the block's rows begin, rows, where its numbers begin among those of blocks)
template <class Body>
void for_blocks(const Groups& shape, double cost, Body body) {
  const int64_t blocks = shape.blocks();
  for_row_chunks(shape.images * blocks, kRowsPerBlock * shape.channels, cost, [&](int64_t first, int64_t n) {
    for (int64_t each = first; each < first + n; ++each) {
      const int64_t image = each / blocks, row = each % blocks * kRowsPerBlock;
      body(image, (image * shape.inner + row) * shape.channels, std::min(kRowsPerBlock, shape.inner - row),
           each * shape.channels);
    }
  });
}

// body(image, group, the number of its first channel among those of all images)
template <class Body>
void for_groups(const Groups& shape, Body body) {
  for_row_chunks(shape.images * shape.groups, shape.of_group * shape.blocks(), 3, [&](int64_t first, int64_t n) {
    for (int64_t each = first; each < first + n; ++each)
      body(each / shape.groups, each % shape.groups, each * shape.of_group);
  });
}

}  // namespace

void group_norm_of_rows(const KernelCall& call, const Groups& shape, const float* weight, const float* bias,
                        const GroupStatistics& to, const RowScratch& rows) {
  const BatchNormLoops& table = loops(call.inputs[0].dtype);
  const Image x(call.inputs[0]);
  for_blocks(shape, 0.3, [&](int64_t, int64_t at, int64_t n, int64_t part) {
    table.row_moments(x.at(at), n, shape.channels, rows.first + part, rows.second + part);
  });
  for_groups(shape, [&](int64_t image, int64_t group, int64_t plane) {
    double m = 0, deviations = 0;
    int64_t seen = 0;
    for (int64_t block = 0; block < shape.blocks(); ++block) {
      const int64_t length = std::min(kRowsPerBlock, shape.inner - block * kRowsPerBlock);
      const int64_t from = (image * shape.blocks() + block) * shape.channels + group * shape.of_group;
      for (int64_t c = from; c < from + shape.of_group; ++c, seen += length) {
        const double delta = rows.first[c] - m;
        const double share = static_cast<double>(length) / static_cast<double>(seen + length);
        m += delta * share;
        deviations += rows.second[c] + delta * delta * static_cast<double>(seen) * share;
      }
    }
    const int64_t at = image * shape.groups + group;
    to.mean[at] = static_cast<float>(m);
    to.inv_std[at] = static_cast<float>(1 / std::sqrt(deviations / static_cast<double>(seen) + shape.epsilon));
    for (int64_t c = 0; c < shape.of_group; ++c) {
      const int64_t channel = group * shape.of_group + c;
      rows.a[plane + c] = (weight == nullptr ? 1.0f : weight[channel]) * to.inv_std[at];
      rows.b[plane + c] = (bias == nullptr ? 0.0f : bias[channel]) - to.mean[at] * rows.a[plane + c];
    }
  });
  if (const TensorRef* y = output(call, 0)) {
    for_blocks(shape, 0.2, [&](int64_t image, int64_t at, int64_t n, int64_t) {
      const int64_t channels = image * shape.channels;
      table.row_affine(x.at(at), Image(*y).at(at), n, shape.channels, rows.a + channels, rows.b + channels);
    });
  }
}

void group_norm_grad_of_rows(const KernelCall& call, const Groups& shape, const float* weight, const float* mean,
                             const float* inv_std, float* sums, float* dots, const RowScratch& rows) {
  const BatchNormLoops& table = loops(call.inputs[1].dtype);
  const Image dy(call.inputs[0]), x(call.inputs[1]);
  for_groups(shape, [&](int64_t image, int64_t group, int64_t plane) {
    std::fill_n(rows.mean + plane, shape.of_group, mean[image * shape.groups + group]);
  });
  for_blocks(shape, 0.3, [&](int64_t image, int64_t at, int64_t n, int64_t part) {
    table.row_sums(dy.at(at), x.at(at), n, shape.channels, rows.mean + image * shape.channels, rows.first + part,
                   rows.second + part);
  });
  for_groups(shape, [&](int64_t image, int64_t group, int64_t plane) {
    const double r = inv_std[image * shape.groups + group];
    const double count = static_cast<double>(shape.of_group * shape.inner);
    const auto weight_of = [&](int64_t c) { return weight == nullptr ? 1.0f : weight[group * shape.of_group + c]; };
    double sum = 0, dot = 0;
    for (int64_t c = 0; c < shape.of_group; ++c) {
      double of_channel = 0, product = 0;
      for (int64_t block = 0; block < shape.blocks(); ++block) {
        const int64_t from = (image * shape.blocks() + block) * shape.channels + group * shape.of_group + c;
        of_channel += rows.first[from];
        product += rows.second[from];
      }
      sums[plane + c] = static_cast<float>(of_channel);
      dots[plane + c] = static_cast<float>(product);
      sum += double{weight_of(c)} * of_channel;
      dot += double{weight_of(c)} * product;
    }
    for (int64_t c = 0; c < shape.of_group; ++c) {
      rows.a[plane + c] = static_cast<float>(weight_of(c) * r);
      rows.b[plane + c] = static_cast<float>(-r * r * r * dot / count);
      rows.c[plane + c] = static_cast<float>(-r * sum / count);
    }
  });
  if (const TensorRef* dx = output(call, 0)) {
    for_blocks(shape, 0.3, [&](int64_t image, int64_t at, int64_t n, int64_t) {
      const int64_t c = image * shape.channels;
      table.row_grad(dy.at(at), x.at(at), Image(*dx).at(at), n, shape.channels, rows.mean + c, rows.a + c, rows.b + c,
                     rows.c + c);
    });
  }
}

}  // namespace lowtide::cpu
