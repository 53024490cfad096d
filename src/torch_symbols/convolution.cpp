// PyTorch's convolutions (oneDNN for f32) on memory of ours.
#include <algorithm>
#include <cstring>

#include "torch_symbols/torch_symbols.h"

namespace lowtide {

void install_convolution(const TorchSymbols& symbols, Libraries& libraries);

namespace {

// The symbols in use: function pointers of Libraries carry no state.
TorchSymbols torch;

// Of c10's enums, frozen by the stable ABI.
constexpr int32_t kFloat16 = 5, kFloat32 = 6, kFloat64 = 7, kBFloat16 = 15, kCpu = 0;

int32_t torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF16: return kFloat16;
    case DType::kBF16: return kBFloat16;
    case DType::kF64: return kFloat64;
    default: return kFloat32;
  }
}

// A tensor of PyTorch's, deleted at the end of the scope.
class Handle {
 public:
  Handle() = default;
  explicit Handle(const LibraryTensor& tensor) { wrap(tensor); }
  ~Handle() {
    if (handle_ != nullptr) torch.delete_tensor(handle_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  void wrap(const LibraryTensor& tensor) {
    torch.tensor_from_blob(tensor.data, tensor.rank, tensor.sizes, tensor.strides, 0, torch_dtype(tensor.dtype), kCpu,
                           0, &handle_);
  }
  // Null if PyTorch refused.
  TorchTensor get() const { return handle_; }
  TorchTensor* slot() { return &handle_; }

 private:
  TorchTensor handle_ = nullptr;
};

// Nothing of ours is differentiated by PyTorch, and on a thread without Python grad mode is on.
class NoGrad {
 public:
  NoGrad() : before_(torch.grad_mode_is_enabled()) { torch.grad_mode_set_enabled(false); }
  ~NoGrad() { torch.grad_mode_set_enabled(before_); }

 private:
  bool before_;
};

const char* failure() {
  const char* what = torch.last_error != nullptr ? torch.last_error() : nullptr;
  return what != nullptr ? what : "PyTorch's convolution failed";
}

constexpr int64_t kNoOutputPadding[3] = {0, 0, 0};

// Whether its elements fill the memory from the first to the last.
bool is_dense(const LibraryTensor& tensor) {
  int64_t numel = 1, last = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    numel *= tensor.sizes[i];
    last += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  return numel == last + 1;
}

void fill_zero(const LibraryTensor& tensor) {
  int64_t numel = 1;
  for (int i = 0; i < tensor.rank; ++i) numel *= tensor.sizes[i];
  float* data = static_cast<float*>(tensor.data);
  parallel_for(numel, 1 << 16, [&](int64_t begin, int64_t end) {
    std::memset(data + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

const char* forward(const LibraryTensor& x, const LibraryTensor& w, const LibraryTensor* bias,
                    const ConvolutionWindow& window, const LibraryTensor& y) {
  NoGrad guard;
  const Handle x_handle(x), w_handle(w), y_handle(y);
  Handle bias_handle, result;
  if (bias != nullptr) bias_handle.wrap(*bias);
  if (!x_handle.get() || !w_handle.get() || !y_handle.get() || (bias && !bias_handle.get())) return failure();
  TorchTensor* bias_argument = bias != nullptr ? bias_handle.slot() : nullptr;
  const int64_t n = window.spatial;
  if (n == 2 && y.dtype == DType::kF32 && is_dense(y) && torch.convolution_add != nullptr) {
    fill_zero(y);
    const TorchError error = torch.convolution_add(
        y_handle.get(), x_handle.get(), w_handle.get(), bias_argument, window.pads, n, window.strides, n,
        window.dilations, n, window.groups, "add", nullptr, nullptr, nullptr, 0, nullptr, result.slot());
    return error == 0 ? nullptr : failure();
  }
  if (torch.convolution(x_handle.get(), w_handle.get(), bias_argument, window.strides, n, window.pads, n,
                        window.dilations, n, 0, kNoOutputPadding, n, window.groups, result.slot()) != 0) {
    return failure();
  }
  return torch.copy(y_handle.get(), result.get(), 0) == 0 ? nullptr : failure();
}

const char* backward(const LibraryTensor& dy, const LibraryTensor& x, const LibraryTensor& w,
                     const ConvolutionWindow& window, const LibraryTensor* dx, const LibraryTensor* dw,
                     const LibraryTensor* dbias) {
  NoGrad guard;
  const Handle dy_handle(dy), x_handle(x), w_handle(w);
  if (!dy_handle.get() || !x_handle.get() || !w_handle.get()) return failure();
  const LibraryTensor* wanted[3] = {dx, dw, dbias};
  Handle results[3];
  const int32_t mask[3] = {dx != nullptr, dw != nullptr, dbias != nullptr};
  const int64_t n = window.spatial;
  const int64_t* bias_sizes = &w.sizes[0];
  if (torch.convolution_backward(dy_handle.get(), x_handle.get(), w_handle.get(), &bias_sizes, 1, window.strides, n,
                                 window.pads, n, window.dilations, n, 0, kNoOutputPadding, n, window.groups, mask, 3,
                                 results[0].slot(), results[1].slot(), results[2].slot()) != 0) {
    return failure();
  }
  for (int i = 0; i < 3; ++i) {
    if (wanted[i] == nullptr) continue;
    const Handle to(*wanted[i]);
    if (!to.get() || torch.copy(to.get(), results[i].get(), 0) != 0) return failure();
  }
  return nullptr;
}

}  // namespace

void install_convolution(const TorchSymbols& symbols, Libraries& libraries) {
  const bool complete = symbols.tensor_from_blob && symbols.delete_tensor && symbols.copy &&
                        symbols.grad_mode_is_enabled && symbols.grad_mode_set_enabled;
  if (!complete) return;
  torch = symbols;
  if (symbols.convolution) libraries.convolution = forward;
  if (symbols.convolution_backward) libraries.convolution_backward = backward;
}

}  // namespace lowtide
