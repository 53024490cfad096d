#include "session/calibrate.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/check.h"
#include "base/half.h"
#include "base/libraries.h"
#include "base/parallel.h"
#include "ir/parse.h"
#include "report/step_prices.h"
#include "runtime/executor.h"
#include "session/calibration_graphs.h"
#include "session/stages.h"

namespace lowtide {

namespace {

using Clock = std::chrono::steady_clock;

// Tensors of the sizes that a program asks for: floats that are small and differ, indices of kCalibrationRows rows.
class Inputs {
 public:
  explicit Inputs(const std::vector<TensorRef>& wanted) : tensors_(wanted) {
    for (TensorRef& tensor : tensors_) {
      bytes_.emplace_back(static_cast<size_t>(tensor.numel() * size_bytes(tensor.dtype)));
      tensor.data = bytes_.back().data();
      tensor.present = true;
      fill(tensor);
    }
  }
  const std::vector<TensorRef>& tensors() const { return tensors_; }
  std::vector<TensorRef> saved(const Program& program) const {
    std::vector<TensorRef> result;
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (program.inputs[i].saved) result.push_back(tensors_[i]);
    return result;
  }

 private:
  static void fill(const TensorRef& tensor) {
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const auto mixed = static_cast<uint32_t>(i) * 2654435761u >> 12;
      const float small = static_cast<float>(mixed % 1024) / 10240 - 0.05f;
      switch (tensor.dtype) {
        case DType::kI64: tensor.as<int64_t>()[i] = mixed % kCalibrationRows; break;
        case DType::kF64: tensor.as<double>()[i] = small; break;
        case DType::kF32: tensor.as<float>()[i] = small; break;
        case DType::kBF16: tensor.as<BFloat16>()[i] = small; break;
        case DType::kF16: tensor.as<Float16>()[i] = small; break;
        default: LT_FAIL("a calibration graph with an input of ", name(tensor.dtype));
      }
    }
  }

  std::vector<std::vector<char>> bytes_;
  std::vector<TensorRef> tensors_;
};

// The milliseconds of each step, run by run.
class StepTimes {
 public:
  StepHooks hooks() {
    StepHooks hooks;
    hooks.before = [this](const RunView&, int32_t) { begin_ = Clock::now(); };
    hooks.after = [this](const RunView&, int32_t step) {
      const std::chrono::duration<double, std::milli> time = Clock::now() - begin_;
      if (of_steps_.size() <= static_cast<size_t>(step)) of_steps_.resize(static_cast<size_t>(step) + 1);
      of_steps_[static_cast<size_t>(step)].push_back(time.count());
    };
    return hooks;
  }
  void forget() { of_steps_.clear(); }
  double median(int32_t step) {
    std::vector<double>& times = of_steps_.at(static_cast<size_t>(step));
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }
  bool has(int32_t step) const {
    return static_cast<size_t>(step) < of_steps_.size() && !of_steps_[static_cast<size_t>(step)].empty();
  }

 private:
  std::vector<std::vector<double>> of_steps_;
  Clock::time_point begin_;
};

// More bytes than caches hold, to be written between runs.
constexpr size_t kMoreThanCaches = size_t{128} << 20;

void time_graph(const std::string& text, const CalibrationOptions& options, std::vector<char>& others,
                std::vector<KernelTime>& times) {
  // The loss by itself: in a loss head its time is lost in that of the product.
  SessionOptions session;
  session.disabled_passes = {"fuse_linear_cross_entropy", "fuse_linear_cross_entropy_grad"};
  Stages stages(parse(text), session);
  const Graph training = parse(stages.training_text);
  StepTimes measured;
  Executor executor(stages.planned.program, {.hooks = {measured.hooks()}});
  const Binding& binding = executor.binding({});
  const Inputs inputs(binding.inputs), incoming(binding.incoming);
  const auto run = [&] {
    std::fill(others.begin(), others.end(), static_cast<char>(others.front() + 1));
    std::shared_ptr<RunState> state;
    executor.forward(inputs.tensors(), 1, &state);
    executor.backward(*state, incoming.tensors(), inputs.saved(executor.program()));
  };
  run();  // maps the memory
  measured.forget();
  const auto begin = Clock::now();
  for (int i = 0; i < options.runs; ++i) {
    if (i > 1 && std::chrono::duration<double>(Clock::now() - begin).count() > options.seconds_a_graph) break;
    run();
  }
  for (const StepPrice& step :
       step_prices(training, executor.program(), binding, stages.planned.step_positions, {}, {}))
    if (measured.has(step.step)) times.push_back({step.kernels, step.dtype, step.cost, measured.median(step.step)});
}

// "AMD EPYC 9355P, family 26, model 2", as Linux tells it; "unknown" elsewhere.
std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, result, family, model;
  while (std::getline(file, line) && !line.empty()) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::string value = line.substr(std::min(colon + 2, line.size()));
    if (line.starts_with("model name")) {
      result = value;
    } else if (line.starts_with("cpu family")) {
      family = value;
    } else if (line.starts_with("model")) {
      model = value;
    }
  }
  if (result.empty()) return "unknown";
  return family.empty() ? result : concat(result, ", family ", family, ", model ", model);
}

}  // namespace

std::vector<KernelTime> time_kernels(const std::vector<std::string>& graphs, const CalibrationOptions& options) {
  std::vector<KernelTime> times;
  std::vector<char> others(kMoreThanCaches);
  for (size_t i = 0; i < graphs.size(); ++i) {
    if (options.progress) options.progress(i, graphs.size());
    time_graph(graphs[i], options, others, times);
  }
  return times;
}

Prices calibrate(const CalibrationOptions& options) {
  LT_USER_CHECK(ErrorKind::kUnsupported, libraries().convolution != nullptr,
                "expected PyTorch's convolutions to measure, found none: calibrate in a process that has PyTorch");
  Prices prices = fit_prices(time_kernels(calibration_graphs(), options), Prices());
  prices.processor = processor_name();
  prices.threads = parallel_threads();
  return prices;
}

std::string tell_other_machine(const Prices& prices) {
  if (const std::string here = processor_name(); prices.processor != here)
    return concat("they are of ", prices.processor.empty() ? "no processor" : prices.processor, ", this is ", here);
  if (prices.threads != parallel_threads())
    return concat("they are of ", prices.threads, " threads, this process has ", parallel_threads());
  return "";
}

}  // namespace lowtide
