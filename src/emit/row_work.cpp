#include "emit/row_work.h"

#include <algorithm>

#include "base/size_code.h"
#include "kernels/kernel.h"

namespace lowtide {

namespace {

class StepReader {
 public:
  StepReader(const Program& program, std::span<const PlacedOperand> operands, const ProgramStep& step, const Dim& rows)
      : program_(program), operands_(operands), step_(step), rows_(rows) {
    result_.inputs.resize(step.inputs.size());
    result_.outputs.resize(step.outputs.size());
  }

  std::optional<RowStep> run() {
    // A sum with an incoming gradient, which is left out where the caller sends none.
    if (step_.kind != StepKind::kKernel || step_.index >= 0) return std::nullopt;
    const Kernel* kernel = find_kernel(step_.kernel);
    if (kernel == nullptr || !reads(kernel->row_work) || !lie_evenly()) return std::nullopt;
    return std::move(result_);
  }

 private:
  const Shape* sizes(const std::vector<int32_t>& ids, size_t i) const {
    return i < ids.size() && ids[i] >= 0 ? &operands_[static_cast<size_t>(ids[i])].sizes : nullptr;
  }
  const Shape* input(size_t i) const { return sizes(step_.inputs, i); }
  const Shape* output(size_t i) const { return sizes(step_.outputs, i); }
  DType dtype(int32_t id) const { return operands_[static_cast<size_t>(id)].dtype; }
  bool flag(const char* name) const { return step_.attrs.b(name, false); }

  bool reads(RowWork work) {
    switch (work) {
      case RowWork::kWhole: return false;
      case RowWork::kElements: return reads_elements();
      case RowWork::kRows: return reads_rows();
      case RowWork::kProducts: return reads_rows_of_product() || reads_batches() || reads_sum_of_products();
      case RowWork::kSums: return reads_sum();
      case RowWork::kDrawn: return reads_drawn();
      case RowWork::kHeads: return reads_heads(0, 3);
      case RowWork::kHeadsGrad: return reads_heads(1, 6);
    }
    return false;
  }

  // Rows lie evenly in every operand that has them, and one has.
  bool lie_evenly() const {
    const auto fit = [&](const std::vector<int32_t>& ids, const std::vector<RowDims>& dims) {
      for (size_t i = 0; i < ids.size(); ++i)
        if (dims[i].count > 0 && !row_stride(operands_[static_cast<size_t>(ids[i])], dims[i])) return false;
      return true;
    };
    return fit(step_.inputs, result_.inputs) && fit(step_.outputs, result_.outputs);
  }

  // The dims of an operand that broadcasts to `shape`, of whose first dims `count` are rows; false where it has some of
  // the rows only.
  static bool broadcast_rows(const Shape& operand, const Shape& shape, int count, RowDims& found) {
    const int missing = static_cast<int>(shape.size()) - static_cast<int>(operand.size());
    bool has_rows = false, has_all = true;
    for (int i = 0; i < count; ++i) {
      const Dim& wanted = shape[static_cast<size_t>(i)];
      if (wanted.is(1)) continue;
      const bool here = i >= missing && operand[static_cast<size_t>(i - missing)] == wanted;
      has_rows = has_rows || here;
      has_all = has_all && here;
      if (!here && i >= missing && !operand[static_cast<size_t>(i - missing)].is(1)) return false;
    }
    if (has_rows) found = {0, count - std::max(missing, 0)};
    return missing >= 0 && has_rows == has_all;
  }

  bool reads_elements() {
    const Shape* y = output(0);
    if (y == nullptr) return false;
    result_.outputs[0] = leading_rows(*y, rows_);
    const int count = result_.outputs[0].count;
    if (count == 0) return false;
    for (size_t i = 0; i < step_.inputs.size(); ++i)
      if (input(i) != nullptr && !broadcast_rows(*input(i), *y, count, result_.inputs[i])) return false;
    return true;
  }

  // Numbers go by groups of 64 elements. Some rows of a tensor draw those of their own.
  bool reads_drawn() {
    for (int32_t id : step_.inputs)
      if (id >= 0 && !is_float(dtype(id))) return false;
    if (!reads_elements()) return false;
    const Shape& y = *output(0);
    result_.drawn = numel(Shape(y.begin() + result_.outputs[0].count, y.end()));
    return true;
  }

  int64_t constant_attr(int64_t expression) const {
    return run_size_code(program_.expressions[static_cast<size_t>(expression)], {});
  }

  bool reads_rows() {
    const Shape& x = *input(0);
    const int axis = static_cast<int>(constant_attr(step_.attrs.i("axis")));
    const RowDims dims = leading_rows(x, rows_);
    if (dims.count == 0 || dims.count > axis) return false;
    result_.inputs[0] = dims;
    for (size_t i = 1; i < step_.inputs.size(); ++i) {
      if (input(i) == nullptr) continue;
      if (*input(i) == x) {
        result_.inputs[i] = dims;
      } else if (input(i)->size() > x.size() - static_cast<size_t>(axis)) {
        return false;
      }
    }
    for (size_t i = 0; i < step_.outputs.size(); ++i) {
      const Shape* y = output(i);
      if (y == nullptr) continue;
      if (y->size() < static_cast<size_t>(dims.count) || !std::equal(x.begin(), x.begin() + dims.count, y->begin()))
        return false;
      result_.outputs[i] = dims;
    }
    return true;
  }

  // y's rows are those of the first operand, all against one matrix.
  bool reads_rows_of_product() {
    const Shape &a = *input(0), &b = *input(1), &y = *output(0);
    const int count = static_cast<int>(y.size()) - 1;
    if (a.size() != y.size() || b.size() != 2 || flag("transA")) return false;
    if (!(numel(Shape(y.begin(), y.end() - 1)) == rows_) || !std::equal(y.begin(), y.end() - 1, a.begin()))
      return false;
    if (const Shape* c = input(2)) {
      if (*c == y) {
        result_.inputs[2] = {0, count};
      } else if (c->size() != 1 && !(c->size() == 2 && c->front().is(1))) {
        return false;
      }
    }
    result_.inputs[0] = result_.outputs[0] = {0, count};
    return true;
  }

  // y's rows are products of their own.
  bool reads_batches() {
    const Shape& y = *output(0);
    if (input(2) != nullptr || y.size() < 3) return false;
    const RowDims dims = leading_rows(y, rows_);
    if (dims.count == 0 || dims.count > static_cast<int>(y.size()) - 2) return false;
    result_.outputs[0] = dims;
    for (size_t i = 0; i < 2; ++i) {
      const Shape operand(input(i)->begin(), input(i)->end() - 2), batches(y.begin(), y.end() - 2);
      if (!broadcast_rows(operand, batches, dims.count, result_.inputs[i])) return false;
    }
    return result_.inputs[0].count > 0 || result_.inputs[1].count > 0;
  }

  // y is a sum over the rows of both operands: a gradient of weights.
  bool reads_sum_of_products() {
    const Shape &a = *input(0), &b = *input(1), &y = *output(0);
    const auto is_f32 = [&](int32_t id) { return dtype(id) == DType::kF32; };
    if (step_.attrs.has("computes")) return false;
    if (input(2) != nullptr || a.size() != 2 || b.size() != 2 || !is_f32(step_.inputs[0]) || !is_f32(step_.inputs[1]) ||
        !is_f32(step_.outputs[0]))
      return false;
    // A row that is added to each row goes another way than a matrix.
    for (const Dim& size : y)
      if (!size.is_constant() || size.constant() < 2) return false;
    const int in_a = flag("transA") ? 0 : 1, in_b = flag("transB") ? 1 : 0;
    if (!(a[static_cast<size_t>(in_a)] == rows_) || !(b[static_cast<size_t>(in_b)] == rows_)) return false;
    result_.inputs[0] = {in_a, 1};
    result_.inputs[1] = {in_b, 1};
    result_.outputs[0] = {};
    result_.adds_up = true;
    return true;
  }

  bool reads_sum() {
    const Shape& x = *input(0);
    const Storage& storage = operands_[static_cast<size_t>(step_.inputs[0])].storage;
    const std::vector<int64_t>& axes = step_.attrs.ints("axes");
    const RowDims dims{0, static_cast<int>(axes.size())};
    for (size_t i = 0; i < axes.size(); ++i)
      if (constant_attr(axes[i]) != static_cast<int64_t>(i)) return false;
    const Dim kept = numel(Shape(x.begin() + dims.count, x.end()));
    if (!(numel(Shape(x.begin(), x.begin() + dims.count)) == rows_) || !kept.is_constant() || kept.constant() < 2 ||
        !(storage.strides == row_major_strides(x)) || step_.inputs.size() != 1)
      return false;
    result_.inputs[0] = dims;
    result_.adds_up = true;
    return true;
  }

  // Operands begin with the batches, but for masks that serve all of them. The gradient of a mask may be a sum.
  bool reads_heads(size_t query, size_t first_mask) {
    const Shape &q = *input(query), &k = *input(query + 1);
    const RowDims batches{0, 1, q[2]};
    if (!(q[0] * q[2] == rows_) || !(k[2] == q[2]) || output(3) != nullptr) return false;
    for (size_t i = 0; i < step_.inputs.size(); ++i) {
      const Shape* operand = input(i);
      if (operand == nullptr) continue;
      const bool has_batches = (i < first_mask || operand->size() == 4) && operand->front() == q[0];
      if (has_batches) result_.inputs[i] = batches;
      if (!has_batches && (i < first_mask || (operand->size() == 4 && !operand->front().is(1)))) return false;
    }
    for (size_t i = 0; i < step_.outputs.size(); ++i)
      if (output(i) != nullptr) result_.outputs[i] = batches;
    result_.drawn = q[1] * k[2];
    result_.batch_rows = q[2];
    return true;
  }

  const Program& program_;
  const std::span<const PlacedOperand> operands_;
  const ProgramStep& step_;
  const Dim& rows_;
  RowStep result_;
};

}  // namespace

RowDims leading_rows(const Shape& sizes, const Dim& rows) {
  Dim product = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    product = product * sizes[i];
    if (product == rows) return {0, static_cast<int>(i) + 1};
  }
  return {};
}

std::optional<Dim> row_stride(const PlacedOperand& operand, RowDims dims) {
  std::optional<Dim> stride;
  for (int i = dims.first + dims.count; i-- > dims.first;) {
    const size_t at = static_cast<size_t>(i);
    if (operand.sizes[at].is(1)) continue;
    const Dim& here = operand.storage.strides[at];
    if (!stride) {
      stride = here;
    } else {
      // `expected` is what the dims behind this one span.
      Dim expected = *stride;
      for (int k = i + 1; k < dims.first + dims.count; ++k) expected = expected * operand.sizes[static_cast<size_t>(k)];
      if (!(here == expected)) return std::nullopt;
    }
  }
  return stride;
}

std::optional<RowStep> row_step(const Program& program, std::span<const PlacedOperand> operands,
                                const ProgramStep& step, const Dim& rows) {
  return StepReader(program, operands, step, rows).run();
}

}  // namespace lowtide
