#include "pack/csv.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "pack/generate.h"

namespace lowtide {
namespace {

TEST(PackingCsv, RoundTrips) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Problem problem = generate_random(40, seed);
    const CsvPlan plain = read_csv(write_csv(problem));
    EXPECT_EQ(plain.problem, problem);
    EXPECT_EQ(plain.offsets, std::nullopt);
    EXPECT_EQ(plain.ids[39], "39");

    std::vector<int64_t> offsets(40);
    std::vector<std::string> ids(40);
    for (int i = 0; i < 40; ++i) {
      offsets[i] = 64 * i;
      ids[i] = "%h." + std::to_string(i);
    }
    const std::string text = write_csv(problem, offsets, ids);
    const CsvPlan full = read_csv(text);
    EXPECT_EQ(full.problem, problem);
    EXPECT_EQ(full.offsets, offsets);
    EXPECT_EQ(full.ids, ids);
    EXPECT_EQ(write_csv(full.problem, *full.offsets, full.ids), text);
  }
}

TEST(PackingCsv, ReadsEmptyProblemsAndForeignLineEnds) {
  EXPECT_TRUE(read_csv("id,first,last,size,alignment").problem.buffers.empty());
  const CsvPlan plan = read_csv("id,first,last,size,alignment\r\na,-1,2,7,1\r\n\r\n");
  ASSERT_EQ(plan.problem.buffers.size(), 1u);
  EXPECT_EQ(plan.problem.buffers[0], (Buffer{.size_bytes = 7, .first = -1, .last = 2, .alignment = 1}));
}

struct Malformed {
  const char* text;
  const char* message;
};

class MalformedCsv : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedCsv, NamesLineAndColumn) {
  try {
    read_csv(GetParam().text);
    FAIL() << "accepted: " << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find(GetParam().message), 0u) << error.what();
  }
}

#define H "id,first,last,size,alignment\n"
INSTANTIATE_TEST_SUITE_P(
    PackingCsv, MalformedCsv,
    testing::Values(
        Malformed{"", "packing CSV, line 1: expected the header"},
        Malformed{"id,first,last,bytes,alignment\n", "packing CSV, line 1: expected the header"},
        Malformed{H "a,0,1,64\n", "packing CSV, line 2: expected 5 columns, found 4"},
        Malformed{H "a,0,1,64,64,0\n", "packing CSV, line 2: expected 5 columns, found 6"},
        Malformed{H "a,0,1,64,64\nb,0,x,64,64\n", "packing CSV, line 3, column 'last': expected an integer"},
        Malformed{H "a,0,1,64,64\nb,0,,64,64\n", "packing CSV, line 3, column 'last': expected an integer"},
        Malformed{H "a,0.5,1,64,64\n", "packing CSV, line 2, column 'first': expected an integer"},
        Malformed{H "a,5,4,64,64\n", "packing CSV, line 2, column 'last': expected a step no earlier than first = 5"},
        Malformed{H "a,0,3000000000,64,64\n", "packing CSV, line 2, column 'last': expected an integer"},
        Malformed{H "a,0,1,-64,64\n", "packing CSV, line 2, column 'size': expected an integer"},
        Malformed{H "a,0,1,99999999999999999999,64\n", "packing CSV, line 2, column 'size': expected an integer"},
        Malformed{H "a,0,1,64,0\n", "packing CSV, line 2, column 'alignment': expected an integer"},
        Malformed{H ",0,1,64,64\n", "packing CSV, line 2, column 'id': expected a name"},
        Malformed{H "a,0,1,64,64\na,0,1,64,64\n", "packing CSV, line 3, column 'id': 'a' was used before"},
        Malformed{H "a,0,1,1152921504606846976,1\n", "packing CSV, line 2, column 'size': expected at most 2^60"},
        Malformed{"id,first,last,size,alignment,offset\na,0,1,64,64,-1\n", "packing CSV, line 2, column 'offset'"}));
#undef H

}  // namespace
}  // namespace lowtide
