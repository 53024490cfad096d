#include "kernels/cpu/windows/adaptive.h"

#include "kernels/cpu/block_rows.h"
#include "kernels/cpu/float_runs.h"

namespace lowtide::cpu {
namespace {

// Sums over some rows of a plane, of as many of its columns as there is room for.
class ColumnSums {
 public:
  ColumnSums(const TensorRef& x, int64_t plane, int64_t width, Span rows)
      : x_(x), first_row_(plane + rows.begin * width), width_(width), rows_(rows.end - rows.begin) {}

  // The sum of these columns, which follow those asked for before, or overlap with them.
  float of(Span cols) {
    float total = 0;
    for (int64_t col = cols.begin; col < cols.end;) {
      if (col < begin_ || col >= end_) take(col);
      for (const int64_t end = std::min(cols.end, end_); col < end; ++col) total += sums_[col - begin_];
    }
    return total;
  }

 private:
  void take(int64_t col) {
    begin_ = col;
    end_ = std::min(width_, col + kRun);
    const int64_t n = end_ - begin_;
    std::fill_n(sums_, n, 0.0f);
    float buffer[kRun];
    for (int64_t row = 0; row < rows_; ++row) {
      const float* from = read(x_, first_row_ + row * width_ + begin_, 1, n, buffer);
      for (int64_t i = 0; i < n; ++i) sums_[i] += from[i];
    }
  }

  const TensorRef& x_;
  int64_t first_row_, width_, rows_, begin_ = 0, end_ = 0;
  float sums_[kRun];
};

// What the windows of `rows` bring to `n` columns from `first` on.
void add_shares(const TensorRef& dy, int64_t plane, const AdaptiveMeans& means, Span rows, int64_t first, int64_t n,
                float* sums) {
  const int64_t begin = means.readers(1, first).begin, end = means.readers(1, first + n - 1).end;
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const Span tall = means.window(0, i);
    for (int64_t at = begin; at < end; at += kRun) {
      float buffer[kRun];
      const int64_t count = std::min(kRun, end - at);
      const float* from = read(dy, plane + i * means.small[1] + at, 1, count, buffer);
      for (int64_t j = 0; j < count; ++j) {
        const float share = from[j] / means.area(tall, at + j);
        const Span wide = means.window(1, at + j);
        const int64_t past = std::min(wide.end, first + n);
        for (int64_t w = std::max(wide.begin, first); w < past; ++w) sums[w - first] += share;
      }
    }
  }
}

template <class T>
void means_of(const KernelCall& call, const AdaptiveMeans& means) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  ChannelBlocks(x).for_each([&](int64_t n, int64_t first, int64_t count) {
    for (int64_t i = 0; i < means.small[0]; ++i) {
      const Span rows = means.window(0, i);
      for (int64_t j = 0; j < means.small[1]; ++j) {
        const Span cols = means.window(1, j);
        float total[kChannels] = {};
        for (int64_t w = cols.begin; w < cols.end; ++w) {
          float sum[kChannels] = {};
          for (int64_t h = rows.begin; h < rows.end; ++h) {
            const T* from = at<const T>(x, n, first, h, w);
            for (int64_t c = 0; c < count; ++c) sum[c] += from[c];
          }
          for (int64_t c = 0; c < count; ++c) total[c] += sum[c];
        }
        const float area = means.area(rows, j);
        T* to = at<T>(y, n, first, i, j);
        for (int64_t c = 0; c < count; ++c) to[c] = total[c] / area;
      }
    }
  });
}

template <class T>
void means_grad_of(const KernelCall& call, const AdaptiveMeans& means) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  ChannelBlocks(dx).for_each([&](int64_t n, int64_t first, int64_t count) {
    for (int64_t h = 0; h < means.large[0]; ++h) {
      const Span rows = means.readers(0, h);
      for (int64_t w = 0; w < means.large[1]; ++w) {
        const Span cols = means.readers(1, w);
        float sum[kChannels] = {};
        for (int64_t i = rows.begin; i < rows.end; ++i) {
          const Span tall = means.window(0, i);
          for (int64_t j = cols.begin; j < cols.end; ++j) {
            const float area = means.area(tall, j);
            const T* from = at<const T>(dy, n, first, i, j);
            for (int64_t c = 0; c < count; ++c) sum[c] += from[c] / area;
          }
        }
        T* to = at<T>(dx, n, first, h, w);
        for (int64_t c = 0; c < count; ++c) to[c] = sum[c];
      }
    }
  });
}

}  // namespace

AdaptiveMeans::AdaptiveMeans(const TensorRef& large_image, const TensorRef& small_image) : planes(1) {
  const int spatial = large_image.rank - 2;
  for (int i = 0; i < spatial; ++i) planes *= large_image.sizes[i];
  for (int i = 0; i < 2; ++i) {
    large[i] = large_image.sizes[spatial + i];
    small[i] = small_image.sizes[spatial + i];
  }
}

float AdaptiveMeans::area(Span rows, int64_t col) const {
  const Span cols = window(1, col);
  return static_cast<float>((rows.end - rows.begin) * (cols.end - cols.begin));
}

const char* supports_adaptive_rows(const KernelQuery& query) {
  const DType dtype = query.inputs[0].dtype;
  if (dtype != DType::kF32 && !is_half(dtype)) return "neither f32, bf16 nor f16";
  return query.inputs[0].layout == Layout::kChannelsLast ? "channels side by side" : nullptr;
}

KernelStatus adaptive_average_pool_rows(const KernelCall& call, const AdaptiveMeans& means) {
  const TensorRef &x = call.inputs[0], &y = call.outputs[0];
  const int64_t numel = means.large[0] * means.large[1], made = means.small[0] * means.small[1];
  for_row_chunks(means.planes, std::max(numel, made), 1, [&](int64_t begin, int64_t count) {
    for (int64_t plane = begin; plane < begin + count; ++plane) {
      for (int64_t i = 0; i < means.small[0]; ++i) {
        const Span rows = means.window(0, i);
        ColumnSums sums(x, plane * numel, means.large[1], rows);
        for (int64_t first = 0; first < means.small[1]; first += kRun) {
          float found[kRun];
          const int64_t n = std::min(kRun, means.small[1] - first);
          for (int64_t j = 0; j < n; ++j) found[j] = sums.of(means.window(1, first + j)) / means.area(rows, first + j);
          write(y, plane * made + i * means.small[1] + first, 1, n, found);
        }
      }
    }
  });
  return nullptr;
}

KernelStatus adaptive_average_pool_grad_rows(const KernelCall& call, const AdaptiveMeansGrad& means) {
  const TensorRef &dy = call.inputs[0], &dx = call.outputs[0];
  const int64_t width = means.large[1], numel = means.large[0] * width, made = means.small[0] * means.small[1];
  for_row_chunks(means.planes, std::max(numel, made), 1, [&](int64_t begin, int64_t count) {
    for (int64_t plane = begin; plane < begin + count; ++plane) {
      for (int64_t first = 0; first < width; first += kRun) {
        const int64_t n = std::min(kRun, width - first);
        float sums[kRun];
        Span summed{-1, -1};  // neighbouring rows are often read by the same windows
        for (int64_t h = 0; h < means.large[0]; ++h) {
          const Span rows = means.readers(0, h);
          if (rows.begin != summed.begin || rows.end != summed.end) {
            std::fill_n(sums, n, 0.0f);
            if (made > 0) add_shares(dy, plane * made, means, rows, first, n, sums);
            summed = rows;
          }
          write(dx, plane * numel + h * width + first, 1, n, sums);
        }
      }
    }
  });
  return nullptr;
}

KernelStatus adaptive_average_pool(const KernelCall& call, const AdaptiveMeans& means) {
  with_type(call.inputs[0], [&]<class T>(T) { means_of<T>(call, means); });
  return nullptr;
}

KernelStatus adaptive_average_pool_grad(const KernelCall& call, const AdaptiveMeansGrad& means) {
  with_type(call.inputs[0], [&]<class T>(T) { means_grad_of<T>(call, means); });
  return nullptr;
}

}  // namespace lowtide::cpu
