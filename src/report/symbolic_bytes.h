// Sizes as users of the tables read them: Python text, common symbols in front of a sum.
#pragma once

#include <string>

#include "symbolic/dim.h"

namespace lowtide {

// Bytes, numbers as floats: "640.0*input_ids_dim0*input_ids_dim1**2",
// "input_ids_dim0*(122880.0*input_ids_dim1 - 20480.0)", "4096.0". sympy and Python evaluate it, given Min and Max.
std::string symbolic_bytes(const Dim& bytes);

// A dim of a shape, numbers as integers: "input_ids_dim0*(input_ids_dim1 - 1)".
std::string symbolic_size(const Dim& size);

// "a x b x 4 x ": every dim is followed by " x ", the last one too.
std::string symbolic_shape(const Shape& shape);

// "134,217,728"
std::string with_commas(int64_t number);

}  // namespace lowtide
