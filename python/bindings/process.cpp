#include "process.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "dlpack.h"
#include "interrupt.h"
#include "kernels/cpu/isa.h"
#include "runtime/block_pool.h"
#include "session/calibrate.h"
#include "session/session.h"
#include "torch_symbols/torch_symbols.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lowtide::bindings {

nb::tuple statistics_to_python(const Statistics& found) {
  nb::list samples;
  for (int32_t i = 0; i < found.samples; ++i) samples.append(found.sample[i]);
  return nb::make_tuple(std::string(name(found.dtype)), span_tuple(found.sizes, found.rank),
                        nb::make_tuple(found.min, found.max, found.mean, found.std),
                        nb::make_tuple(found.nan, found.inf, found.negative, found.positive, found.zero), samples);
}

namespace {

std::string calibrated(nb::object progress) {
  CalibrationOptions options;
  options.progress = [&](size_t done, size_t all) {
    nb::gil_scoped_acquire lock;
    progress(done, all);
  };
  InterruptWatch watch;
  nb::gil_scoped_release unlocked;
  return calibrate(options).text();
}

nb::tuple statistics_of(nb::handle tensor) {
  const TensorRef ref = view_of(tensor);
  Statistics found;
  {
    nb::gil_scoped_release unlocked;
    found = statistics(ref);
  }
  return statistics_to_python(found);
}

struct PoolKeepsNone {
  BlockPool::KeepsNone held{process_pool()};
};

}  // namespace

void bind_process(nb::module_& module) {
  nb::class_<PoolKeepsNone>(module, "PoolKeepsNone",
                            "As long as one is there, the process's pool keeps no block for the next step.")
      .def(nb::init<>());
  module.def(
      "release_memory", [] { process_pool().trim(); }, nb::call_guard<nb::gil_scoped_release>(),
      "Gives the arenas that no pending step uses back to the system; the next step maps new ones.");
  module.def(
      "pool_bytes",
      [] {
        nb::dict result;
        result["live_bytes"] = process_pool().live_bytes();
        result["free_bytes"] = process_pool().free_bytes();
        return result;
      },
      "Bytes of the process's pool: live_bytes are held by pending steps, gradients and outputs; free_bytes are kept "
      "for the next step.");
  module.def(
      "install_torch",
      [](int threads) {
        const TorchInstalled installed = install_torch(load_torch_symbols(), threads);
        return nb::make_tuple(installed.threads, installed.blas, installed.convolution);
      },
      "threads"_a = 0,
      "Takes PyTorch's threads, BLAS and convolutions; returns which of them were found. Without `threads` a step runs "
      "on as many as PyTorch has when it begins.");
#ifdef LOWTIDE_TEST_FAULTS
  module.attr("injects_faults") = true;
#else
  module.attr("injects_faults") = false;
#endif
  module.def(
      "instruction_set", [] { return std::string(cpu::name(cpu::isa())); },
      "The set that the kernels use: portable, avx2, avx512, avx512_bf16 or amx. ValueError where LOWTIDE_ISA names "
      "none.");
  module.def("statistics", statistics_of, "tensor"_a,
             "Of a tensor on the CPU, read in place: (dtype, shape, (min, max, mean, std), (nan, inf, negative, "
             "positive, zero), first elements).");
  module.def("shipped_prices", [] { return Prices().text(); }, "What a step costs by default, as text.");
  module.def(
      "tell_other_machine", [](const std::string& prices) { return tell_other_machine(Prices::parse(prices)); },
      "prices"_a, "Why prices are not this machine's with these threads; empty where they are.");
  module.def(
      "calibrate", calibrated, "progress"_a,
      "Measures what kernels take on this machine, for less than a minute, and returns the prices as text; calls "
      "progress(graphs done, all of them) before each.");
  module.def("lowered_targets", lowered_targets, "The ATen targets that have a lowering, sorted.");
  module.def("known_views", known_views, "The names of ATen's views whose memory the lowering follows.");
}

}  // namespace lowtide::bindings
