// einsum: operands are joined from left to right, each pair by transposes, reshapes and one batched product.
#include <algorithm>
#include <string>

#include "lower/targets.h"
#include "ops/inference.h"

namespace lowtide {

namespace {

// A value whose dims carry letters.
struct Labelled {
  ValueId value;
  std::string labels;
};

bool holds(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

// The equation without spaces, "..." spelt out by capital letters that it does not use; empty if it is not understood.
struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};

class Einsum {
 public:
  explicit Einsum(Call& call) : b_(call.b) {}

  ValueId run(const Equation& equation, const std::vector<ValueId>& operands) {
    Labelled joined = without_repeats({operands[0], equation.inputs[0]});
    for (size_t i = 1; i < operands.size(); ++i) {
      std::string later = equation.output;
      for (size_t j = i + 1; j < operands.size(); ++j) later += equation.inputs[j];
      joined = join(joined, without_repeats({operands[i], equation.inputs[i]}), later);
    }
    return arrange(sum_out(joined, equation.output), equation.output);
  }

 private:
  Dim size(const Labelled& x, char label) const { return b_.shape(x.value)[x.labels.find(label)]; }

  // Repeated labels ("ii") would need a diagonal: the caller refuses them before.
  Labelled without_repeats(Labelled x) { return x; }

  Labelled sum_out(Labelled x, const std::string& kept) {
    std::vector<int64_t> axes;
    std::string labels;
    for (size_t i = 0; i < x.labels.size(); ++i) {
      if (holds(kept, x.labels[i]))
        labels += x.labels[i];
      else
        axes.push_back(static_cast<int64_t>(i));
    }
    if (axes.empty()) return x;
    return {b_.reduce(Op::kReduceSum, x.value, axes, false), labels};
  }

  ValueId arrange(const Labelled& x, const std::string& order) {
    std::vector<int64_t> perm;
    for (char label : order) perm.push_back(static_cast<int64_t>(x.labels.find(label)));
    return b_.transpose(x.value, perm);
  }

  Dim product(const Labelled& x, const std::string& labels) const {
    Dim result = 1;
    for (char label : labels) result = result * size(x, label);
    return result;
  }

  // x and y over their common labels; those that `later` does not read are summed.
  Labelled join(Labelled x, Labelled y, const std::string& later) {
    x = sum_out(x, later + y.labels);
    y = sum_out(y, later + x.labels);
    std::string batch, rows, inner, columns;
    for (char label : x.labels) {
      if (!holds(y.labels, label))
        rows += label;
      else if (holds(later, label))
        batch += label;
      else
        inner += label;
    }
    for (char label : y.labels)
      if (!holds(x.labels, label)) columns += label;

    if (inner.empty()) return multiply(x, y, batch + rows + columns);
    Shape left, right, out;
    for (char label : batch) {
      left.push_back(size(x, label));
      right.push_back(size(y, label));
      out.push_back(size(x, label).is(1) ? size(y, label) : size(x, label));
    }
    left.insert(left.end(), {product(x, rows), product(x, inner)});
    right.insert(right.end(), {product(y, inner), product(y, columns)});
    const ValueId a = b_.reshape(arrange(x, batch + rows + inner), left);
    const ValueId c = b_.reshape(arrange(y, batch + inner + columns), right);
    for (char label : rows) out.push_back(size(x, label));
    for (char label : columns) out.push_back(size(y, label));
    return {b_.reshape(b_.op(Op::kMatMul, {a, c}), out), batch + rows + columns};
  }

  // Nothing is summed: a broadcast product.
  Labelled multiply(const Labelled& x, const Labelled& y, const std::string& labels) {
    auto spread = [&](const Labelled& z) {
      std::string present;
      Shape shape;
      for (char label : labels) {
        if (holds(z.labels, label)) present += label;
        shape.push_back(holds(z.labels, label) ? size(z, label) : Dim(1));
      }
      return b_.reshape(arrange(z, present), shape);
    };
    const ValueId left = spread(x), right = spread(y);
    return {b_.mul(left, right), labels};
  }

  Builder& b_;
};

}  // namespace

static std::string expand_dots(const std::string& term, size_t rank, size_t& dots) {
  const size_t at = term.find("...");
  if (at == std::string::npos) return term;
  const size_t named = term.size() - 3;
  dots = rank - named;
  std::string letters;
  for (size_t i = 0; i < dots; ++i) letters += static_cast<char>('0' + static_cast<char>(dots - 1 - i));
  return term.substr(0, at) + letters + term.substr(at + 3);
}

static std::optional<Equation> read_equation(Call& c, const std::vector<ValueId>& operands) {
  std::string text = c.text("equation");
  std::erase(text, ' ');
  Equation equation;
  const size_t arrow = text.find("->");
  std::string inputs = text.substr(0, arrow);
  size_t most_dots = 0;
  for (size_t i = 0, start = 0; i < operands.size(); ++i) {
    const size_t comma = std::min(inputs.find(',', start), inputs.size());
    size_t dots = 0;
    const std::string term = inputs.substr(start, comma - start);
    const size_t rank = static_cast<size_t>(c.b.rank(operands[i]));
    if (term.size() > rank + 3) return std::nullopt;
    equation.inputs.push_back(expand_dots(term, rank, dots));
    if (equation.inputs.back().size() != rank) return std::nullopt;
    most_dots = std::max(most_dots, dots);
    start = comma + 1;
  }
  std::string dots;
  for (size_t i = most_dots; i-- > 0;) dots += static_cast<char>('0' + static_cast<char>(i));
  if (arrow != std::string::npos) {
    equation.output = text.substr(arrow + 2);
    if (const size_t at = equation.output.find("..."); at != std::string::npos) equation.output.replace(at, 3, dots);
  } else {
    // Without an arrow: the ellipsis, then the labels that occur once, in alphabetical order.
    std::string all;
    for (const std::string& term : equation.inputs) all += term;
    std::sort(all.begin(), all.end());
    equation.output = dots;
    for (char label : all)
      if (!holds(dots, label) && std::count(all.begin(), all.end(), label) == 1) equation.output += label;
  }
  for (const std::string& term : equation.inputs)
    for (char label : term)
      if (std::count(term.begin(), term.end(), label) != 1) return std::nullopt;  // a diagonal
  return equation;
}

// Dims of size 1 that broadcast against larger ones are left to PyTorch. Sizes may be one number in different words:
// the exporter has compared them.
static bool broadcasts(Call& c, const Equation& equation, const std::vector<ValueId>& operands) {
  std::map<char, Dim> sizes;
  for (size_t i = 0; i < operands.size(); ++i)
    for (size_t j = 0; j < equation.inputs[i].size(); ++j) {
      const Dim& size = c.b.shape(operands[i])[j];
      auto [at, is_new] = sizes.try_emplace(equation.inputs[i][j], size);
      if (!is_new && (at->second.is(1) != size.is(1) || !dims_agree(at->second, size, c.ranges()))) return true;
    }
  return false;
}

bool lower_einsum(Call& c) {
  if (!is_float(c.dtype())) return false;
  std::vector<ValueId> operands;
  for (ValueId tensor : c.tensors("tensors")) operands.push_back(c.b.cast(tensor, c.dtype()));
  if (operands.empty()) return false;
  const std::optional<Equation> equation = read_equation(c, operands);
  if (!equation || broadcasts(c, *equation, operands)) return false;
  return c.result(c.b.reshape(Einsum(c).run(*equation, operands), c.shape()));
}

}  // namespace lowtide
