#include "kernels/philox.h"
#include "kernels/reference/map.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

// y[i] = value(i), i counting in row-major order.
template <class T, class Value>
static KernelStatus generate(const KernelCall& call, Value value) {
  const TensorRef& y = call.outputs[0];
  for_each_run<1>(y, {strides_of(y)}, kRun, [&](int64_t first, const auto& offsets, const auto& steps, int64_t n) {
    T values[kRun];
    for (int64_t i = 0; i < n; ++i) values[i] = value(first + i);
    store(y, offsets[0], steps[0], n, values);
  });
  return nullptr;
}

KernelStatus constant(const KernelCall& call) {
  const BoundAttrs& attrs = *call.attrs;
  if (is_float(call.outputs[0].dtype)) {
    const double value = attrs.has("value") ? attrs.f("value") : static_cast<double>(attrs.i("int_value", 0));
    return generate<double>(call, [=](int64_t) { return value; });
  }
  const int64_t value = attrs.has("int_value") ? attrs.i("int_value") : static_cast<int64_t>(attrs.f("value", 0));
  return generate<int64_t>(call, [=](int64_t) { return value; });
}

KernelStatus range(const KernelCall& call) {
  const BoundAttrs& attrs = *call.attrs;
  if (is_float(call.outputs[0].dtype)) {
    const double start = attrs.has("start") ? attrs.f("start") : static_cast<double>(attrs.i("int_start", 0));
    const double step = attrs.has("step") ? attrs.f("step") : static_cast<double>(attrs.i("int_step", 1));
    return generate<double>(call, [=](int64_t i) { return start + static_cast<double>(i) * step; });
  }
  const int64_t start = attrs.i("int_start", 0), step = attrs.i("int_step", 1);
  return generate<int64_t>(call, [=](int64_t i) { return start + i * step; });
}

static uint64_t stream_of(const KernelCall& call) { return static_cast<uint64_t>(call.attrs->i("stream")); }

KernelStatus dropout(const KernelCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const double ratio = call.attrs->f("ratio");
  const uint64_t threshold = dropout_threshold(ratio), stream = stream_of(call);
  const double scale = y.dtype == DType::kF64 && ratio < 1 ? 1.0 / (1.0 - ratio) : dropout_scale(ratio);
  for_each_run<2>(y, {broadcast_strides(x, y), strides_of(y)}, kRun,
                  [&](int64_t first, const auto& offsets, const auto& steps, int64_t n) {
                    double values[kRun];
                    load(x, offsets[0], steps[0], n, values);
                    for (int64_t i = 0; i < n; ++i) {
                      const bool keep =
                          dropout_keep(call.random_key, stream, static_cast<uint64_t>(first + i), threshold);
                      values[i] = keep ? values[i] * scale : 0.0;
                    }
                    store(y, offsets[1], steps[1], n, values);
                  });
  return nullptr;
}

KernelStatus random_uniform(const KernelCall& call) {
  const double low = call.attrs->f("low"), width = call.attrs->f("high") - low;
  const uint64_t stream = stream_of(call), key = call.random_key;
  return generate<double>(call, [=](int64_t i) { return low + width * lowtide::random_uniform(key, stream, i); });
}

KernelStatus random_normal(const KernelCall& call) {
  const double mean = call.attrs->f("mean"), scale = call.attrs->f("scale");
  const uint64_t stream = stream_of(call), key = call.random_key;
  return generate<double>(call, [=](int64_t i) { return mean + scale * lowtide::random_normal(key, stream, i); });
}

KernelStatus bernoulli(const KernelCall& call) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const uint64_t stream = stream_of(call);
  for_each_run<2>(y, {broadcast_strides(x, y), strides_of(y)}, kRun,
                  [&](int64_t first, const auto& offsets, const auto& steps, int64_t n) {
                    double values[kRun];
                    load(x, offsets[0], steps[0], n, values);
                    for (int64_t i = 0; i < n; ++i) {
                      const double drawn = lowtide::random_uniform(call.random_key, stream, first + i);
                      values[i] = drawn < values[i] ? 1.0 : 0.0;
                    }
                    store(y, offsets[1], steps[1], n, values);
                  });
  return nullptr;
}

}  // namespace lowtide::reference
