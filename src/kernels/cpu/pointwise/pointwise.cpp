// Pointwise ops on f32, bf16 and f16 by the vector loops of the table; operands that are stored in several of these, or
// apart, are widened run by run; f64 is in doubles.h. What is left is the reference's, which does it run by run as
// well.
#include <limits>

#include "kernels/cpu/float_runs.h"
#include "kernels/cpu/pointwise/doubles.h"
#include "kernels/cpu/pointwise/pointwise_table.h"
#include "kernels/cpu/supports.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

namespace {

// Operands that advance together: the output lies as the inputs do and may take the place of the first, or of either.
constexpr OperandRules kUnary = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0});
constexpr OperandRules kBinary =
    every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0, .else_takes = 1});
// Of dy and x: x is there for longer, and dy, where it was made for nothing else, is as small as a block of rows.
constexpr OperandRules kActivationGrad =
    every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 1, .else_takes = 0});
constexpr OperandRules kSum = every_input(
    Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 0, .else_takes = 1, .is_sum_of_inputs = true});
constexpr OperandRules kComparison = every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput});
constexpr OperandRules kWhere =
    every_input(Accept::kAny, {.layout = OutputLayout::kFollowsInput, .takes = 1, .else_takes = 2});
constexpr OperandRules kRotary = {.inputs = {Accept::kInnerDense, Accept::kAny, Accept::kAny},
                                  .outputs = {{{.takes = 0}}}};

struct Unary : OperandRuns<1> {
  explicit Unary(const BoundCall& call) : OperandRuns(call, kRun) {}
};
struct Binary : OperandRuns<2> {
  explicit Binary(const BoundCall& call) : OperandRuns(call, kRun) {}
};
struct Selection : OperandRuns<3> {
  explicit Selection(const BoundCall& call) : OperandRuns(call, 4 * kRun) {}
};

KernelStatus run_unary(const KernelCall& call, const Unary& runs, UnaryOp op, double alpha = 0, double beta = 0) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const auto loop = pointwise_loops().unary[static_cast<int>(op)];
  const auto in_memory = pointwise_loops(stored_as(y.dtype)).unary[static_cast<int>(op)];
  const float a = static_cast<float>(alpha), b = static_cast<float>(beta);
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    if (x.dtype == y.dtype && steps[0] == 1 && steps[1] == 1)
      return in_memory(address(x, at[0]), address(y, at[1]), n, a, b);
    float in[kRun], out[kRun];
    float* to = target(y, at[1], steps[1], n, out);
    loop(read(x, at[0], steps[0], n, in), to, n, a, b);
    write(y, at[1], steps[1], n, to);
  });
  return nullptr;
}

// Inputs: dy, saved.
KernelStatus run_unary_grad(const KernelCall& call, const Binary& runs, UnaryGradOp op, double alpha = 0) {
  const TensorRef &dy = call.inputs[0], &saved = call.inputs[1], &dx = call.outputs[0];
  const auto loop = pointwise_loops().unary_grad[static_cast<int>(op)];
  const auto in_memory = pointwise_loops(stored_as(dx.dtype)).unary_grad[static_cast<int>(op)];
  const bool alike = dy.dtype == dx.dtype && saved.dtype == dx.dtype;
  const float a = static_cast<float>(alpha);
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    if (alike && steps[0] == 1 && steps[1] == 1 && steps[2] == 1)
      return in_memory(address(saved, at[1]), address(dy, at[0]), address(dx, at[2]), n, a);
    float in[2][kRun], out[kRun];
    float* to = target(dx, at[2], steps[2], n, out);
    loop(read(saved, at[1], steps[1], n, in[1]), read(dy, at[0], steps[0], n, in[0]), to, n, a);
    write(dx, at[2], steps[2], n, to);
  });
  return nullptr;
}

KernelStatus run_binary(const KernelCall& call, const Binary& runs, BinaryOp op) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const auto& loops = pointwise_loops().binary[static_cast<int>(op)];
  const auto& in_memory = pointwise_loops(stored_as(y.dtype)).binary[static_cast<int>(op)];
  const bool alike = a.dtype == y.dtype && b.dtype == y.dtype;
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    if (alike && (steps[0] | steps[1]) == 1 && steps[2] == 1)
      return in_memory[advance_of(steps)](address(a, at[0]), address(b, at[1]), address(y, at[2]), n);
    float out[kRun];
    float* to = target(y, at[2], steps[2], n, out);
    run_pair(loops, a, b, at.data(), steps.data(), n, to);
    write(y, at[2], steps[2], n, to);
  });
  return nullptr;
}

KernelStatus run_compare(const KernelCall& call, const Binary& runs, CompareOp op) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const auto& loops = pointwise_table().compare[static_cast<int>(op)];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    uint8_t out[kRun];
    uint8_t* data = y.as<uint8_t>() + at[2];
    const bool direct = steps[2] == 1;
    run_pair(loops, a, b, at.data(), steps.data(), n, direct ? data : out);
    for (int64_t i = 0; !direct && i < n; ++i) data[i * steps[2]] = out[i];
  });
  return nullptr;
}

template <class T>
void select_run(const uint8_t* condition, const T* a, const T* b, T* y, const int64_t* steps, int64_t n) {
  const bool dense = steps[0] == 1 && steps[3] == 1 && steps[1] <= 1 && steps[2] <= 1;
  if (dense && sizeof(T) == 4) {
    // Bits move through; that they are read as floats does not matter.
    const auto loop = pointwise_table().select[(steps[1] != 0) + 2 * (steps[2] != 0)];
    return loop(condition, reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b),
                reinterpret_cast<float*>(y), n);
  }
  if (dense) {
    // Both are read whatever the condition, and steps are constants, so that the loop has no branch and is vectorised.
    const auto loop = [&](auto first_step, auto second_step) {
      for (int64_t i = 0; i < n; ++i) {
        const T first = a[i * first_step], second = b[i * second_step];
        y[i] = condition[i] ? first : second;
      }
    };
    constexpr std::integral_constant<int64_t, 0> still;
    constexpr std::integral_constant<int64_t, 1> along;
    if (steps[1] == 1 && steps[2] == 1) return loop(along, along);
    return steps[1] == 1 ? loop(along, still) : steps[2] == 1 ? loop(still, along) : loop(still, still);
  }
  for (int64_t i = 0; i < n; ++i) y[i * steps[3]] = condition[i * steps[0]] ? a[i * steps[1]] : b[i * steps[2]];
}

template <class T>
void select(const KernelCall& call, const Selection& runs) {
  const TensorRef &condition = call.inputs[0], &a = call.inputs[1], &b = call.inputs[2], &y = call.outputs[0];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    select_run(condition.as<uint8_t>() + at[0], a.as<T>() + at[1], b.as<T>() + at[2], y.as<T>() + at[3], steps.data(),
               n);
  });
}

template <UnaryOp op>
KernelStatus unary(const KernelCall& call, const Unary& runs) {
  return run_unary(call, runs, op);
}

template <class Operands>
struct WithAlpha : Operands {
  explicit WithAlpha(const BoundCall& call) : Operands(call), alpha(call.attrs->f("alpha")) {}
  double alpha;
};
struct Bounded : Unary {
  explicit Bounded(const BoundCall& call)
      : Unary(call),
        low(call.attrs->f("min", -std::numeric_limits<double>::infinity())),
        high(call.attrs->f("max", std::numeric_limits<double>::infinity())) {}
  double low, high;
};

KernelStatus quick_gelu(const KernelCall& call, const WithAlpha<Unary>& runs) {
  return run_unary(call, runs, UnaryOp::kQuickGelu, runs.alpha);
}
KernelStatus leaky_relu(const KernelCall& call, const WithAlpha<Unary>& runs) {
  return run_unary(call, runs, UnaryOp::kLeakyRelu, runs.alpha);
}
KernelStatus huber(const KernelCall& call, const WithAlpha<Unary>& runs) {
  return run_unary(call, runs, UnaryOp::kHuber, runs.alpha);
}
struct Elu : WithAlpha<Unary> {
  explicit Elu(const BoundCall& call) : WithAlpha(call), scale(call.attrs->f("scale")) {}
  double scale;
};
KernelStatus elu(const KernelCall& call, const Elu& runs) {
  return run_unary(call, runs, UnaryOp::kElu, runs.alpha * runs.scale, runs.scale);
}
KernelStatus clip(const KernelCall& call, const Bounded& runs) {
  return run_unary(call, runs, UnaryOp::kClip, runs.low, runs.high);
}

const char* supports_elu(const KernelQuery& query) {
  if (query.attrs->f("input_scale") != 1) return "of what is scaled";
  return supports_float(query);
}
// Above 16, log(1 + exp(x)) rounds to x whatever the threshold.
const char* supports_plain_softplus(const KernelQuery& query) {
  if (query.attrs->f("beta") != 1 || query.attrs->f("threshold") < 16) return "beta or threshold of its own";
  return supports_float(query);
}

template <UnaryGradOp op>
KernelStatus unary_grad(const KernelCall& call, const Binary& runs) {
  return run_unary_grad(call, runs, op);
}
KernelStatus quick_gelu_grad(const KernelCall& call, const WithAlpha<Binary>& runs) {
  return run_unary_grad(call, runs, UnaryGradOp::kQuickGelu, runs.alpha);
}

template <BinaryOp op>
KernelStatus binary(const KernelCall& call, const Binary& runs) {
  return run_binary(call, runs, op);
}
// y = y 1: a gradient that was made for a loss gradient of 1, which most are, is not touched again.
bool multiplies_itself_by_one(const KernelCall& call) {
  const TensorRef &y = call.outputs[0], &factor = call.inputs[1];
  return y.dtype == DType::kF32 && call.inputs[0].data == y.data && factor.rank == 0 && factor.data != y.data &&
         *factor.as<float>() == 1;
}
KernelStatus mul(const KernelCall& call, const Binary& runs) {
  return multiplies_itself_by_one(call) ? nullptr : run_binary(call, runs, BinaryOp::kMul);
}

template <CompareOp op>
KernelStatus compare(const KernelCall& call, const Binary& runs) {
  return run_compare(call, runs, op);
}

template <CompareOp op, class T>
bool holds(T a, T b) {
  switch (op) {
    case CompareOp::kEqual: return a == b;
    case CompareOp::kNotEqual: return a != b;
    case CompareOp::kLess: return a < b;
    case CompareOp::kLessOrEqual: return a <= b;
    case CompareOp::kGreater: return a > b;
    case CompareOp::kGreaterOrEqual: return a >= b;
  }
}

template <CompareOp op, class T>
void compare_as(const KernelCall& call, const Binary& runs) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const T *left = a.as<T>() + at[0], *right = b.as<T>() + at[1];
    uint8_t* out = y.as<uint8_t>() + at[2];
    // Steps that are constants let the loop be vectorised.
    if (steps[0] == 1 && steps[1] == 1 && steps[2] == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = holds<op>(left[i], right[i]);
    } else if (steps[0] == 1 && steps[1] == 0 && steps[2] == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = holds<op>(left[i], *right);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * steps[2]] = holds<op>(left[i * steps[0]], right[i * steps[1]]);
    }
  });
}

template <CompareOp op>
KernelStatus compare_integers(const KernelCall& call, const Binary& runs) {
  if (call.inputs[0].dtype == DType::kI64) {
    compare_as<op, int64_t>(call, runs);
  } else {
    compare_as<op, int32_t>(call, runs);
  }
  return nullptr;
}

const char* supports_integers(const KernelQuery& query) {
  const DType a = query.inputs[0].dtype, b = query.inputs[1].dtype;
  if (a != b) return "mixed dtypes";
  return a == DType::kI64 || a == DType::kI32 ? nullptr : "neither i64 nor i32";
}

// Of bools: whether `both` are true, else whether any is.
template <bool both>
KernelStatus logical(const KernelCall& call, const Binary& runs) {
  const TensorRef &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  runs.for_each([&](int64_t, const auto& at, const auto& steps, int64_t n) {
    const uint8_t *left = a.as<uint8_t>() + at[0], *right = b.as<uint8_t>() + at[1];
    uint8_t* out = y.as<uint8_t>() + at[2];
    const auto joined = [](uint8_t first, uint8_t second) -> uint8_t { return both ? first & second : first | second; };
    if (steps[0] == 1 && steps[1] == 1 && steps[2] == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = joined(left[i], right[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * steps[2]] = joined(left[i * steps[0]], right[i * steps[1]]);
    }
  });
  return nullptr;
}

const char* supports_bool(const KernelQuery& query) {
  const bool bools = query.inputs[0].dtype == DType::kBool && query.inputs[1].dtype == DType::kBool;
  return bools ? nullptr : "not bool";
}

KernelStatus where(const KernelCall& call, const Selection& runs) {
  switch (size_bytes(call.outputs[0].dtype)) {
    case 1: select<uint8_t>(call, runs); break;
    case 2: select<uint16_t>(call, runs); break;
    case 4: select<uint32_t>(call, runs); break;
    default: select<uint64_t>(call, runs);
  }
  return nullptr;
}

// Rows of x, cos, sin and y.
struct Rotation : RowWalk<4> {
  explicit Rotation(const BoundCall& call)
      : RowWalk(call, call.inputs[0], call.inputs[0].rank - 1,
                {&call.inputs[0], &call.inputs[1], &call.inputs[2], &call.outputs[0]}),
        transposed(call.attrs->b("transposed", false)),
        interleaved(call.attrs->b("interleaved", false)) {}
  bool transposed, interleaved;
};

// All rows are dense along the last dim or repeat along it. kStep: from pair to pair.
template <int64_t kStep>
void rotate_rows(const KernelCall& call, const Rotation& rotation) {
  const TensorRef &x = call.inputs[0], &cos = call.inputs[1], &sin = call.inputs[2], &y = call.outputs[0];
  const bool transposed = rotation.transposed;
  const int64_t pairs = rotation.size / 2, apart = kStep == 2 ? 1 : pairs;  // the numbers of a pair
  const int64_t c_step = rotation.steps[1], s_step = rotation.steps[2];
  const float sign = transposed ? -1.0f : 1.0f;
  rotation.for_each(8192 / std::max<int64_t>(1, 2 * pairs), [&](const auto& at) {
    const float *x1 = x.as<float>() + at[0], *x2 = x1 + apart, *c1 = cos.as<float>() + at[1], *c2 = c1 + apart * c_step;
    const float *s1 = sin.as<float>() + at[2], *s2 = s1 + apart * s_step;
    float *y1 = y.as<float>() + at[3], *y2 = y1 + apart;
    // rotate(x) = (-x2, x1) meets (s1, s2); its adjoint meets them before the two change places.
    const float *for1 = transposed ? s2 : s1, *for2 = transposed ? s1 : s2;
#pragma GCC ivdep
    for (int64_t e = 0; e < pairs; ++e) {
      const int64_t i = e * kStep;
      const float a = x1[i], b = x2[i];
      y1[i] = a * c1[i * c_step] - sign * (b * for1[i * s_step]);
      y2[i] = b * c2[i * c_step] + sign * (a * for2[i * s_step]);
    }
  });
}

KernelStatus rotary_embedding(const KernelCall& call, const Rotation& rotation) {
  rotation.interleaved ? rotate_rows<2>(call, rotation) : rotate_rows<1>(call, rotation);
  return nullptr;
}

}  // namespace

std::span<const Kernel> pointwise_kernels() {
  static constexpr Kernel kernels[] = {
#define LT_UNARY(op) LT_KERNEL(op, unary<UnaryOp::k##op>, supports_float, kUnary, .row_work = RowWork::kElements)
#include "kernels/cpu/pointwise/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
