// Programs that tests write as text.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/text.h"
#include "program/text.h"
#include "runtime/executor.h"

namespace lowtide {

// The lines between the first and the last of a program's text. Parsed, and what is parsed prints the same.
inline Program written(const std::string& lines) {
  const std::string text = "lowtide program 2 \"written\"\n" + lines;
  return parse_program(concat(text, "end ", checksum(text), "\n"));
}

// The text with the first `from`, which it has, in another form.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  LT_CHECK(at != std::string::npos, "the text has no ", from);
  return text.replace(at, from.size(), to);
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
