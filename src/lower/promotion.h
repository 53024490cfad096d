// PyTorch's type promotion, for the ops whose operands are cast before they compute.
#pragma once

#include <optional>

#include "base/dtype.h"

namespace lowtide {

// The dtype that values of both hold: torch.promote_types.
DType promote(DType a, DType b);

// torch.result_type: tensors with dims decide; 0-d tensors and Python numbers only lift the category (bool < integer <
// float).
class Promotion {
 public:
  void add_tensor(DType dtype, bool has_dims) { lift(has_dims ? with_dims_ : without_dims_, dtype); }
  void add_number(DType dtype) { lift(number_, dtype); }
  DType result() const;

 private:
  static void lift(std::optional<DType>& slot, DType dtype) { slot = slot ? promote(*slot, dtype) : dtype; }
  std::optional<DType> with_dims_, without_dims_, number_;
};

}  // namespace lowtide
