#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "call_tensors.h"

namespace lowtide::bindings {

// What two calls must share for one captured graph, besides sizes: the tree of arguments, the dtype and rank of each
// tensor, plain values. Made from one call, then matched against others.
class CallSchema {
 public:
  // `named`: keyword arguments that `forward` names, whose order means nothing. `look`: a Python function from any
  // object but a tensor, exact tuple, list or dict to
  //   ("node", children, context), ("plain", value) compared by type and ==, or ("key", key) compared by ==.
  CallSchema(nanobind::tuple args, nanobind::dict kwargs, nanobind::object named, nanobind::object look,
             nanobind::object tensor_type);
  // Whether the call fits; then its tensors are appended.
  bool match(nanobind::handle args, nanobind::handle kwargs, CallTensors& found) const;

 private:
  enum class Kind { kTensor, kTuple, kList, kDict, kNode, kPlain, kKey };
  struct Part {
    Kind kind = Kind::kPlain;
    nanobind::object type;
    nanobind::object value;  // plain value, key or context
    std::vector<nanobind::object> keys;
    std::vector<Part> children;
    DType dtype = DType::kF32;
    int rank = 0;
  };
  Part look_at(nanobind::handle object) const;
  bool match_part(const Part& part, nanobind::handle object, CallTensors& found) const;
  bool match_keywords(nanobind::handle kwargs, CallTensors& found) const;

  nanobind::object look_, tensor_type_;
  Part args_, kwargs_;
  std::vector<nanobind::object> unnamed_;  // keyword arguments in the order of the first call
};

}  // namespace lowtide::bindings
