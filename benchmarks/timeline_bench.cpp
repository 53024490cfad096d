// Changes of a Timeline a second: ./dev bench timeline. A budget's search makes thousands of them for one plan.
#include <benchmark/benchmark.h>

#include <random>

#include "schedule/timeline.h"

namespace lowtide {
namespace {

// A life moves, and the peak is asked for.
void change_lives(benchmark::State& state) {
  const int32_t positions = static_cast<int32_t>(state.range(0));
  std::mt19937 random(1);
  const auto stretch = [&] {
    const auto first = static_cast<int32_t>(random() % static_cast<uint32_t>(positions));
    return Stretch{first, first + static_cast<int32_t>(random() % 200)};
  };
  Timeline timeline(positions);
  std::vector<Stretch> lives;
  for (int32_t i = 0; i < positions; ++i) {
    lives.push_back(stretch());
    timeline.add(lives.back(), 4096);
  }
  size_t at = 0;
  int64_t sum = 0;
  for (auto _ : state) {
    const Stretch now = stretch();
    timeline.change(lives[at], now, 4096);
    lives[at] = now;
    at = (at + 1) % lives.size();
    sum += timeline.peak();
  }
  benchmark::DoNotOptimize(sum);
  state.counters["changes/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(change_lives)->Arg(1000)->Arg(10000)->Arg(100000);

}  // namespace
}  // namespace lowtide
