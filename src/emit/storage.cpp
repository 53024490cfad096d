#include "emit/storage.h"

#include <algorithm>

#include "base/check.h"

namespace lowtide {

Shape channels_last_strides(const Shape& shape) {
  LT_CHECK(has_channels(shape), "channels-last needs rank 3 or 4, not ", shape.size());
  const Dim &channels = shape[1], &width = shape.back();
  if (shape.size() == 3) return {width * channels, 1, channels};
  return {shape[2] * width * channels, 1, width * channels, channels};
}

Shape heads_last_strides(const Shape& shape) {
  LT_CHECK(shape.size() == 4, "heads-last needs rank 4, not ", shape.size());
  const Dim &heads = shape[1], &length = shape[2], &width = shape[3];
  return {length * heads * width, width, heads * width, 1};
}

Layout layout_of(const Shape& shape, const Shape& strides) {
  if (same_strides(shape, strides, row_major_strides(shape))) return Layout::kRowMajor;
  if (has_channels(shape) && same_strides(shape, strides, channels_last_strides(shape))) return Layout::kChannelsLast;
  if (!shape.empty() && (strides.back().is(1) || shape.back().is(1))) return Layout::kInnerDense;
  return Layout::kStrided;
}

bool is_dense(const Shape& shape, const Shape& strides) {
  // Peel off the dim whose stride is the product of the sizes peeled so far.
  std::vector<bool> done(shape.size());
  Dim expected = 1;
  for (size_t round = 0; round < shape.size(); ++round) {
    bool found = false;
    for (size_t i = 0; i < shape.size() && !found; ++i)
      if (!done[i] && (shape[i].is(1) || strides[i] == expected)) {
        done[i] = found = true;
        expected = expected * shape[i];
      }
    if (!found) return false;
  }
  return true;
}

std::optional<Storage> view_storage(const Graph& graph, const Node& view, const Storage& input) {
  std::optional<Strided> shown = view_of(graph, view, {input.offset, input.strides});
  if (!shown) return std::nullopt;
  return Storage{input.buffer, std::move(shown->offset), std::move(shown->strides)};
}

}  // namespace lowtide
