// Convolutions of the library that the process has loaded (base/libraries.h: PyTorch's, which is oneDNN for f32).
#include "base/libraries.h"
#include "base/parallel.h"
#include "kernels/cpu/convolution/volume_convolution.h"
#include "kernels/kernel_lines.h"
#include "kernels/rooms.h"
#include "kernels/strided.h"

namespace lowtide::cpu {

namespace {

constexpr OperandRules kConvolution =
    with_output_layout({.inputs = {Accept::kChannelsLast, Accept::kAny, Accept::kAny}}, OutputLayout::kChannelsLast);
// PyTorch's convolutions work on channels-last tensors, those in f64 on contiguous ones.
constexpr OperandRules kContiguous;
constexpr OperandRules kConvolutionGrad = with_output_layout(
    {.inputs = {Accept::kChannelsLast, Accept::kChannelsLast, Accept::kAny}}, OutputLayout::kFollowsInput);

LibraryTensor library_tensor(const TensorRef& tensor) {
  return {tensor.data, tensor.rank, tensor.sizes, tensor.strides, tensor.dtype};
}

struct Window {
  explicit Window(const BoundCall& call) : groups(call.attrs->i("group")) {
    const std::vector<int64_t>& steps = call.attrs->ints("strides");
    spatial = static_cast<int>(steps.size());
    std::copy(steps.begin(), steps.end(), strides);
    std::copy_n(call.attrs->ints("pads").begin(), spatial, pads);
    std::copy_n(call.attrs->ints("dilations").begin(), spatial, dilations);
  }
  operator ConvolutionWindow() const { return {spatial, strides, pads, dilations, groups}; }

  int spatial;
  int64_t strides[kMaxRank], pads[kMaxRank], dilations[kMaxRank], groups;
};

template <DType dtype>
const char* refuses(const KernelQuery& query) {
  for (const OperandInfo& operand : query.inputs) {
    if (operand.present && operand.dtype != dtype) return "takes one dtype only";
  }
  const int rank = query.inputs[0].rank;
  if (rank < 3 || rank > 5) return "not 1 to 3 spatial dims";
  if (!query.attrs->has("pads")) return "symbolic pads";
  const auto& pads = query.attrs->ints("pads");
  for (int i = 0; i < rank - 2; ++i) {
    if (pads[i] != pads[i + rank - 2]) return "pads differ at the two ends";
    if (pads[i] < 0) return "negative pads";
  }
  return nullptr;
}

int64_t bytes_of(const TensorRef* tensor) { return tensor ? tensor->numel() * size_bytes(tensor->dtype) : 0; }

// In f64 PyTorch multiplies matrices whose rows are the windows of x, which it writes out unless they are single
// places.
int64_t written_out_bytes(const TensorRef& x, const TensorRef& w, const TensorRef& y) {
  if (x.dtype != DType::kF64) return 0;
  int64_t taps = 1, places = 1;
  for (int i = 2; i < w.rank; ++i) {
    taps *= w.sizes[i];
    places *= y.sizes[i];
  }
  return taps == 1 ? 0 : x.sizes[0] * x.sizes[1] * taps * places * size_bytes(x.dtype);
}

// The library makes tensors of its own, which are copied: about this many bytes at a time, enough for all threads.
int64_t bytes_at_once() { return parallel_threads() * (int64_t{2} << 20); }
int64_t parts_of(int64_t bytes, int64_t at_once = bytes_at_once()) {
  return std::max<int64_t>(1, (bytes + at_once - 1) / at_once);
}
// Of `size`, cut into `parts` of whole units.
int64_t part_of(int64_t size, int64_t parts, int64_t unit) {
  const int64_t each = ((size + parts - 1) / parts + unit - 1) / unit * unit;
  return std::max<int64_t>(1, std::min(size, each));
}

// A tensor, or [first, first + count) of one of its dims.
struct Part {
  explicit Part(const TensorRef& tensor) : Part(tensor, 0, 0, tensor.sizes[0]) {}
  Part(const TensorRef& tensor, int dim, int64_t first, int64_t count) : of(library_tensor(tensor)) {
    std::copy_n(tensor.sizes, tensor.rank, sizes);
    sizes[dim] = count;
    of.sizes = sizes;
    of.data = static_cast<char*>(tensor.data) + first * tensor.strides[dim] * size_bytes(tensor.dtype);
  }
  Part(const Part&) = delete;

  LibraryTensor of;
  int64_t sizes[kMaxRank];
};

// body(first, count) over the parts of `size`, until one fails.
template <class Body>
KernelStatus for_parts(int64_t size, int64_t each, Body body) {
  for (int64_t first = 0; first < size; first += each) {
    if (const KernelStatus status = body(first, std::min(each, size - first))) return status;
  }
  return nullptr;
}

// In two dims of f32 the whole result is computed in place; else the library's own is copied.
struct Forward : Window {
  explicit Forward(const BoundCall& call) : Window(call) {
    const TensorRef &x = call.inputs[0], &w = call.inputs[1], &y = call.outputs[0];
    const TensorRef* bias = input(call, 2);
    is_alone = is_volume_alone(*call.attrs, x, w) && (bias == nullptr || bias->is_row_major());
    if (is_alone) volume = VolumeForward(call);
    const int64_t of_y = bytes_of(&y), copies_of_w = 2 * bytes_of(&w);
    const bool by_images = of_y >= copies_of_w, may_be_cut = x.dtype != DType::kF64;
    in_place = x.rank == 4 && x.dtype == DType::kF32 && (by_images || copies_of_w <= bytes_at_once() || groups != 1);
    images = part_of(x.sizes[0], may_be_cut && !in_place && by_images ? parts_of(of_y) : 1, 1);
    const bool by_channels = may_be_cut && !in_place && !by_images && groups == 1 && x.rank > 3;
    channels = part_of(w.sizes[0], by_channels ? parts_of(of_y + copies_of_w) : 1, 64);
  }
  bool in_place;
  int64_t images, channels;  // at a time
  bool is_alone;             // then our own products convolve `volume`, and all else above is not asked
  VolumeForward volume;
};

KernelStatus library_conv(const KernelCall& call, const Forward& forward) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0], *bias = input(call, 2);
  if (y.numel() == 0) return nullptr;
  if (forward.is_alone) return volume_conv(call, forward.volume);
  return for_parts(x.sizes[0], forward.images, [&](int64_t image, int64_t images) {
    const Part of_x(x, 0, image, images);
    return for_parts(y.sizes[1], forward.channels, [&](int64_t channel, int64_t channels) {
      TensorRef some = y;
      some.data = static_cast<char*>(y.data) + image * y.strides[0] * size_bytes(y.dtype);
      some.sizes[0] = images;
      const Part of_y(some, 1, channel, channels), of_w(call.inputs[1], 0, channel, channels);
      const Part of_bias(bias ? *bias : call.inputs[1], 0, channel, channels);
      return libraries().convolution(of_x.of, of_w.of, bias ? &of_bias.of : nullptr, forward, of_y.of);
    });
  });
}

template <DType dtype>
const char* supports_library_conv(const KernelQuery& query) {
  if (libraries().convolution == nullptr) return "no convolution library is loaded";
  return refuses<dtype>(query);
}

int64_t library_conv_scratch(const BoundCall& call) { return Forward(call).is_alone ? volume_conv_scratch(call) : 0; }
// In one dim PyTorch makes its operands contiguous, then channels-last in two dims, and the results back.
bool is_line(const TensorRef& x) { return x.rank == 3 && x.dtype != DType::kF64; }

int64_t library_conv_bytes(const BoundCall& call) {
  const TensorRef &x = call.inputs[0], &w = call.inputs[1], &y = call.outputs[0];
  if (y.numel() == 0) return 0;
  const Forward forward(call);
  if (forward.is_alone) return 0;
  const int64_t result = forward.in_place ? 0 : bytes_of(&y) / x.sizes[0] * forward.images;
  if (is_line(x)) return bytes_of(&x) / x.sizes[0] * forward.images + 2 * result + 3 * bytes_of(&w);
  return (result + 2 * bytes_of(&w)) * forward.channels / w.sizes[0] + written_out_bytes(x, w, y);
}

// Tensors of the size of w that the library holds for dw: its result, one in its own order, and sums of threads; long
// windows of one dim have more.
int64_t copies_for_dw(const TensorRef& w) {
  if (w.rank != 3 || w.sizes[2] < 32) return 4;
  return w.dtype == DType::kF32 ? 10 : 14;
}

// Inputs: dy, x, w. dx by images, or by channels of x where w is the larger one; dw by channels of dy, whole groups of
// them where there are groups.
struct Backward : Window {
  explicit Backward(const BoundCall& call) : Window(call) {
    const TensorRef &x = call.inputs[1], &w = call.inputs[2];
    is_alone = is_volume_alone(*call.attrs, x, w);
    if (is_alone) volume = VolumeBackward(call);
    const bool whole = x.dtype == DType::kF64, whole_channels = whole || groups != 1 || x.rank == 3;
    const int64_t for_dw = copies_for_dw(w) * bytes_of(&w);
    const int64_t of_x = bytes_of(&x), copies_of_w = 2 * bytes_of(&w);
    const bool by_images = of_x >= copies_of_w;
    const int64_t beside_w = std::max(bytes_at_once() / 2, bytes_at_once() - copies_of_w);
    images = part_of(x.sizes[0], whole || !by_images ? 1 : parts_of(of_x, beside_w), 1);
    x_channels = part_of(x.sizes[1], whole_channels || by_images ? 1 : parts_of(2 * of_x + copies_of_w), 64);
    dy_channels = groups != 1 ? w.sizes[0] / groups * part_of(groups, whole ? 1 : parts_of(for_dw), 1)
                              : part_of(w.sizes[0], whole_channels ? 1 : parts_of(for_dw), 64);
  }
  int64_t images, x_channels, dy_channels;  // at a time
  bool is_alone;                            // as of Forward
  VolumeBackward volume;
};

KernelStatus library_conv_grad(const KernelCall& call, const Backward& backward) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  const TensorRef *dx = output(call, 0), *dw = output(call, 1), *db = output(call, 2);
  if (backward.is_alone) return volume_conv_grad(call, backward.volume);
  const auto run = libraries().convolution_backward;
  if (dx != nullptr) {
    const KernelStatus status = for_parts(x.sizes[0], backward.images, [&](int64_t image, int64_t images) {
      return for_parts(x.sizes[1], backward.x_channels, [&](int64_t channel, int64_t channels) {
        TensorRef some = x, some_dx = *dx;
        for (TensorRef* each : {&some, &some_dx}) {
          each->data = static_cast<char*>(each->data) + channel * each->strides[1] * size_bytes(each->dtype);
          each->sizes[1] = channels;
        }
        const bool all = channels == x.sizes[1];  // or groups, whose w has fewer
        const Part of_dy(dy, 0, image, images), of_x(some, 0, image, images), to(some_dx, 0, image, images);
        const Part of_w(w, 1, channel, all ? w.sizes[1] : channels);
        return run(of_dy.of, of_x.of, of_w.of, backward, &to.of, nullptr, nullptr);
      });
    });
    if (status != nullptr) return status;
  }
  if (dw == nullptr && db == nullptr) return nullptr;
  return for_parts(w.sizes[0], backward.dy_channels, [&](int64_t first, int64_t count) {
    // Of groups, those of the channels; without groups all of x.
    const int64_t groups = backward.groups == 1 ? 1 : count / (w.sizes[0] / backward.groups);
    const int64_t x_first = backward.groups == 1 ? 0 : first / (w.sizes[0] / backward.groups) * w.sizes[1];
    ConvolutionWindow window = backward;
    window.groups = groups;
    const Part of_dy(dy, 1, first, count), of_x(x, 1, x_first, groups * w.sizes[1]), of_w(w, 0, first, count);
    const Part to_w(dw ? *dw : w, 0, first, count), to_b(db ? *db : w, 0, first, count);
    return run(of_dy.of, of_x.of, of_w.of, window, nullptr, dw ? &to_w.of : nullptr, db ? &to_b.of : nullptr);
  });
}

int64_t library_conv_grad_scratch(const BoundCall& call) {
  return Backward(call).is_alone ? volume_conv_grad_scratch(call) : 0;
}

template <DType dtype>
const char* supports_library_conv_grad(const KernelQuery& query) {
  if (libraries().convolution_backward == nullptr) return "no convolution library is loaded";
  return refuses<dtype>(query);
}

// What the library takes beside ours, as counted (for oneDNN; other channels than whole vectors of 16 are padded into
// copies): for the gradient of x its result and two copies of w, and where the window goes by strides two images for
// each thread; for that of w its result and three more of its size, sums of threads among them. Products of 16 bits
// read x and dy in other orders. Channels of x and of w that are not all are copied first.
int64_t library_conv_grad_bytes(const BoundCall& call) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  if (x.numel() == 0 || w.numel() == 0 || dy.numel() == 0) return 0;
  const Backward backward(call);
  if (backward.is_alone) return 0;
  const int64_t of_dy = bytes_of(&dy), of_x = bytes_of(&x), of_w = bytes_of(&w);
  const bool is_padded = dy.sizes[1] % 16 != 0 || x.sizes[1] % 16 != 0;
  const bool is_first = dy.sizes[1] % 16 == 0 && x.sizes[1] <= 4;  // of an image, whose colours need no padding for dw
  const bool has_strides =
      std::any_of(backward.strides, backward.strides + backward.spatial, [](int64_t stride) { return stride != 1; });
  int64_t for_x = 0, for_w = 0;
  if (is_line(x)) {
    const bool is_half = x.dtype != DType::kF32;
    const int64_t more = std::max(of_x, of_dy), less = std::min(of_x, of_dy);
    if (output(call, 0) != nullptr) for_x = (3 * more + 2 * less) / x.sizes[0] * backward.images + 2 * of_w;
    if (output(call, 1) != nullptr || output(call, 2) != nullptr)
      for_w = ((is_half ? 4 : 2) * more + 2 * less + copies_for_dw(w) * of_w) * backward.dy_channels / w.sizes[0];
    return std::max(for_x, for_w);
  }
  if (output(call, 0) != nullptr) {
    const int64_t images = backward.images, all_x = of_x / x.sizes[0] * images, all_dy = of_dy / x.sizes[0] * images;
    const int64_t some = backward.x_channels, channels = x.sizes[1];
    const int64_t places = of_dy / x.sizes[0] / dy.sizes[1] * channels;  // an image of dy with the channels of x
    for_x = (all_x * (some < channels ? 2 : 1) + 2 * of_w) * some / channels +
            (has_strides ? 2 * parallel_threads() * places : 0) + (is_padded ? all_x + all_dy : 0);
  }
  if (output(call, 1) != nullptr || output(call, 2) != nullptr) {
    const int64_t some = backward.dy_channels, channels = w.sizes[0];
    for_w = (copies_for_dw(w) * of_w + (some < channels ? of_dy : 0)) * some / channels + bytes_of(output(call, 2)) +
            ((is_padded && !is_first) || x.dtype != DType::kF32 ? of_dy + of_x : 0);
  }
  return std::max(for_x, for_w) + written_out_bytes(x, w, dy);
}

}  // namespace

std::span<const Kernel> aten_kernels() {
  static constexpr Kernel kernels[] = {
#include "kernels/aten/list.inc"
  };
  return kernels;
}

}  // namespace lowtide::cpu
