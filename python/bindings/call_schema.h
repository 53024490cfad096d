#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <set>
#include <vector>

#include "call_tensors.h"

namespace lowtide::bindings {

// What two calls must share for one captured graph, besides sizes: the tree of arguments, the dtype and rank of each
// tensor, which of them are one object, plain values. Made from one call, then matched against others.
class CallSchema {
 public:
  // `named`: keyword arguments that `forward` names, whose order means nothing. `snapshot`: a Python function from any
  // object but a tensor, exact tuple, list or dict to
  //   ("node", children, context), ("plain", value) compared by type and ==, or ("key", key) compared by ==.
  // `numbers`: leaves of the tree, by their place among all, that are an int or a float of any value, 0-d tensors then,
  // or any string.
  CallSchema(nanobind::tuple args, nanobind::dict kwargs, nanobind::object named, nanobind::object snapshot,
             nanobind::object tensor_type, std::set<int64_t> numbers);
  // Whether the call fits: one tensor in two places, where the first call had one, since forward may ask `x is y`, and
  // else different ones. Then its tensors and the strings of any value are in `found`, which was empty.
  bool match(nanobind::handle args, nanobind::handle kwargs, ArgumentTensors& found) const;

 private:
  enum class Kind { kTensor, kTuple, kList, kDict, kNode, kPlain, kKey, kInt, kFloat, kString };
  struct Part {
    Kind kind = Kind::kPlain;
    nanobind::object type;
    nanobind::object value;  // plain value, key or context
    std::vector<nanobind::object> keys;
    std::vector<Part> children;
    DType dtype = DType::kF32;
    int rank = 0;
  };
  Part snapshot_of(nanobind::handle object, const std::set<int64_t>& numbers, int64_t& leaf) const;
  bool match_all(nanobind::handle args, nanobind::handle kwargs, ArgumentTensors& found) const;
  bool match_part(const Part& part, nanobind::handle object, ArgumentTensors& found) const;
  bool match_keywords(nanobind::handle kwargs, ArgumentTensors& found) const;

  nanobind::object snapshot_, tensor_type_;
  Part args_, kwargs_;
  std::vector<size_t> firsts_;             // of each tensor the place of the first that is the same object
  std::vector<nanobind::object> unnamed_;  // keyword arguments in the order of the first call
};

}  // namespace lowtide::bindings
