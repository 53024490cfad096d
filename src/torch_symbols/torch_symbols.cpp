#include "torch_symbols/torch_symbols.h"

#include <dlfcn.h>

#include "base/check.h"

namespace lowtide {

namespace {

template <class Function>
void resolve(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

// parallel_for of base has no return value, PyTorch's has: this one stands between.
TorchError (*torch_parallel_for)(int64_t, int64_t, int64_t, ParallelBody, void*) = nullptr;

TorchError (*torch_get_num_threads)(uint32_t*) = nullptr;

const char* (*last_error)() = nullptr;

int torch_threads() {
  uint32_t threads = 0;
  return torch_get_num_threads(&threads) == 0 ? static_cast<int>(threads) : parallel_threads();
}

void run_parallel(int64_t begin, int64_t end, int64_t grain, ParallelBody body, void* context) {
  if (torch_parallel_for(begin, end, grain, body, context) == 0) return;
  // Some of the chunks have not run, or not to their end: nothing that was to be computed is there.
  const char* why = last_error != nullptr ? last_error() : nullptr;
  LT_USER_FAIL(ErrorKind::kRuntime, "PyTorch's thread pool (torch_parallel_for) failed: ",
               why != nullptr && *why != '\0' ? why : "it gives no reason");
}

}  // namespace

TorchSymbols load_torch_symbols() {
  TorchSymbols symbols;
#ifdef __APPLE__
  void* library = dlopen("libtorch_cpu.dylib", RTLD_NOW | RTLD_NOLOAD);
#else
  void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
#endif
  if (library == nullptr) return symbols;
  resolve(library, symbols.parallel_for, "torch_parallel_for");
  resolve(library, symbols.get_num_threads, "torch_get_num_threads");
  resolve(library, symbols.sgemm, "sgemm_");
  resolve(library, symbols.dgemm, "dgemm_");
  resolve(library, symbols.tensor_from_blob, "aoti_torch_create_tensor_from_blob");
  resolve(library, symbols.delete_tensor, "aoti_torch_delete_tensor_object");
  resolve(library, symbols.get_data_ptr, "aoti_torch_get_data_ptr");
  resolve(library, symbols.get_dim, "aoti_torch_get_dim");
  resolve(library, symbols.get_sizes, "aoti_torch_get_sizes");
  resolve(library, symbols.get_strides, "aoti_torch_get_strides");
  resolve(library, symbols.get_dtype, "aoti_torch_get_dtype");
  resolve(library, symbols.get_device_type, "aoti_torch_get_device_type");
  resolve(library, symbols.copy, "aoti_torch_copy_");
  resolve(library, symbols.grad_mode_is_enabled, "aoti_torch_grad_mode_is_enabled");
  resolve(library, symbols.grad_mode_set_enabled, "aoti_torch_grad_mode_set_enabled");
  resolve(library, symbols.last_error, "torch_exception_get_what_without_backtrace");
  resolve(library, symbols.convolution, "aoti_torch_cpu_convolution");
  resolve(library, symbols.convolution_backward, "aoti_torch_cpu_convolution_backward");
  resolve(library, symbols.convolution_add, "aoti_torch_cpu_mkldnn__convolution_pointwise_binary_");
  return symbols;  // the library stays loaded: the handle is never closed
}

void install_convolution(const TorchSymbols& symbols, Libraries& libraries);

TorchInstalled install_torch(const TorchSymbols& symbols, int threads) {
  TorchInstalled installed;
  if (symbols.parallel_for != nullptr) {
    torch_parallel_for = symbols.parallel_for;
    last_error = symbols.last_error;
    torch_get_num_threads = symbols.get_num_threads;
    const bool follows = threads < 1 && torch_get_num_threads != nullptr;
    set_parallel_for(run_parallel, follows ? torch_threads() : threads, follows ? torch_threads : nullptr);
    installed.threads = true;
  }
  Libraries loaded = libraries();
  if (symbols.sgemm != nullptr) loaded.sgemm = symbols.sgemm;
  if (symbols.dgemm != nullptr) loaded.dgemm = symbols.dgemm;
  installed.blas = symbols.sgemm != nullptr && symbols.dgemm != nullptr;
  install_convolution(symbols, loaded);
  installed.convolution = loaded.convolution != nullptr && loaded.convolution_backward != nullptr;
  set_libraries(loaded);
  return installed;
}

}  // namespace lowtide
