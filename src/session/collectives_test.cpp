// Gathers and reductions that go on while steps run, from a graph to its results.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "ir/parse.h"
#include "runtime/control_programs.h"
#include "session/session.h"

namespace lowtide {
namespace {

// y = tanh(x p) q, where p and q are gathered.
constexpr const char* kLayers = R"(graph @g(%x: f32[8, 4] input, %a: f32[2, 4] param, %b: f32[2, 4] param) {
  %p: f32[4, 4] = AllGather(group=0, ranks=2) %a
  %h: f32[8, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %p
  %k: f32[8, 4] = Tanh %h
  %q: f32[4, 4] = AllGather(group=0, ranks=2) %b
  %y: f32[8, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %k, %q
  return %y output
}
)";

// Of two processes that have the same rows; what is begun ends later, on a thread of its own.
struct Network {
  std::atomic<int> begun{0}, ended{0}, reductions{0};

  CallHandler handler() {
    CallHandler calls;
    calls.begin = [this](const CallRequest& request, PendingCall* pending) -> KernelStatus {
      const bool gathers = *request.target == "AllGather";
      EXPECT_TRUE(gathers || *request.target == "ReduceScatter");
      ++(gathers ? begun : reductions);
      const TensorRef from = request.inputs[0], to = request.outputs[0];
      auto thread = std::make_shared<std::thread>([this, gathers, from, to] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        for (int64_t rank = 0; rank < (gathers ? 2 : 1); ++rank)
          std::copy_n(from.as<float>(), std::min(from.numel(), to.numel()), to.as<float>() + rank * from.numel());
        if (gathers) ++ended;
      });
      *pending = [thread]() -> KernelStatus {
        thread->join();
        return nullptr;
      };
      return nullptr;
    };
    calls.forward = [](const CallRequest& request, CallContext*) -> KernelStatus {
      EXPECT_EQ(*request.target, "ReduceScatter");
      EXPECT_EQ(request.outputs[1].numel(), request.outputs[0].numel());  // of the other process
      const TensorRef whole = request.inputs[0], part = request.outputs[0];
      std::copy_n(whole.as<float>(), part.numel(), part.as<float>());
      return nullptr;
    };
    return calls;
  }
};

TEST(Collectives, GathersGoOnUntilTheirFirstReader) {
  std::vector<float> x = waves(32), a = waves(8, 0.5f), b = waves(8, 0.25f), ones(32, 1.0f);
  const TensorRef inputs[] = {row_major(x, DType::kF32, {8, 4}), row_major(a, DType::kF32, {2, 4}),
                              row_major(b, DType::kF32, {2, 4})};
  const TensorRef incoming = row_major(ones, DType::kF32, {8, 4});
  for (const bool guard : {false, true}) {
    SessionOptions options;
    options.guard = guard;
    Session session(parse(kLayers), options);
    Network network;
    session.set_call_handler(network.handler());
    const std::string plan = session.plan_text({});
    EXPECT_LT(plan.rfind("begin AllGather", plan.find("Yield")), plan.find("Tanh")) << plan;
    EXPECT_GT(plan.find("wait for step 1"), plan.find("Tanh")) << plan;
    std::shared_ptr<RunState> state;
    const std::vector<float> y = floats(session.forward(inputs, 0, &state)[0]);
    for (size_t i = 0; i < 8; ++i)
      for (size_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (size_t k = 0; k < 4; ++k) {
          double inner = 0;
          for (size_t l = 0; l < 4; ++l) inner += static_cast<double>(x[i * 4 + l]) * a[k % 2 * 4 + l];
          sum += std::tanh(inner) * b[j % 2 * 4 + k];
        }
        EXPECT_NEAR(y[i * 4 + j], sum, 1e-5);
      }
    EXPECT_EQ(network.ended, 2);
    std::vector<TensorRef> saved;
    for (int input : session.saved_inputs()) saved.push_back(inputs[input]);
    EXPECT_EQ(session.backward(*state, {&incoming, 1}, saved).tensors().size(), 2u);
    EXPECT_EQ(network.begun, network.ended);
  }
}

// The gathers of the plan that serves.
size_t gathers(Session& session) {
  const std::string plan = session.plan_text({});
  size_t count = 0;
  for (size_t at = plan.find("begin AllGather"); at != std::string::npos; at = plan.find("begin AllGather", at + 1))
    ++count;
  return count;
}

// %r is needed by forward last and by backward first.
constexpr const char* kLongLayers =
    R"(graph @g(%x: f32[800, 4] input, %a: f32[2, 4] param, %b: f32[2, 4] param, %c: f32[2, 4] param) {
  %p: f32[4, 4] = AllGather(group=0, ranks=2) %a
  %h: f32[800, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %x, %p
  %k1: f32[800, 4] = Tanh %h
  %k2: f32[800, 4] = Tanh %k1
  %k3: f32[800, 4] = Tanh %k2
  %k4: f32[800, 4] = Tanh %k3
  %k: f32[800, 4] = Tanh %k4
  %q: f32[4, 4] = AllGather(group=0, ranks=2) %b
  %i: f32[800, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %k, %q
  %l: f32[800, 4] = Tanh %i
  %r: f32[4, 4] = AllGather(group=0, ranks=2) %c
  %y: f32[800, 4] = Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %l, %r
  return %y output
}
)";

// A gather takes longer than the layers, which are made again instead.
TEST(Collectives, ABudgetKeepsWhatIsDearToGather) {
  Session without(parse(kLongLayers), {});
  EXPECT_EQ(gathers(without), 4u);  // nothing reads %p in backward
  SessionOptions options;
  options.memory_budget = without.memory({}).peak_bytes - 5000;
  Session within(parse(kLongLayers), options);
  EXPECT_EQ(gathers(within), 3u) << within.plan_text({});
  EXPECT_LE(within.memory({}).peak_bytes, options.memory_budget);
}

// What serves is planned once more, later: with the options of the session, which it once had no hold of.
TEST(Collectives, ABudgetLeavesOutTheKernelsThatAreDisabled) {
  SessionOptions options;
  options.disabled_kernels = {"cpu"};
  options.memory_budget = Session(parse(kLongLayers), options).memory({}).peak_bytes - 5000;
  Session within(parse(kLongLayers), options);
  EXPECT_EQ(within.plan_text({}).find("cpu."), std::string::npos);
}

struct Step {
  // One that is observed waits for each collective where it stands.
  explicit Step(int64_t budget, bool observed = false) : session(parse(kLongLayers), options(budget, observed)) {
    session.set_call_handler(network.handler());
  }
  static SessionOptions options(int64_t budget, bool observed) {
    SessionOptions result;
    result.memory_budget = budget;
    result.observed = observed;
    return result;
  }
  std::vector<std::vector<float>> gradients() {
    std::vector<float> x = waves(3200), a = waves(8, 0.5f), b = waves(8, 0.25f), c = waves(8, 0.75f), dy = waves(3200);
    const TensorRef inputs[] = {row_major(x, DType::kF32, {800, 4}), row_major(a, DType::kF32, {2, 4}),
                                row_major(b, DType::kF32, {2, 4}), row_major(c, DType::kF32, {2, 4})};
    const TensorRef incoming = row_major(dy, DType::kF32, {800, 4});
    std::shared_ptr<RunState> state;
    const std::vector<OwnedTensor> outputs = session.forward(inputs, 0, &state);
    std::vector<TensorRef> saved;
    for (int input : session.saved_inputs()) saved.push_back(inputs[input]);
    std::vector<std::vector<float>> found;
    for (const OwnedTensor& each : session.backward(*state, {&incoming, 1}, saved).tensors())
      found.push_back(floats(each));
    return found;
  }
  Network network;
  Session session;
};

// Where its bytes fit beside the rest; under a budget, beside the rest of the plan that keeps within it.
TEST(Collectives, ReductionsGoOnWhileBackwardRuns) {
  Step waited(0, true), late(0);
  const int64_t peak = late.session.memory({}).peak_bytes;
  EXPECT_EQ(waited.session.plan_text({}).find("begin ReduceScatter"), std::string::npos);
  for (const int64_t budget : {int64_t{0}, peak, peak - 5000, peak * 3 / 4}) {
    Step step(budget);
    const std::string plan = step.session.plan_text({});
    const size_t first = plan.find("begin ReduceScatter");
    ASSERT_NE(first, std::string::npos) << plan;
    EXPECT_LT(plan.find("TanhGrad", first), plan.find("wait for", first)) << plan;
    EXPECT_LE(step.session.memory({}).peak_bytes, budget > 0 ? budget : peak);
    EXPECT_EQ(step.gradients(), waited.gradients());
    EXPECT_GE(step.network.reductions, 1);
  }
}

}  // namespace
}  // namespace lowtide
