#include "session/calibrate.h"

#include <gtest/gtest.h>

#include <set>

#include "base/check.h"
#include "base/libraries.h"
#include "ir/parse.h"
#include "ir/verify.h"
#include "ops/rule.h"
#include "session/calibration_graphs.h"
#include "session/stages.h"

namespace lowtide {
namespace {

TEST(Calibrate, HasGraphsOfEveryClassOfKernelsButCalls) {
  std::set<std::string_view> found;
  std::set<DType> dtypes;
  for (const std::string& text : calibration_graphs()) {
    Graph graph = parse(text);
    verify(graph);
    verify_types(graph);
    const Stages stages(std::move(graph), {});
    const Graph training = parse(stages.training_text);
    for (NodeId node : training.order()) {
      found.insert(name(priced_kernels(training.node(node))));
      dtypes.insert(priced_dtype(training, node));
    }
  }
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) EXPECT_TRUE(dtypes.contains(dtype));
  for (KernelClass kernels : all_kernel_classes())
    EXPECT_TRUE(found.contains(name(kernels)) || kernels == KernelClass::kCall || kernels == KernelClass::kFill)
        << name(kernels);
}

TEST(Calibrate, TimesEachStepOfATrainingStep) {
  size_t told = 0;
  const CalibrationOptions options{.runs = 3, .progress = [&](size_t done, size_t all) { told += done + all; }};
  const std::vector<KernelTime> times = time_kernels({calibration_graphs().front()}, options);
  EXPECT_EQ(told, 1u);
  std::set<std::string_view> found;
  for (const KernelTime& time : times) {
    EXPECT_GT(time.milliseconds, 0);
    found.insert(name(time.kernels));
  }
  for (const char* kernels : {"matmul", "attention", "attention_grad", "norm_grad", "cross_entropy", "scatter"})
    EXPECT_TRUE(found.contains(kernels)) << kernels;
  EXPECT_FALSE(found.contains("free"));
}

TEST(Calibrate, TellsPricesOfAnotherMachine) {
  Prices prices;
  EXPECT_NE(tell_other_machine(prices).find("they are of no processor, this is "), std::string::npos);
  prices.processor = "an abacus";
  prices.threads = 1;
  EXPECT_NE(tell_other_machine(prices).find("they are of an abacus, this is "), std::string::npos);
}

TEST(Calibrate, NeedsTheConvolutionsThatModelsRun) {
  ASSERT_EQ(libraries().convolution, nullptr) << "this test's process has no PyTorch";
  try {
    calibrate({});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("PyTorch's convolutions"), std::string::npos);
  }
}

}  // namespace
}  // namespace lowtide
