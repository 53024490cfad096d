#include <algorithm>

#include "kernels/philox.h"
#include "kernels/reference/map.h"
#include "kernels/reference/reference.h"

namespace lowtide::reference {

// y[i] = value(i), i counting in row-major order.
template <class T, class Value>
static KernelStatus generate(const KernelCall& call, const Mapped<0>& runs, Value value) {
  const TensorRef& y = call.outputs[0];
  runs.for_each([&](int64_t first, const auto& offsets, const auto& steps, int64_t n) {
    T values[kRun];
    for (int64_t i = 0; i < n; ++i) values[i] = value(first + i);
    store(y, offsets[0], steps[0], n, values);
  });
  return nullptr;
}

Filling::Filling(const BoundCall& call) : Mapped(call) {
  const BoundAttrs& attrs = *call.attrs;
  if (is_float(call.outputs[0].dtype)) {
    value = attrs.has("value") ? attrs.f("value") : static_cast<double>(attrs.i("int_value", 0));
  } else {
    int_value = attrs.has("int_value") ? attrs.i("int_value") : static_cast<int64_t>(attrs.f("value", 0));
  }
}

KernelStatus constant(const KernelCall& call, const Filling& filling) {
  if (is_float(call.outputs[0].dtype)) {
    return generate<double>(call, filling, [value = filling.value](int64_t) { return value; });
  }
  return generate<int64_t>(call, filling, [value = filling.int_value](int64_t) { return value; });
}

Progression::Progression(const BoundCall& call) : Mapped(call) {
  const BoundAttrs& attrs = *call.attrs;
  int_start = attrs.i("int_start", 0);
  int_step = attrs.i("int_step", 1);
  start = attrs.has("start") ? attrs.f("start") : static_cast<double>(int_start);
  step = attrs.has("step") ? attrs.f("step") : static_cast<double>(int_step);
}

KernelStatus range(const KernelCall& call, const Progression& p) {
  if (is_float(call.outputs[0].dtype)) {
    return generate<double>(call, p, [&](int64_t i) { return p.start + static_cast<double>(i) * p.step; });
  }
  return generate<int64_t>(call, p, [&](int64_t i) { return p.int_start + i * p.int_step; });
}

KernelStatus dropout(const KernelCall& call, const DroppedInput& runs) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const Dropped& dropped = runs.dropped;
  const TensorRef* rows = input(call, 1);
  const int64_t width = rows != nullptr ? y.numel() / std::max<int64_t>(rows->sizes[0], 1) : 1;
  const auto drawn_as = [&](int64_t i) {
    if (rows == nullptr) return i;
    return *(rows->as<const int64_t>() + i / width * rows->strides[0]) * width + i % width;
  };
  runs.for_each([&](int64_t first, const auto& offsets, const auto& steps, int64_t n) {
    double values[kRun];
    load(x, offsets[0], steps[0], n, values);
    for (int64_t i = 0; i < n; ++i) {
      const bool keep =
          dropout_keep(call.random_key, dropped.stream, static_cast<uint64_t>(drawn_as(first + i)), dropped.threshold);
      values[i] = keep ? values[i] * dropped.scale : 0.0;
    }
    store(y, offsets[1], steps[1], n, values);
  });
  return nullptr;
}

KernelStatus random_uniform(const KernelCall& call, const Uniform& u) {
  return generate<double>(call, u, [&u, key = call.random_key](int64_t i) {
    return u.low + u.width * lowtide::random_uniform(key, u.stream, i);
  });
}

KernelStatus random_normal(const KernelCall& call, const Normal& n) {
  return generate<double>(call, n, [&n, key = call.random_key](int64_t i) {
    return n.mean + n.scale * lowtide::random_normal(key, n.stream, i);
  });
}

KernelStatus bernoulli(const KernelCall& call, const Chances& runs) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  runs.for_each([&](int64_t first, const auto& offsets, const auto& steps, int64_t n) {
    double values[kRun];
    load(x, offsets[0], steps[0], n, values);
    for (int64_t i = 0; i < n; ++i) {
      const double drawn = lowtide::random_uniform(call.random_key, runs.stream, first + i);
      values[i] = drawn < values[i] ? 1.0 : 0.0;
    }
    store(y, offsets[1], steps[1], n, values);
  });
  return nullptr;
}

}  // namespace lowtide::reference
