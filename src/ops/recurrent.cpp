// The steps of recurrent layers.
#include "ops/builder.h"
#include "ops/inference.h"
#include "opset/recurrent_cells.h"

namespace lowtide {

namespace {

// Sizes of a layer: T steps of B rows, H units.
struct LayerSizes {
  const RecurrentCell& cell;
  Dim steps, rows, units;

  Shape of_rows() const { return {rows, units}; }
  Shape of_steps(int64_t numbers) const { return {steps, rows, Dim(numbers) * units}; }
};

const RecurrentCell& checked_cell(const InferArgs& args) {
  check_word(args, "cell", kRecurrentCellNames);
  return recurrent_cell(args.attrs.s("cell"));
}

void check_weight(const InferArgs& args, size_t input, const LayerSizes& sizes) {
  check_shape(args, input, "weight", {Dim(sizes.cell.gates) * sizes.units, sizes.units});
}

void check_lengths(const InferArgs& args, size_t input, const LayerSizes& sizes) {
  if (!args.has(input)) return;
  check_shape(args, input, "lengths", {sizes.rows});
  LT_INFER_CHECK(args, args.in(input).dtype == DType::kI64, "lengths must be i64, are ", to_string(args.in(input)));
}

// An operand that this cell has or has not.
void check_present(const InferArgs& args, size_t input, std::string_view what, bool is_wanted) {
  LT_INFER_CHECK(args, args.has(input) == is_wanted, "cell=\"", args.attrs.s("cell"),
                 is_wanted ? "\" needs " : "\" has no ", what);
}

TensorType output_if(bool has, DType dtype, Shape shape) {
  return has ? TensorType{dtype, std::move(shape)} : no_output();
}

}  // namespace

std::vector<TensorType> infer_recurrence(const InferArgs& args) {
  const TensorType &gates = args.in(0), &state = args.in(2);
  const RecurrentCell& cell = checked_cell(args);
  check_float(args, 0);
  LT_INFER_CHECK(args, rank(gates) == 3, "gates must have 3 dims, are ", to_string(gates));
  LT_INFER_CHECK(args, rank(state) == 2, "state must have 2 dims, is ", to_string(state));
  const LayerSizes sizes{cell, gates.shape[0], gates.shape[1], state.shape[1]};
  check_shape(args, 0, "gates", sizes.of_steps(cell.gates));
  check_same_dtype(args, 0, 1);
  check_weight(args, 1, sizes);
  check_like_first(args, 2, "state", sizes.of_rows());
  check_present(args, 3, "memory", cell.has_memory);
  check_like_first(args, 3, "memory", sizes.of_rows());
  LT_INFER_CHECK(args, !args.has(4) || cell.splits_state, "cell=\"", args.attrs.s("cell"), "\" has no bias");
  check_like_first(args, 4, "bias", {Dim(cell.gates) * sizes.units});
  check_lengths(args, 5, sizes);
  const DType dtype = gates.dtype;
  return {{dtype, sizes.of_steps(1)},
          {dtype, sizes.of_rows()},
          output_if(cell.kept > 0, dtype, sizes.of_steps(cell.kept)),
          output_if(cell.has_memory, dtype, sizes.of_steps(1)),
          output_if(cell.has_memory, dtype, sizes.of_rows())};
}

std::vector<TensorType> infer_recurrence_grad(const InferArgs& args) {
  const TensorType& y = args.in(0);
  const RecurrentCell& cell = checked_cell(args);
  check_float(args, 0);
  LT_INFER_CHECK(args, rank(y) == 3, "y must have 3 dims, is ", to_string(y));
  const LayerSizes sizes{cell, y.shape[0], y.shape[1], y.shape[2]};
  check_same_dtype(args, 0, 1);
  check_weight(args, 1, sizes);
  check_like_first(args, 2, "state", sizes.of_rows());
  check_present(args, 3, "memory", cell.has_memory);
  check_like_first(args, 3, "memory", sizes.of_rows());
  check_present(args, 4, "memories", cell.has_memory);
  check_like_first(args, 4, "memories", sizes.of_steps(1));
  check_present(args, 5, "activated", cell.kept > 0);
  check_like_first(args, 5, "activated", sizes.of_steps(cell.kept));
  check_like_first(args, 6, "dy", sizes.of_steps(1));
  check_like_first(args, 7, "dlast_state", sizes.of_rows());
  check_like_first(args, 8, "dlast_memory", sizes.of_rows());
  check_lengths(args, 9, sizes);
  const TensorType gates{y.dtype, sizes.of_steps(cell.gates)}, rows{y.dtype, sizes.of_rows()};
  return {gates, rows, output_if(cell.has_memory, y.dtype, sizes.of_rows()), y,
          output_if(cell.splits_state, y.dtype, sizes.of_steps(cell.gates))};
}

// What flows into the weight is a product over all steps: of what flows into the gates from the state, and the states
// that steps began with.
void grad_recurrence(GradContext& c) {
  const RecurrentCell& cell = recurrent_cell(c.attrs().s("cell"));
  LT_CHECK(!c.dy(2) && !c.dy(3), "gradient through what a recurrent layer keeps");
  if (!c.dy(0) && !c.dy(1) && !c.dy(4)) return;
  Builder& b = c.b();
  std::vector<ValueId> operands{c.out(0), c.in(1), c.in(2), c.in(3), c.out(3),
                                c.out(2), c.dy(0), c.dy(1), c.dy(4), c.in(5)};
  while (!operands.back()) operands.pop_back();
  const bool wants_state_part = cell.splits_state && (c.wants(1) || c.wants(4));
  const NodeId grad =
      b.node(Op::kRecurrenceGrad, std::move(operands), c.attrs(),
             {c.wants(0) || (c.wants(1) && !cell.splits_state), c.wants(2), c.wants(3), c.wants(1), wants_state_part});
  const std::vector<ValueId> made = c.graph().node(grad).outputs;
  if (c.wants(0)) c.set(0, made[0]);
  if (c.wants(2)) c.set(2, made[1]);
  if (c.wants(3)) c.set(3, made[2]);
  const auto all_rows = [&](ValueId x) { return b.reshape(x, {b.shape(x)[0] * b.shape(x)[1], b.shape(x)[2]}); };
  const ValueId of_state = cell.splits_state ? made[4] : made[0];
  if (c.wants(1))
    c.set(1, b.op(Op::kGemm, {all_rows(of_state), all_rows(made[3])},
                  {{"transA", true}, {"transB", false}, {"alpha", 1.0}, {"beta", 1.0}}));
  if (c.wants(4)) c.set(4, b.reduce(Op::kReduceSum, of_state, {0, 1}, false));
}

}  // namespace lowtide
