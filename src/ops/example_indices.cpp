#include "ops/example_inputs.h"

namespace lowtide::examples {

static void add_rearranging(List& list) {
  list.add(Op::kConcat, "", {real({2, 3}), real({2, 1}), real({2, 2})}, {{"axis", 1}});
  list.add(Op::kConcat, "one", {real({2, 3})}, {{"axis", 0}});
  list.add(Op::kConcat, "partly fixed", {real({1, 3}), fixed({2, 3}), real({1, 3})}, {{"axis", 0}});
  const auto pad = [](const Sizes& pads, const char* mode, double value) {
    return Attrs{{"pads", dims(pads)}, {"mode", mode}, {"value", value}};
  };
  list.add(Op::kPad, "zeros", {real({2, 3})}, pad({0, 1, 1, 2}, "constant", 0));
  list.add(Op::kPad, "value and crop", {real({3, 4})}, pad({-1, 2, 0, -1}, "constant", 1.5));
  list.add(Op::kPad, "reflect", {real({1, 2, 4, 5})}, pad({0, 0, 1, 2, 0, 0, 2, 1}, "reflect", 0));
  list.add(Op::kPad, "edge", {real({1, 2, 4, 5})}, pad({0, 0, 1, 2, 0, 0, 2, 1}, "edge", 0));
  list.add(Op::kPad, "wrap", {real({1, 2, 4, 5})}, pad({0, 0, 1, 2, 0, 0, 2, 1}, "wrap", 0));
  list.add(Op::kTile, "", {real({2, 3})}, {{"repeats", dims({2, 3})}});
  list.add(Op::kTile, "one axis", {real({2, 3})}, {{"repeats", dims({1, 2})}});
  list.add(Op::kTile, "once", {real({2, 3})}, {{"repeats", dims({1, 1})}});
  list.add(Op::kRepeatInterleave, "", {real({2, 3, 2})}, {{"axis", 1}, {"repeats", 3}});
  list.add(Op::kFlip, "", {real({2, 3, 4})}, {{"axes", dims({0, 2})}});
  list.add(Op::kRoll, "", {real({3, 5})}, {{"axes", dims({1})}, {"shifts", dims({2})}});
  list.add(Op::kRoll, "backwards", {real({3, 5})}, {{"axes", dims({0, 1})}, {"shifts", dims({-1, -3})}});
  for (bool upper : {false, true})
    for (int64_t k : {-1, 0, 1}) {
      const std::string note = concat(upper ? "upper " : "lower ", k);
      list.add(Op::kTrilu, note, {real({2, 4, 3})}, {{"upper", upper}, {"k", k}});
    }
}

static void add_gathers(List& list) {
  list.add(Op::kGather, "embedding", {real({5, 3}), integers({2, 4}, 0, 4)}, {{"axis", 0}});
  list.add(Op::kGather, "padding", {real({5, 3}), integers({8}, 0, 4)}, {{"axis", 0}, {"padding_idx", 2}});
  list.add(Op::kGather, "from the end", {real({2, 5, 3}), integers({4}, -5, 4)}, {{"axis", 1}});
  list.add(Op::kGather, "scalar index", {real({2, 5}), integers({}, 0, 4)}, {{"axis", 1}});
  list.add(Op::kGather, "i32", {real({5, 3}), integers({4}, 0, 4, DType::kI32)}, {{"axis", 0}});
  list.add(Op::kGatherElements, "", {real({3, 4}), integers({3, 6}, 0, 3)}, {{"axis", 1}});
  list.add(Op::kGatherElements, "smaller", {real({3, 4}), integers({5, 2}, 0, 2)}, {{"axis", 0}});
  for (bool right : {false, true}) {
    const std::string side = right ? "right" : "left";
    list.add(Op::kSearchSorted, side, {fixed({6}, 0, 1), fixed({2, 3})}, {{"right", right}});
    list.add(Op::kSearchSorted, side + ", rows", {integers({2, 5}, 2, 2), integers({2, 4}, 1, 3)}, {{"right", right}});
  }
  list.add(Op::kGatherND, "", {real({3, 4, 2}), integers({5, 2}, 0, 2)});
  list.add(Op::kGatherND, "rows", {real({3, 4}), integers({2, 2, 1}, -3, 2)});
  const auto scatter = [](int64_t axis, const char* reduction) {
    return Attrs{{"axis", axis}, {"reduction", reduction}};
  };
  list.add(Op::kScatterElements, "", {real({3, 4}), unique_indices({2, 2}, 4), real({2, 2})}, scatter(1, "none"));
  list.add(Op::kScatterElements, "first axis", {real({6, 2}), unique_indices({3, 2}, 6), real({3, 2})},
           scatter(0, "none"));
  list.add(Op::kScatterElements, "add", {real({3, 4}), integers({3, 6}, 0, 3), real({3, 6})}, scatter(1, "add"));
  for (const char* reduction : {"max", "min"}) {
    list.add(Op::kScatterElements, reduction, {real({3, 4}), integers({3, 2}, 0, 3), real({3, 2})},
             scatter(1, reduction));
    Attrs anew = scatter(0, reduction);
    anew.set("anew", true);
    list.add(Op::kScatterElements, concat(reduction, ", anew"), {real({3, 4}), integers({5, 4}, 0, 2), real({5, 4})},
             anew);
  }
  list.add(Op::kScatterElements, "mul", {fixed({3, 4}), integers({3, 2}, 0, 3), fixed({3, 2})}, scatter(1, "mul"));
  list.add(Op::kScatterND, "", {real({5, 3}), unique_indices({3, 1}, 5), real({3, 3})}, {{"reduction", "none"}});
  list.add(Op::kScatterND, "add", {real({3, 4, 2}), integers({5, 2}, 0, 2), real({5, 2})}, {{"reduction", "add"}});
}

static void add_data_sizes(List& list) {
  // Examples count what they choose: all or nothing.
  list.add(Op::kCountTrue, "", {flags({3, 5})});
  list.add(Op::kDataSize, "", {integers({}, 3, 3)}, {{"symbol", "n"}, {"low", 0}, {"high", 8}});
  list.add(Op::kNonZero, "all", {flags({2, 3}, 1)}, {{"size", 6}});
  list.add(Op::kNonZero, "nothing", {flags({4}, 0)}, {{"size", 0}});
  list.add(Op::kCompress, "all", {real({3, 2, 2}), flags({3}, 1)}, {{"size", 3}});
  list.add(Op::kCompress, "nothing", {real({3, 2}), flags({3}, 0)}, {{"size", 0}});
  list.add(Op::kMaskedScatter, "all", {real({3, 2}), flags({3}, 1), real({3, 2})});
  list.add(Op::kMaskedScatter, "nothing", {real({3, 2}), flags({3}, 0), real({0, 2})});
}

void add_indices(List& list) {
  add_data_sizes(list);
  add_rearranging(list);
  add_gathers(list);
}

}  // namespace lowtide::examples
