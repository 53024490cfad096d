#include <cmath>

#include "kernels/cpu/test_calls.h"
#include "kernels/cpu/test_runs.h"
#include "opset/recurrent_cells.h"

namespace lowtide::cpu {
namespace {

struct Sizes {
  int64_t steps, rows, units;
};
// A row, rows of several tasks, tiles of every height; sums of more than one block.
constexpr Sizes kSizes[] = {{5, 1, 3}, {3, 2, 130}, {3, 5, 33}, {4, 17, 20}, {2, 40, 70}, {2, 150, 16}, {2, 19, 270}};

template <class Number>
std::vector<Number> numbers(int64_t count, uint64_t seed, float width = 1) {
  const std::vector<float> drawn = random_floats(count, seed, width);
  return {drawn.begin(), drawn.end()};
}

// A layer, forward and back, with all results one behind the other.
template <class Number>
struct Problem {
  Problem(const RecurrentCell& of_cell, const Sizes& sizes, bool of_reverse, bool has_lengths)
      : cell(of_cell),
        reverse(of_reverse),
        t(sizes.steps),
        b(sizes.rows),
        h(sizes.units),
        gates(numbers<Number>(t * b * cell.gates * h, 1)),
        weight(numbers<Number>(cell.gates * h * h, 2, 1 / std::sqrt(static_cast<float>(h)))),
        state(numbers<Number>(b * h, 3)),
        memory(numbers<Number>(b * h, 4)),
        bias(numbers<Number>(cell.gates * h, 5)),
        dy(numbers<Number>(t * b * h, 6)),
        dstate(numbers<Number>(b * h, 7)),
        dmemory(numbers<Number>(b * h, 8)),
        lengths(has_lengths ? static_cast<size_t>(b) : 0) {
    for (size_t row = 0; row < lengths.size(); ++row) lengths[row] = static_cast<int64_t>(row) * 7 % (t + 1);
  }

  std::vector<Number> run(const std::string& provider) const {
    const DType dtype = sizeof(Number) == 4 ? DType::kF32 : DType::kF64;
    const std::vector<int64_t> of_rows = {b, h};
    const auto steps = [&](int64_t count) { return std::vector<int64_t>{t, b, count * h}; };
    std::vector<Number> all(static_cast<size_t>(t * b * h * (3 + 2 * cell.gates + cell.kept) + 4 * b * h), Number(7));
    size_t used = 0;
    const auto made = [&](bool is_there, const std::vector<int64_t>& shape) {
      if (!is_there) return TensorRef{};
      const TensorRef ref = tensor(&all[used], dtype, shape);
      used += static_cast<size_t>(ref.numel());
      return ref;
    };
    const auto given = [&](bool is_there, const std::vector<Number>& data, const std::vector<int64_t>& shape) {
      return is_there ? tensor(data.data(), dtype, shape) : TensorRef{};
    };
    const TensorRef ends = lengths.empty() ? TensorRef{} : integers(lengths);
    const TensorRef w = given(true, weight, {cell.gates * h, h}), first = given(true, state, of_rows),
                    remembered = given(cell.has_memory, memory, of_rows);
    const BoundAttrs attrs{{"cell", std::string(cell.name)}, {"reverse", reverse}};
    const TensorRef y = made(true, steps(1)), last = made(true, of_rows), kept = made(cell.kept > 0, steps(cell.kept)),
                    memories = made(cell.has_memory, steps(1)), last_memory = made(cell.has_memory, of_rows);
    EXPECT_EQ(run_kernel(provider + ".Recurrence",
                         {given(true, gates, steps(cell.gates)), w, first, remembered,
                          given(cell.splits_state, bias, {cell.gates * h}), ends},
                         {y, last, kept, memories, last_memory}, attrs),
              nullptr);
    const TensorRef dgates = made(true, steps(cell.gates)), dfirst = made(true, of_rows),
                    dremembered = made(cell.has_memory, of_rows), before = made(true, steps(1)),
                    dof_state = made(cell.splits_state, steps(cell.gates));
    EXPECT_EQ(run_kernel(provider + ".RecurrenceGrad",
                         {y, w, first, remembered, memories, kept, given(true, dy, steps(1)),
                          given(true, dstate, of_rows), given(cell.has_memory, dmemory, of_rows), ends},
                         {dgates, dfirst, dremembered, before, dof_state}, attrs),
              nullptr);
    all.resize(used);
    return all;
  }

  const RecurrentCell& cell;
  bool reverse;
  int64_t t, b, h;
  std::vector<Number> gates, weight, state, memory, bias, dy, dstate, dmemory;
  std::vector<int64_t> lengths;
};

template <class Number>
void expect_reference(double tolerance) {
  for (const RecurrentCell& cell : kRecurrentCells)
    for (const Sizes& sizes : kSizes)
      for (const bool reverse : {false, true})
        for (const bool has_lengths : {false, true}) {
          SCOPED_TRACE(testing::Message()
                       << cell.name << " " << sizes.steps << " x " << sizes.rows << " x " << sizes.units
                       << (reverse ? " reverse" : "") << (has_lengths ? " lengths" : ""));
          const Problem<Number> problem(cell, sizes, reverse, has_lengths);
          const std::vector<Number> wanted = problem.run("reference");
          for_every_run([&] { return problem.run("cpu"); },
                        [&](const std::vector<Number>& found) {
                          ASSERT_EQ(found.size(), wanted.size());
                          for (size_t i = 0; i < found.size(); ++i)
                            ASSERT_NEAR(found[i], wanted[i], tolerance * (1 + std::abs(wanted[i]))) << "at " << i;
                        });
        }
}

TEST(Recurrence, FloatsAreTheReferences) { expect_reference<float>(2e-5); }
TEST(Recurrence, DoublesAreTheReferences) { expect_reference<double>(1e-13); }

TEST(Recurrence, ActivatesAnLstmsGatesWhereTheyLie) {
  const int64_t t = 3, b = 20, h = 17;
  const std::vector<float> drawn = random_floats(t * b * 4 * h, 1), weight = random_floats(4 * h * h, 2),
                           state = random_floats(b * h, 3);
  const BoundAttrs attrs{{"cell", std::string("lstm")}, {"reverse", false}};
  const auto run = [&](const float* gates, float* kept, float* y) {
    const TensorRef first = floats(state.data(), {b, h});
    EXPECT_EQ(
        run_kernel("cpu.Recurrence", {floats(gates, {t, b, 4 * h}), floats(weight.data(), {4 * h, h}), first, first},
                   {floats(y, {t, b, h}), {}, floats(kept, {t, b, 4 * h})}, attrs),
        nullptr);
  };
  std::vector<float> in_place = drawn, apart(drawn.size()), y(static_cast<size_t>(t * b * h)), same(y.size());
  run(drawn.data(), apart.data(), y.data());
  run(in_place.data(), in_place.data(), same.data());
  EXPECT_EQ(in_place, apart);
  EXPECT_EQ(same, y);
}

TEST(Recurrence, RefusesLengthsThatAreNone) {
  const std::vector<float> x(6), weight(1), state(2);
  for (const int64_t bad : {int64_t{-1}, int64_t{4}}) {
    const std::vector<int64_t> lengths{3, bad};
    std::vector<float> y(6);
    EXPECT_STREQ(run_kernel("cpu.Recurrence",
                            {floats(x.data(), {3, 2, 1}),
                             floats(weight.data(), {1, 1}),
                             floats(state.data(), {2, 1}),
                             {},
                             {},
                             integers(lengths)},
                            {floats(y.data(), {3, 2, 1})}, {{"cell", std::string("tanh")}, {"reverse", false}}),
                 "a length of a recurrent layer's rows is negative or above the number of steps");
  }
}

}  // namespace
}  // namespace lowtide::cpu
