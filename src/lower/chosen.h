// What a mask chooses: as many places as are counted while the step runs.
#pragma once

#include "lower/call.h"

namespace lowtide {

// The mask as bools, of which `size` are true.
ValueId count_chosen(Call& c, ValueId mask, const Dim& size);
// The leading dims of x that a mask stands for become one.
Shape with_mask_dims_as_one(Call& c, ValueId x, ValueId mask);
// x[mask], of `size` rows.
ValueId chosen_rows(Call& c, ValueId x, ValueId mask, const Dim& size);

}  // namespace lowtide
