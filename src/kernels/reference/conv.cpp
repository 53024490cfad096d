// Direct convolution over one to three spatial dims, seen as three.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

// Sizes and strides of [N, C, d1..dk] with missing spatial dims of size 1 in front.
struct Image {
  const TensorRef* tensor;
  int64_t outer, channels, outer_stride, channel_stride;
  int64_t sizes[kSpatial], strides[kSpatial];

  explicit Image(const TensorRef& t) : tensor(&t) {
    outer = t.sizes[0];
    channels = t.sizes[1];
    outer_stride = t.strides[0];
    channel_stride = t.strides[1];
    for (int i = 0; i < kSpatial; ++i) {
      const int dim = t.rank - kSpatial + i;
      sizes[i] = dim >= 2 ? t.sizes[dim] : 1;
      strides[i] = dim >= 2 ? t.strides[dim] : 0;
    }
  }
  int64_t offset(int64_t n, int64_t c, const int64_t* at) const {
    return n * outer_stride + c * channel_stride + at[0] * strides[0] + at[1] * strides[1] + at[2] * strides[2];
  }
};

// body(position[3]) over a box.
template <class Body>
void for_each_point(const int64_t* sizes, Body body) {
  int64_t at[kSpatial];
  for (at[0] = 0; at[0] < sizes[0]; ++at[0]) {
    for (at[1] = 0; at[1] < sizes[1]; ++at[1]) {
      for (at[2] = 0; at[2] < sizes[2]; ++at[2]) body(at);
    }
  }
}

}  // namespace

ConvWindow::ConvWindow(const BoundCall& call) : group(call.attrs->i("group")) {
  const int spatial = call.inputs[1].rank - 2;
  const auto &s = call.attrs->ints("strides"), &p = call.attrs->ints("pads"), &d = call.attrs->ints("dilations");
  for (int i = 0; i < spatial; ++i) {
    strides[kSpatial - spatial + i] = s[i];
    pads[kSpatial - spatial + i] = p[i];
    dilations[kSpatial - spatial + i] = d[i];
  }
}

KernelStatus conv(const KernelCall& call, const ConvWindow& window) {
  const Image x(call.inputs[0]), w(call.inputs[1]), y(call.outputs[0]);
  const TensorRef* bias = input(call, 2);
  const int64_t per_group = w.outer / window.group;
  parallel_for(y.outer * y.channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t n = task / y.channels, m = task % y.channels, first = m / per_group * w.channels;
      const double start = bias ? get(*bias, m * bias->strides[0]) : 0.0;
      for_each_point(y.sizes, [&](const int64_t* o) {
        double sum = start;
        for (int64_t c = 0; c < w.channels; ++c) {
          for_each_point(w.sizes, [&](const int64_t* k) {
            int64_t from[kSpatial];
            for (int i = 0; i < kSpatial; ++i) {
              from[i] = window.source(i, o[i], k[i]);
              if (from[i] < 0 || from[i] >= x.sizes[i]) return;
            }
            sum += get(*x.tensor, x.offset(n, first + c, from)) * get(*w.tensor, w.offset(m, c, k));
          });
        }
        set(*y.tensor, y.offset(n, m, o), sum);
      });
    }
  });
  return nullptr;
}

// dx: every output that reads the point. dw: every pair of points that the tap joins. dbias: sum of dy.
KernelStatus conv_grad(const KernelCall& call, const ConvWindow& window) {
  const Image dy(call.inputs[0]), x(call.inputs[1]), w(call.inputs[2]);
  const int64_t per_group = w.outer / window.group;
  if (const TensorRef* tensor = output(call, 0)) {
    const Image dx(*tensor);
    parallel_for(dx.outer * dx.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t n = task / dx.channels, channel = task % dx.channels, g = channel / w.channels;
        for_each_point(dx.sizes, [&](const int64_t* at) {
          double sum = 0;
          for (int64_t m = g * per_group; m < (g + 1) * per_group; ++m) {
            for_each_point(w.sizes, [&](const int64_t* k) {
              int64_t o[kSpatial];
              for (int i = 0; i < kSpatial; ++i) {
                const int64_t reach = at[i] + window.pads[i] - k[i] * window.dilations[i];
                if (reach < 0 || reach % window.strides[i] != 0) return;
                o[i] = reach / window.strides[i];
                if (o[i] >= dy.sizes[i]) return;
              }
              sum += get(*dy.tensor, dy.offset(n, m, o)) * get(*w.tensor, w.offset(m, channel % w.channels, k));
            });
          }
          set(*tensor, dx.offset(n, channel, at), sum);
        });
      }
    });
  }
  if (const TensorRef* tensor = output(call, 1)) {
    const Image dw(*tensor);
    parallel_for(dw.outer * dw.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t m = task / dw.channels, c = task % dw.channels, channel = m / per_group * w.channels + c;
        for_each_point(dw.sizes, [&](const int64_t* k) {
          double sum = 0;
          for (int64_t n = 0; n < dy.outer; ++n) {
            for_each_point(dy.sizes, [&](const int64_t* o) {
              int64_t from[kSpatial];
              for (int i = 0; i < kSpatial; ++i) {
                from[i] = window.source(i, o[i], k[i]);
                if (from[i] < 0 || from[i] >= x.sizes[i]) return;
              }
              sum += get(*dy.tensor, dy.offset(n, m, o)) * get(*x.tensor, x.offset(n, channel, from));
            });
          }
          set(*tensor, dw.offset(m, c, k), sum);
        });
      }
    });
  }
  if (const TensorRef* dbias = output(call, 2)) {
    for (int64_t m = 0; m < dy.channels; ++m) {
      double sum = 0;
      for (int64_t n = 0; n < dy.outer; ++n) {
        for_each_point(dy.sizes, [&](const int64_t* o) { sum += get(*dy.tensor, dy.offset(n, m, o)); });
      }
      set(*dbias, m * dbias->strides[0], sum);
    }
  }
  return nullptr;
}

}  // namespace lowtide::reference
