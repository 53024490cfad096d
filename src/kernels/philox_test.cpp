#include "kernels/philox.h"

#include <gtest/gtest.h>

namespace lowtide {
namespace {

// The known-answer vectors of the Random123 distribution.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DropoutKeepsTheAskedShare) {
  for (double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    int64_t kept = 0;
    for (uint64_t i = 0; i < 100000; ++i) kept += dropout_keep(7, 3, i, dropout_threshold(p));
    EXPECT_NEAR(kept / 100000.0, 1 - p, 0.005) << p;
  }
}

}  // namespace
}  // namespace lowtide
