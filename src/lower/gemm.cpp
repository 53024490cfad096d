// Matrix products.
#include "lower/gemm.h"

#include "lower/targets.h"

namespace lowtide {

static Shape leading(const Shape& shape, size_t dropped) {
  return Shape(shape.begin(), shape.end() - static_cast<int64_t>(dropped));
}

static Shape with(Shape shape, std::initializer_list<Dim> dims) {
  shape.insert(shape.end(), dims);
  return shape;
}

ValueId matrix_product(Builder& b, ValueId x, ValueId y) {
  const int64_t x_rank = b.rank(x), y_rank = b.rank(y);
  if (x_rank == 1 && y_rank == 1) return b.reshape(matrix_product(b, b.unsqueeze(x, {0}), b.unsqueeze(y, {1})), {});
  if (x_rank == 1) return b.squeeze(matrix_product(b, b.unsqueeze(x, {0}), y), {y_rank - 2});
  if (y_rank == 1) return b.squeeze(matrix_product(b, x, b.unsqueeze(y, {1})), {x_rank - 1});
  if (x_rank == 2 || y_rank > 2) return b.op(Op::kMatMul, {x, y});
  // Rows of all batches against one matrix: one flat product.
  const Shape rows = leading(b.shape(x), 1);
  const Dim columns = b.shape(y)[1];
  const ValueId flat = b.reshape(x, {numel(rows), b.shape(x).back()});
  return b.reshape(b.op(Op::kMatMul, {flat, y}), with(rows, {columns}));
}

// Sums of products over the last dims.
bool lower_inner(Call& c) {
  if (!is_float(c.dtype())) return false;
  Builder& b = c.b;
  const ValueId x = c.operand("self", c.dtype()), y = c.operand("other", c.dtype());
  if (b.rank(x) == 0 || b.rank(y) == 0) return c.result(b.mul(x, y));
  const ValueId rows = b.reshape(x, {numel(leading(b.shape(x), 1)), b.shape(x).back()});
  const ValueId columns = b.reshape(y, {numel(leading(b.shape(y), 1)), b.shape(y).back()});
  return c.result(b.reshape(b.op(Op::kMatMul, {rows, b.swap_axes(columns, 0, 1)}), c.shape()));
}

// x w^T + bias over the last dim of x: one Gemm of all rows.
bool lower_linear(Call& c) {
  const DType dtype = c.dtype();
  if (!is_float(dtype)) return false;
  const ValueId x = c.operand("input", dtype), w = c.operand("weight", dtype);
  const ValueId bias = c.optional("bias") ? c.operand("bias", dtype) : ValueId{};
  if (c.b.rank(w) == 1) {
    const ValueId y = matrix_product(c.b, x, w);
    return c.result(bias ? c.b.add(y, bias) : y);
  }
  const ValueId rows = c.b.reshape(x, {numel(leading(c.b.shape(x), 1)), c.b.shape(x).back()});
  std::vector<ValueId> operands{rows, w};
  if (bias) operands.push_back(bias);
  const ValueId y = c.b.op(Op::kGemm, operands, {{"transA", false}, {"transB", true}, {"alpha", 1.0}, {"beta", 1.0}});
  return c.result(c.b.reshape(y, c.shape()));
}

bool lower_matmul(Call& c) {
  if (!is_float(c.dtype())) return false;
  // matmul(self, other), mm and bmm(self, mat2), mv(self, vec), dot(self, tensor), outer apart.
  std::string_view second = "other";
  for (std::string_view name : {"mat2", "vec", "tensor"})
    if (c.is_tensor(name)) second = name;
  return c.result(matrix_product(c.b, c.operand("self", c.dtype()), c.operand(second, c.dtype())));
}

bool lower_outer(Call& c) {
  if (c.dtype() == DType::kBool) return false;
  const ValueId x = c.operand("self", c.dtype()), y = c.operand("vec2", c.dtype());
  return c.result(c.b.mul(c.b.unsqueeze(x, {1}), c.b.unsqueeze(y, {0})));
}

// beta*self + alpha*(x y) of matrices, rounded once.
static ValueId sum_and_product(Call& c, ValueId self, ValueId x, ValueId y) {
  const double alpha = c.real("alpha", 1), beta = c.real("beta", 1);
  std::vector<ValueId> operands{x, y};
  if (beta != 0) operands.push_back(self);
  return c.b.op(Op::kGemm, operands, {{"transA", false}, {"transB", false}, {"alpha", alpha}, {"beta", beta}});
}

bool lower_addmm(Call& c) {
  const DType dtype = c.dtype();
  if (!is_float(dtype)) return false;
  return c.result(sum_and_product(c, c.operand("self", dtype), c.operand("mat1", dtype), c.operand("mat2", dtype)));
}

static ValueId scaled(Call& c, ValueId x, double factor) { return factor == 1 ? x : c.b.mul(x, factor); }

// beta*self + alpha*product; self may be absent from the value (beta = 0).
static bool add_product(Call& c, ValueId product) {
  const double beta = c.real("beta", 1);
  if (beta == 0) return c.result(product);
  return c.result(c.b.add(scaled(c, c.operand("self", c.dtype()), beta), product));
}

bool lower_baddbmm(Call& c) {
  const DType dtype = c.dtype();
  if (!is_float(dtype)) return false;
  const double alpha = c.real("alpha", 1);
  const ValueId x = c.operand("batch1", dtype), y = c.operand("batch2", dtype);
  if (alpha == 1) return add_product(c, c.b.op(Op::kMatMul, {x, y}));
  return add_product(c, c.b.op(Op::kFusedMatMul, {x, y}, {{"transA", false}, {"transB", false}, {"alpha", alpha}}));
}

// The vector is a matrix of one column.
bool lower_addmv(Call& c) {
  const DType dtype = c.dtype();
  if (!is_float(dtype)) return false;
  Builder& b = c.b;
  ValueId self = c.operand("self", dtype);
  if (b.rank(self) == 1) self = b.unsqueeze(self, {1});
  const ValueId column = b.unsqueeze(c.operand("vec", dtype), {1});
  return c.result(b.squeeze(sum_and_product(c, self, c.operand("mat", dtype), column), {1}));
}

bool lower_addr(Call& c) {
  if (!is_float(c.dtype())) return false;
  const ValueId x = c.operand("vec1", c.dtype()), y = c.operand("vec2", c.dtype());
  const ValueId product = c.b.mul(c.b.unsqueeze(x, {1}), c.b.unsqueeze(y, {0}));
  return add_product(c, scaled(c, product, c.real("alpha", 1)));
}

// The batch's products are summed: one product, of matrices side by side and one below the other.
bool lower_addbmm(Call& c) {
  const DType dtype = c.dtype();
  if (!is_float(dtype)) return false;
  Builder& b = c.b;
  const ValueId x = b.swap_axes(c.operand("batch1", dtype), 0, 1), y = c.operand("batch2", dtype);
  const Shape rows = b.shape(x), columns = b.shape(y);
  const Dim inner = rows[1] * rows[2];
  const ValueId wide = b.reshape(x, {rows[0], inner}), high = b.reshape(y, {inner, columns[2]});
  return c.result(sum_and_product(c, c.operand("self", dtype), wide, high));
}

// ---- groups of rows, each times its own matrix

static bool grouped_product(Call& c, ValueId x, ValueId weight, ValueId ends) {
  Builder& b = c.b;
  if (b.rank(x) != 2 || b.rank(weight) != 3) return false;
  if (!is_float(b.dtype(x)) || b.dtype(weight) != b.dtype(x) || c.dtype() != b.dtype(x)) return false;
  // Experts are stored as a linear layer's weight is, and come transposed.
  bool transposed = false;
  if (const NodeId maker = b.graph().value(weight).producer) {
    const Node& node = b.graph().node(maker);
    transposed = node.op == Op::kTranspose && node.attrs.is("perm") == std::vector<int64_t>{0, 2, 1};
    if (transposed) weight = node.inputs[0];
  }
  return c.result(b.op(Op::kGroupedMatMul, {x, weight, ends}, {{"transB", transposed}}));
}

// Other forms than rows by matrices, and a bias, stay PyTorch's.
bool lower_grouped_mm(Call& c) {
  if (c.has("bias") || !c.is_tensor("offs")) return false;
  return grouped_product(c, c.tensor("self"), c.tensor("mat2"), c.tensor("offs"));
}

bool lower_grouped_mm_fallback(Call& c) {
  return grouped_product(c, c.tensor("input"), c.tensor("weight"), c.tensor("offs"));
}

}  // namespace lowtide
