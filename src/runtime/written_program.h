// Programs that tests write as text.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "base/text.h"
#include "program/text.h"
#include "runtime/executor.h"

namespace lowtide {

// The lines between the first and the last of a program's text. Parsed, and what is parsed prints the same.
inline Program written(const std::string& lines) {
  const std::string text = "lowtide program 2 \"written\"\n" + lines;
  return parse_program(concat(text, "end ", checksum(text), "\n"));
}

template <class T>
TensorRef row_major(std::vector<T>& values, DType dtype, std::initializer_list<int64_t> sizes) {
  TensorRef ref;
  ref.data = values.data();
  ref.dtype = dtype;
  ref.present = true;
  ref.rank = static_cast<int32_t>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), ref.sizes);
  int64_t stride = 1;
  for (int i = ref.rank - 1; i >= 0; --i) {
    ref.strides[i] = stride;
    stride *= ref.sizes[i];
  }
  return ref;
}

inline std::vector<float> floats(const OwnedTensor& tensor) {
  return {tensor.ref.as<float>(), tensor.ref.as<float>() + tensor.ref.numel()};
}

}  // namespace lowtide
