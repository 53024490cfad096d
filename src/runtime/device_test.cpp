// A second device: memory that the host's code cannot touch, with kernels that reach it. Whatever of ours follows a
// pointer into it dies.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <map>

#include "base/check.h"
#include "bind/binding.h"
#include "runtime/written_program.h"

namespace lowtide {
namespace {

// By address: the bytes of what is mapped.
std::map<char*, size_t>& mappings() {
  static std::map<char*, size_t> all;
  return all;
}

std::shared_ptr<char> allocate(int64_t size_bytes) {
  const size_t size = static_cast<size_t>(size_bytes) + 1;  // an empty arena has an address too
  void* found = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LT_USER_CHECK(ErrorKind::kOutOfMemory, found != MAP_FAILED, "no memory on the device");
  char* bytes = static_cast<char*>(found);
  mappings()[bytes] = size;
  return {bytes, [](char* mapped) {
            munmap(mapped, mappings().at(mapped));
            mappings().erase(mapped);
          }};
}

// While a kernel of the device runs, it alone sees its memory.
struct Reach {
  Reach() { protect(PROT_READ | PROT_WRITE); }
  ~Reach() { protect(PROT_NONE); }
  static void protect(int how) {
    for (const auto& [bytes, size] : mappings()) ASSERT_EQ(mprotect(bytes, size, how), 0);
  }
};

int launches = 0;

KernelStatus copy(const KernelCall& call) {
  const Reach reach;
  ++launches;
  return find_kernel("reference.Copy")->run(call);
}
KernelStatus mul(const KernelCall& call) {
  const Reach reach;
  ++launches;
  std::fill_n(static_cast<char*>(call.scratch), call.scratch_bytes, 1);
  return find_kernel("reference.Mul")->run(call);
}

const Kernel kKernels[] = {{.op = Op::kCopy,
                            .name = "test.Copy",
                            .provider = "test",
                            .run = copy,
                            .prepare = find_kernel("reference.Copy")->prepare,
                            .state_bytes = find_kernel("reference.Copy")->state_bytes,
                            .state_bytes_each = find_kernel("reference.Copy")->state_bytes_each},
                           {.op = Op::kMul,
                            .name = "test.Mul",
                            .provider = "test",
                            .run = mul,
                            .prepare = find_kernel("reference.Mul")->prepare,
                            .state_bytes = find_kernel("reference.Mul")->state_bytes,
                            .state_bytes_each = find_kernel("reference.Mul")->state_bytes_each,
                            .scratch_bytes = [](const BoundCall&) -> int64_t { return 1000; }}};
const Device kDevice{"test", kKernels, allocate};

// y = x⁴, computed on the device: x goes there, is squared twice, comes back.
constexpr char kProgram[] = R"(symbol "n" 0 dim 0 1 1000
devices ["host" "test"]
expression [0 0]
expression [0 1]
expression [1 0]
expression [1 0 0 4 4]
input "x" f32 [2] [1] 0 0
buffer "x" caller 3 0 0 0 0
buffer "there" arena 3 0 1 0 1
buffer "square" arena 3 1 2 0 1
buffer "fourth" arena 3 2 3 0 1
buffer "back" arena 3 3 4 0 0
buffer "y" output 3 0 0 0 0
operand 0 f32 0 [2] [1]
operand 1 f32 0 [2] [1]
operand 2 f32 0 [2] [1]
operand 3 f32 0 [2] [1]
operand 4 f32 0 [2] [1]
operand 5 f32 0 [2] [1]
region "forward" []
step kernel "test.Copy" [0] [1] -1 "" 0 "to the device"
step kernel "test.Mul" [1 1] [2] -1 "" 0 "square"
step kernel "test.Mul" [2 2] [3] -1 "" 0 "fourth"
step kernel "test.Copy" [3] [4] -1 "" 0 "from the device"
step kernel "reference.Copy" [4] [5] -1 "" 0 "hand out"
output "y" 5 0
contexts 0
constants ""
pack_order []
)";

TEST(Device, StepsRunInItsMemory) {
  const Program program = written(kProgram);
  EXPECT_EQ(print(parse_program(print(program))), print(program));
  for (const bool guard : {false, true}) {
    Executor executor(program, {.guard = guard, .devices = {&kDevice}});
    // Nobody is shown what the host cannot read.
    std::vector<std::string> shown;
    executor.observe({{"fourth", 3, 3, 0}, {"back", 4, 4, 0}},
                     [&](const std::string& name, const TensorRef&) { shown.push_back(name); });
    std::vector<float> x(100);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    const TensorRef input = row_major(x, DType::kF32, {100});
    launches = 0;
    std::shared_ptr<RunState> state;
    const std::vector<float> y = floats(executor.forward({&input, 1}, 0, &state)[0]);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], x[i] * x[i] * (x[i] * x[i]));
    EXPECT_EQ(launches, 4);
    EXPECT_EQ(shown, std::vector<std::string>{"back"});
    EXPECT_EQ(mappings().size(), 1u);
    state.reset();
    EXPECT_EQ(mappings().size(), 0u);
  }
}

TEST(Device, HasAPackingOfItsOwn) {
  Executor executor(written(kProgram), {.devices = {&kDevice}});
  const std::vector<int64_t> sizes = {100};
  const Binding& binding = executor.binding(sizes);
  ASSERT_EQ(binding.packing.arenas.size(), 2u);
  // Two of three buffers at a time, and the kernels' scratch; on the host one buffer.
  EXPECT_EQ(binding.packing.arenas[1].size_bytes, 2 * 448 + 1024);
  EXPECT_EQ(binding.packing.arenas[0].size_bytes, 448);
  EXPECT_EQ(binding.report.arena_bytes, 448);
}

TEST(DeviceDeathTest, HostCodeThatTouchesItDies) {
  StepHooks touch;
  touch.before = [](const RunView& run, int32_t step) {
    if (step != 2) return;
    std::fprintf(stderr, "the host touches the device\n");
    *locate(run, 2).as<float>() += 1;
    std::fprintf(stderr, "and lives\n");
  };
  Executor executor(written(kProgram), {.hooks = {touch}, .devices = {&kDevice}});
  std::vector<float> x(100, 1);
  const TensorRef input = row_major(x, DType::kF32, {100});
  EXPECT_DEATH(executor.forward({&input, 1}, 0, nullptr), "the host touches the device");
}

void expect_refused(const std::string& lines, std::vector<const Device*> devices, const std::string& reason) {
  try {
    Executor executor(written(lines), {.devices = std::move(devices)});
    executor.memory(std::vector<int64_t>{100});
    FAIL() << "passed: " << reason;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidProgram);
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
  }
}

TEST(Device, KernelsOfTheHostAreRefusedThere) {
  const std::string square = "step kernel \"test.Mul\" [1 1] [2]";
  expect_refused(replaced(kProgram, square, "step kernel \"reference.Mul\" [1 1] [2]"), {&kDevice},
                 "reference.Mul of square works on host, but there lies on test");
  expect_refused(replaced(kProgram, square, "step kernel \"test.Mul\" [0 1] [2]"), {&kDevice},
                 "test.Mul of square works on test, but x lies on host");
  expect_refused(replaced(kProgram, "\"from the device\"\nstep kernel \"reference.Copy\" [4]",
                          "\"from the device\"\nstep kernel \"reference.Copy\" [3]"),
                 {&kDevice}, "touches fourth");
  expect_refused(replaced(kProgram, "\"y\" output 3 0 0 0 0", "\"y\" output 3 0 0 0 1"), {&kDevice},
                 "y lies on device 1 of 2, where only an arena may");
  expect_refused(kProgram, {}, "the program's device test is not there");
  expect_refused(replaced(kProgram, "devices [\"host\" \"test\"]\n", ""), {&kDevice}, "there lies on device 1 of 1");
}

}  // namespace
}  // namespace lowtide
