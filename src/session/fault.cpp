#include "session/fault.h"

#ifdef LOWTIDE_TEST_FAULTS

#include <algorithm>

#include "base/check.h"
#include "base/half.h"
#include "base/text.h"
#include "ir/views.h"

namespace lowtide {

namespace {

struct Fault {
  int32_t step = -1;
  int32_t operand = 0;
};

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

Fault find_fault(const Graph& graph, const PlanResult& planned, const std::string& value) {
  ValueId made = graph.find_value(value);
  if (made) made = base_of_views(graph, made);
  std::vector<std::string> names;
  for (const ValuePlace& place : planned.places) {
    const NodeId producer = graph.value(place.value).producer;
    const Op op = graph.node(producer).op;
    if (!is_float(graph.type(place.value).dtype) || is_yield(op) || has_trait(op, Trait::kFiller)) continue;
    if (place.value == made) return {place.step - 1, place.operand};
    names.push_back(graph.value(place.value).name);
  }
  std::stable_sort(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return common_prefix(a, value) > common_prefix(b, value);
  });
  names.resize(std::min<size_t>(names.size(), 5));
  LT_USER_FAIL(ErrorKind::kInvalidArgument, "no step makes a floating value called ", value, "; there are ",
               join(names, ", "));
}

template <class T>
void scale(const TensorRef& tensor, double factor) {
  const int64_t numel = tensor.numel();
  for (int64_t i = 0; i < numel; ++i) {
    int64_t rest = i, at = 0;
    for (int32_t d = tensor.rank - 1; d >= 0; --d) {
      at += rest % tensor.sizes[d] * tensor.strides[d];
      rest /= tensor.sizes[d];
    }
    T& element = tensor.as<T>()[at];
    if constexpr (sizeof(T) == 8) {
      element *= factor;
    } else {
      element = T(static_cast<float>(static_cast<double>(static_cast<float>(element)) * factor));
    }
  }
}

void inject(const TensorRef& tensor, double factor) {
  if (tensor.data == nullptr) return;
  switch (tensor.dtype) {
    case DType::kF64: return scale<double>(tensor, factor);
    case DType::kF32: return scale<float>(tensor, factor);
    case DType::kF16: return scale<Float16>(tensor, factor);
    case DType::kBF16: return scale<BFloat16>(tensor, factor);
    default: return;
  }
}

}  // namespace

StepHooks fault_hooks(const Graph& graph, const PlanResult& planned, const SessionOptions& options) {
  StepHooks hooks;
  hooks.after = [fault = find_fault(graph, planned, options.fault_value), factor = options.fault_factor](
                    const RunView& run, int32_t step) {
    if (step == fault.step) inject(locate(run, fault.operand), factor);
  };
  return hooks;
}

}  // namespace lowtide

#endif
