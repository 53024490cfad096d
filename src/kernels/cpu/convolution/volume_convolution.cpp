#include "kernels/cpu/convolution/volume_convolution.h"

#include <algorithm>

#include "kernels/cpu/convolution/convolution_call.h"
#include "kernels/cpu/convolution/window_runs.h"
#include "kernels/cpu/copy/copy_table.h"
#include "kernels/cpu/gemm/blocks.h"
#include "kernels/task_slots.h"

namespace lowtide::cpu {

namespace {

using Volume = VolumeConvolution::Volume;

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kFewestChannels = 16;
// The library multiplies faster. It copies windows several times, here in parts that keep its bytes few, and that is
// what takes time from so many numbers on.
constexpr int64_t kFewestNumbers = int64_t{1} << 19;
// And a single volume of fewer lines, counted by channel, PyTorch does not hand to it.
constexpr int64_t kFewestLines = 20480;
// Numbers of the slices that are turned at a time, about; no fewer slices, for those at the ends are turned twice.
constexpr int64_t kAtOnce = int64_t{1} << 20, kFewestSlices = 4;

// Why windows of these sizes are none for these products, or nullptr.
const char* refuses(const BoundAttrs& attrs, const int64_t* w) {
  if (isa() == Isa::kBaseline) return "PyTorch's library has wider vectors";
  if (attrs.i("group") != 1) return "groups";
  if (w[2] * w[3] * w[4] > kMostTaps) return "windows of many places";
  for (const int64_t stride : attrs.ints("strides"))
    if (stride != 1) return "strides";
  return std::min(w[0], w[1]) >= kFewestChannels ? nullptr : "few channels";
}

const char* supports(const KernelQuery& query, const OperandInfo& w) {
  for (const OperandInfo& operand : query.inputs)
    if (operand.present && operand.dtype != DType::kF32) return "not f32";
  if (query.inputs[0].rank != 5) return "not three spatial dims";
  if (!query.attrs->has("pads")) return "symbolic pads";
  int64_t numbers = 1;
  for (int dim = 0; dim < 5; ++dim) {
    if (w.sizes[dim] == kUnknownSize) return "windows of unknown size";
    numbers *= w.sizes[dim];
  }
  if (numbers < kFewestNumbers) return "PyTorch's library is faster, unless windows fill megabytes";
  return refuses(*query.attrs, w.sizes.data());
}

// to[place] = sum over taps of from[place + tap] times the windows. Slices of `from` are read with zeros around them:
// taps are counted from the first place that one of them meets.
struct Direction {
  Volume from, to;
  WindowProduct product{};
  int64_t first[3] = {}, last[3] = {};  // the taps' least and largest offsets

  int64_t padded(int64_t size, int d) const { return size + last[d] - first[d]; }
  int64_t height() const { return padded(to.height, 1); }
  int64_t width() const { return padded(to.width, 2); }
  int64_t slice() const { return height() * width() * from.channels; }

  // Slices of `to` at a time.
  int64_t slices() const {
    const int64_t each = std::max<int64_t>(1, slice() + to.slice() * to.channels);
    return std::clamp<int64_t>(kAtOnce / each, std::min(kFewestSlices, to.depth), std::max<int64_t>(1, to.depth));
  }
  int64_t from_floats() const { return padded(slices(), 0) * slice(); }
  int64_t to_floats() const { return slices() * to.slice() * to.channels; }
};

void set_taps(Direction& direction, const VolumeConvolution& at, bool is_back) {
  const int64_t height = at.window[1], width = at.window[2];
  WindowProduct& product = direction.product;
  product.tap_count = product.window = at.window[0] * height * width;
  for (int64_t i = 0; i < product.window; ++i) {
    const int64_t places[] = {i / (height * width), i / width % height, i % width};
    int64_t offsets[3];
    for (int d = 0; d < 3; ++d) {
      const int64_t offset = places[d] * at.dilations[d] - at.pads[d];
      offsets[d] = is_back ? -offset : offset;
    }
    product.taps[i] = {offsets[1], offsets[2], i, offsets[0]};
    for (int d = 0; d < 3; ++d) {
      direction.first[d] = i == 0 ? offsets[d] : std::min(direction.first[d], offsets[d]);
      direction.last[d] = i == 0 ? offsets[d] : std::max(direction.last[d], offsets[d]);
    }
  }
  for (int64_t i = 0; i < product.window; ++i) {
    product.taps[i].deep -= direction.first[0];
    product.taps[i].down -= direction.first[1];
    product.taps[i].right -= direction.first[2];
  }
}

Direction forward_of(const VolumeConvolution& at) {
  Direction direction{at.x, at.y};
  set_taps(direction, at, false);
  WindowProduct& product = direction.product;
  product.depth = product.from_stride = at.x.channels;
  product.cols = product.to_stride = at.y.channels;
  product.w_depth = product.window;
  product.w_col = product.depth * product.window;
  return direction;
}

Direction backward_of(const VolumeConvolution& at) {
  Direction direction{at.y, at.x};
  set_taps(direction, at, true);
  WindowProduct& product = direction.product;
  product.depth = product.from_stride = at.y.channels;
  product.cols = product.to_stride = at.x.channels;
  product.w_depth = product.cols * product.window;
  product.w_col = product.window;
  return direction;
}

// Slices [first, first + count) of what a direction reads, channels last: zeros where the volume has none.
void turn_slices(const Direction& direction, const float* from, int64_t first, int64_t count, float* to) {
  const Volume& volume = direction.from;
  const int64_t slice = volume.slice(), channels = volume.channels, width = direction.width();
  // Of a slice, the part of the volume that is there.
  const int64_t top = std::max<int64_t>(0, direction.first[1]), left = std::max<int64_t>(0, direction.first[2]);
  const int64_t bottom = std::min(volume.height, direction.height() + direction.first[1]),
                right = std::min(volume.width, width + direction.first[2]);
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* padded = to + i * direction.slice();
      std::fill_n(padded, direction.slice(), 0.0f);
      const int64_t at = first + i;
      if (at < 0 || at >= volume.depth) continue;
      for (int64_t line = top; line < bottom && left < right; ++line)
        copy_table().transpose(from + at * slice + line * volume.width + left, volume.depth * slice,
                               padded + ((line - direction.first[1]) * width + left - direction.first[2]) * channels,
                               channels, channels, right - left);
    }
  });
}
// Slices of a volume without zeros around them, channels last.
void turn_slices(const Volume& volume, const float* from, int64_t first, int64_t count, float* to) {
  const int64_t slice = volume.slice(), channels = volume.channels;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_table().transpose(from + (first + i) * slice, volume.depth * slice, to + i * slice * channels, channels,
                             channels, slice);
  });
}
// And back.
void turn_slices_back(const Volume& volume, const float* from, int64_t first, int64_t count, float* to) {
  const int64_t slice = volume.slice(), channels = volume.channels;
  parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      copy_table().transpose(from + i * slice * channels, channels, to + (first + i) * slice, volume.depth * slice,
                             slice, channels);
  });
}

// Slices of `to`, and of `from` [begin, begin + read), with the grid of their places.
struct Slab {
  Slab(const Direction& direction, int64_t first_slice)
      : first(first_slice),
        count(std::min(direction.slices(), direction.to.depth - first_slice)),
        begin(first + direction.first[0]),
        read(direction.padded(count, 0)) {
    const Volume& to = direction.to;
    grid = {count, to.height,          to.width,          to.height, to.width, 0, 0, 1,
            1,     direction.height(), direction.width(), 0,         0,        1, 1};
    grid.is_padded = true;
  }
  int64_t first, count, begin, read;
  WindowGrid grid;
};

template <class Body>
void for_slabs(const Direction& direction, Body body) {
  for (int64_t first = 0; first < direction.to.depth; first += direction.slices()) body(Slab(direction, first));
}

int64_t volume_floats(const Volume& volume) { return volume.channels * volume.depth * volume.slice(); }

int64_t product_floats(const Direction& direction) {
  return direction.from_floats() + direction.to_floats() +
         parallel_threads() * window_table().product_floats(direction.product);
}

void run(const Direction& direction, int64_t volumes, const float* from, const float* w, const float* bias, float* to,
         float* scratch, int64_t bytes) {
  float *read = scratch, *written = read + direction.from_floats(), *own = written + direction.to_floats();
  const int64_t own_bytes = bytes - (own - scratch) * kFloat;
  for (int64_t n = 0; n < volumes; ++n) {
    const float* source = from + n * volume_floats(direction.from);
    float* target = to + n * volume_floats(direction.to);
    for_slabs(direction, [&](const Slab& slab) {
      turn_slices(direction, source, slab.begin, slab.read, read);
      WindowProduct product = direction.product;
      product.grid = slab.grid;
      product.from = read;
      product.to = written;
      product.w = w;
      product.bias = bias;
      run_windows(product, 1, own, own_bytes);
      turn_slices_back(direction.to, written, slab.first, slab.count, target);
    });
  }
}

// ---- dw

struct SumsBlocks {
  explicit SumsBlocks(const VolumeConvolution& at) {
    const WindowTable& table = window_table();
    rows = std::min(at.y.channels, table.most_rows);
    depth = std::min(at.x.channels, table.tile_cols);
    // Two blocks or more, if there are so many rows: whatever the threads are, the sums are the same.
    if ((at.y.channels + rows - 1) / rows * ((at.x.channels + depth - 1) / depth) < 4)
      rows = rounded_up((rows + 1) / 2, table.tile_rows);
  }
  int64_t rows, depth;
};

WindowSums sums_of(const VolumeConvolution& at, const Direction& forward) {
  WindowSums sums{};
  std::copy_n(forward.product.taps, forward.product.tap_count, sums.taps);
  sums.tap_count = forward.product.tap_count;
  sums.depth = sums.x_stride = at.x.channels;
  sums.dy_stride = at.y.channels;
  return sums;
}

int64_t sums_floats(const VolumeConvolution& at, const Direction& forward) {
  WindowSums sums = sums_of(at, forward);
  sums.grid = Slab(forward, 0).grid;
  const SumsBlocks blocks(at);
  return window_table().sums_floats(sums, blocks.rows, blocks.depth);
}
int64_t dw_floats(const VolumeConvolution& at, const Direction& forward) {
  return forward.from_floats() + forward.to_floats() + parallel_threads() * sums_floats(at, forward);
}

void run_sums(const VolumeConvolution& at, const float* dy, const float* x, float* dw, float* scratch, int64_t bytes) {
  const Direction forward = forward_of(at);
  float *places = scratch, *slopes = places + forward.from_floats(), *own = slopes + forward.to_floats();
  const int64_t own_bytes = bytes - (own - scratch) * kFloat, floats = sums_floats(at, forward);
  const SumsBlocks blocks(at);
  const int64_t down = (at.y.channels + blocks.rows - 1) / blocks.rows,
                right = (at.x.channels + blocks.depth - 1) / blocks.depth;
  for (int64_t n = 0; n < at.volumes; ++n) {
    for_slabs(forward, [&](const Slab& slab) {
      turn_slices(forward, x + n * volume_floats(at.x), slab.begin, slab.read, places);
      turn_slices(at.y, dy + n * volume_floats(at.y), slab.first, slab.count, slopes);
      WindowSums sums = sums_of(at, forward);
      sums.grid = slab.grid;
      sums.dy = slopes;
      sums.x = places;
      sums.dw = dw;
      sums.adds = n > 0 || slab.first > 0;
      run_tasks(down * right, floats, own, own_bytes, false, [&](int64_t task, float* slot) {
        const int64_t row = task % down * blocks.rows, first = task / down * blocks.depth;
        window_table().sums(sums, row, std::min(blocks.rows, at.y.channels - row), first,
                            std::min(blocks.depth, at.x.channels - first), slot);
      });
    });
  }
}

void sum_channels(const VolumeConvolution& at, const float* dy, float* db) {
  constexpr int64_t kSums = 8;
  const int64_t numbers = at.y.depth * at.y.slice();
  parallel_for(at.y.channels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sums[kSums] = {};
      for (int64_t n = 0; n < at.volumes; ++n) {
        const float* from = dy + (n * at.y.channels + c) * numbers;
        for (int64_t i = 0; i < numbers; i += kSums)
          for (int64_t s = 0; s < std::min(kSums, numbers - i); ++s) sums[s] += from[i + s];
      }
      double sum = 0;
      for (const double each : sums) sum += each;
      db[c] = static_cast<float>(sum);
    }
  });
}

}  // namespace

VolumeConvolution::VolumeConvolution(const BoundCall& call, const TensorRef& of_x, const TensorRef& of_w,
                                     const TensorRef& of_y)
    : volumes(of_x.sizes[0]),
      x{of_x.sizes[1], of_x.sizes[2], of_x.sizes[3], of_x.sizes[4]},
      y{of_y.sizes[1], of_y.sizes[2], of_y.sizes[3], of_y.sizes[4]} {
  std::copy_n(of_w.sizes + 2, 3, window);
  std::copy_n(call.attrs->ints("pads").begin(), 3, pads);
  std::copy_n(call.attrs->ints("dilations").begin(), 3, dilations);
}

bool is_volume_alone(const BoundAttrs& attrs, const TensorRef& x, const TensorRef& w) {
  return x.rank == 5 && x.dtype == DType::kF32 && x.sizes[0] == 1 &&
         x.sizes[1] * x.sizes[2] * x.sizes[3] <= kFewestLines && w.is_row_major() && refuses(attrs, w.sizes) == nullptr;
}

const char* supports_volume_windows(const KernelQuery& query) { return supports(query, query.inputs[1]); }
const char* supports_volume_windows_grad(const KernelQuery& query) { return supports(query, query.inputs[2]); }

int64_t volume_conv_scratch(const BoundCall& call) {
  if (call.outputs[0].numel() == 0) return 0;
  return kFloat * product_floats(forward_of(VolumeForward(call)));
}

KernelStatus volume_conv(const KernelCall& call, const VolumeForward& forward) {
  if (call.outputs[0].numel() == 0) return nullptr;
  const TensorRef* bias = input(call, 2);
  run(forward_of(forward), forward.volumes, call.inputs[0].as<float>(), call.inputs[1].as<float>(),
      bias == nullptr ? nullptr : bias->as<float>(), call.outputs[0].as<float>(), static_cast<float*>(call.scratch),
      call.scratch_bytes);
  return nullptr;
}

int64_t volume_conv_grad_scratch(const BoundCall& call) {
  if (call.inputs[0].numel() == 0 || call.inputs[2].numel() == 0) return 0;
  const VolumeBackward backward(call);
  int64_t floats = 0;
  if (output(call, 0) != nullptr) floats = product_floats(backward_of(backward));
  if (output(call, 1) != nullptr) floats = std::max(floats, dw_floats(backward, forward_of(backward)));
  return kFloat * floats;
}

KernelStatus volume_conv_grad(const KernelCall& call, const VolumeBackward& backward) {
  const TensorRef &dy = call.inputs[0], &x = call.inputs[1], &w = call.inputs[2];
  const TensorRef *dx = output(call, 0), *dw = output(call, 1), *db = output(call, 2);
  if (are_zeros(call, dy, w)) return nullptr;
  float* scratch = static_cast<float*>(call.scratch);
  if (dw != nullptr) run_sums(backward, dy.as<float>(), x.as<float>(), dw->as<float>(), scratch, call.scratch_bytes);
  if (db != nullptr) sum_channels(backward, dy.as<float>(), db->as<float>());
  if (dx != nullptr)
    run(backward_of(backward), backward.volumes, dy.as<float>(), w.as<float>(), nullptr, dx->as<float>(), scratch,
        call.scratch_bytes);
  return nullptr;
}

}  // namespace lowtide::cpu
