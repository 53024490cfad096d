// Direct convolution over one to three spatial dims, seen as three.
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"
#include "kernels/walk.h"

namespace lowtide::reference {

namespace {

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

Image::Image(const TensorRef& t)
    : outer(t.sizes[0]), channels(t.sizes[1]), outer_stride(t.strides[0]), channel_stride(t.strides[1]) {
  for (int i = 0; i < kSpatial; ++i) {
    const int dim = t.rank - kSpatial + i;
    sizes[i] = dim >= 2 ? t.sizes[dim] : 1;
    strides[i] = dim >= 2 ? t.strides[dim] : 0;
  }
}

ConvWindow::ConvWindow(const BoundCall& call, const TensorRef& x_, const TensorRef& w_, const TensorRef& y_)
    : x(x_), w(w_), y(y_), group(call.attrs->i("group")) {
  const int spatial = w_.rank - 2;
  const auto &s = call.attrs->ints("strides"), &p = call.attrs->ints("pads"), &d = call.attrs->ints("dilations");
  for (int i = 0; i < spatial; ++i) {
    strides[kSpatial - spatial + i] = s[i];
    pads[kSpatial - spatial + i] = p[i];
    dilations[kSpatial - spatial + i] = d[i];
  }
}

KernelStatus conv(const KernelCall& call, const ConvWindow& window) {
  const Image &x = window.x, &w = window.w, &y = window.y;
  const TensorRef &x_data = call.inputs[0], &w_data = call.inputs[1], &y_data = call.outputs[0];
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
            sum += get(x_data, x.offset(n, first + c, from)) * get(w_data, w.offset(m, c, k));
          });
        }
        set(y_data, y.offset(n, m, o), sum);
      });
    }
  });
  return nullptr;
}

// dx: every output that reads the point. dw: every pair of points that the tap joins. dbias: sum of dy.
KernelStatus conv_grad(const KernelCall& call, const ConvGradWindow& window) {
  const Image &dy = window.y, &x = window.x, &w = window.w;
  const TensorRef &dy_data = call.inputs[0], &x_data = call.inputs[1], &w_data = call.inputs[2];
  const int64_t per_group = w.outer / window.group;
  if (const TensorRef* tensor = output(call, 0)) {
    const Image& dx = window.dx;
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
              sum += get(dy_data, dy.offset(n, m, o)) * get(w_data, w.offset(m, channel % w.channels, k));
            });
          }
          set(*tensor, dx.offset(n, channel, at), sum);
        });
      }
    });
  }
  if (const TensorRef* tensor = output(call, 1)) {
    const Image& dw = window.dw;
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
              sum += get(dy_data, dy.offset(n, m, o)) * get(x_data, x.offset(n, channel, from));
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
        for_each_point(dy.sizes, [&](const int64_t* o) { sum += get(dy_data, dy.offset(n, m, o)); });
      }
      set(*dbias, m * dbias->strides[0], sum);
    }
  }
  return nullptr;
}

}  // namespace lowtide::reference
