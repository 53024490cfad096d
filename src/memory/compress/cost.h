// What packing a value in forward and unpacking it in backward costs.
#pragma once

#include "memory/compress/width.h"
#include "memory/prices.h"

namespace lowtide {

Cost packing_cost(const TensorType& type, const Width& width);
double packing_milliseconds(const TensorType& type, const Width& width, const DimValues& dims, const Prices& prices);

}  // namespace lowtide
