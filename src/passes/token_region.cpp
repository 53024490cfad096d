#include "passes/token_region.h"

#include <algorithm>
#include <map>

#include "ir/reads.h"
#include "ir/views.h"
#include "ops/uniform.h"

namespace lowtide {

namespace {

// Where a value has its tokens: dims of sequences and of places in a sequence; one dim of both where they are merged.
struct Tokens {
  int64_t batch = 0, length = 0;
  bool merged() const { return batch == length; }
  friend bool operator==(const Tokens&, const Tokens&) = default;
};

class Walk {
 public:
  Walk(const Graph& graph, NodeId attention, Dim batch, Dim length)
      : graph_(graph), attention_(attention), batch_(std::move(batch)), length_(std::move(length)) {}

  // From an operand of the attention to its products; whether a value has its tokens in one place alone.
  bool visit(ValueId value, const Tokens& tokens) {
    if (const auto [at, is_new] = tokens_.try_emplace(value, tokens); !is_new) return at->second == tokens;
    const NodeId id = graph_.value(value).producer;
    if (!id || graph_.node(id).outputs[0] != value) return true;
    if (is_product(id, tokens)) {
      products_.push_back(value);
      return true;
    }
    const std::vector<std::optional<Tokens>> operands = operands_of(graph_.node(id), tokens);
    if (operands.empty()) return true;  // what it reads is computed for all tokens
    nodes_.insert(id);
    for (size_t i = 0; i < operands.size(); ++i)
      if (operands[i] && !visit(graph_.node(id).inputs[i], *operands[i])) return false;
    return true;
  }

  bool is_closed() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [&](NodeId id) {
      const std::vector<ValueId>& outputs = graph_.node(id).outputs;
      for (size_t i = 1; i < outputs.size(); ++i)
        if (outputs[i] && is_read(graph_, outputs[i])) return false;
      return !graph_.is_output(outputs[0]) && inner_readers(outputs[0]) == graph_.value(outputs[0]).users.size();
    });
  }

  std::vector<TokenRegion::Product> products() const {
    std::vector<TokenRegion::Product> result;
    for (ValueId value : products_) result.push_back({value, tokens_.at(value).merged() ? 1 : 2, inner_readers(value)});
    return result;
  }

 private:
  size_t inner_readers(ValueId value) const {
    size_t count = 0;
    for (NodeId user : graph_.value(value).users)
      if (nodes_.count(user)) ++count;
    const std::vector<ValueId>& read = graph_.node(attention_).inputs;
    return count + static_cast<size_t>(std::count(read.begin(), read.begin() + 3, value));
  }

  bool is_product(NodeId id, const Tokens& tokens) const {
    const Node& node = graph_.node(id);
    if (node.op != Op::kGemm && node.op != Op::kMatMul && node.op != Op::kFusedMatMul) return false;
    return tokens == Tokens{0, 0} || tokens == Tokens{0, 1};
  }

  bool has_tokens(const Shape& shape, const Tokens& tokens) const {
    const auto size = [&](int64_t dim) { return dim >= 0 && dim < std::ssize(shape) ? shape[dim] : Dim(-1); };
    if (tokens.merged()) return size(tokens.batch) == batch_ * length_;
    return size(tokens.batch) == batch_ && size(tokens.length) == length_;
  }

  // The dim of `from` that lies at the same elements as dim `dim` of `to`, which has the same elements in all.
  static std::optional<int64_t> same_dim(const Shape& from, const Shape& to, int64_t dim, const Dim& size) {
    const Dim before = numel({to.begin(), to.begin() + dim});
    for (int64_t i = 0; i < std::ssize(from); ++i)
      if (from[i] == size && numel({from.begin(), from.begin() + i}) == before) return i;
    return std::nullopt;
  }

  std::optional<Tokens> before_reshape(const Shape& from, const Shape& to, const Tokens& tokens) const {
    const Dim all = batch_ * length_;
    if (const auto merged = same_dim(from, to, tokens.batch, all); merged && (tokens.merged() || adjacent(tokens)))
      return Tokens{*merged, *merged};
    if (tokens.merged()) {
      const auto batch = same_dim(from, to, tokens.batch, batch_);
      if (batch && has_tokens(from, {*batch, *batch + 1})) return Tokens{*batch, *batch + 1};
      return std::nullopt;
    }
    const auto batch = same_dim(from, to, tokens.batch, batch_), length = same_dim(from, to, tokens.length, length_);
    return batch && length ? std::optional(Tokens{*batch, *length}) : std::nullopt;
  }

  // Whether tokens that are left out, whose elements are zero, stay finite in a pointwise op: what an attention hides
  // is multiplied by zero.
  bool is_finite_at_zero(const Node& node) const {
    switch (node.op) {
      case Op::kExpand:
      case Op::kDropout:
      case Op::kCopy:
      case Op::kCast:
      case Op::kNeg:
      case Op::kSin:
      case Op::kCos:
      case Op::kTanh:
      case Op::kSigmoid:
      case Op::kRelu:
      case Op::kGelu:
      case Op::kSwish:
      case Op::kAdd:
      case Op::kSub:
      case Op::kMul: return true;
      case Op::kDiv: return uniform(graph_, node.inputs[1]).has_value();
      case Op::kPow: return uniform_float(graph_, node.inputs[1]).value_or(0) >= 1;
      case Op::kRsqrt: return is_variance(node.inputs[0]);
      default: return false;
    }
  }

  // mean(x**2) + epsilon
  bool is_variance(ValueId value) const {
    const NodeId sum = producer(graph_, value, Op::kAdd);
    if (!sum || uniform_float(graph_, operand(graph_, sum, 1)).value_or(0) <= 0) return false;
    const NodeId mean = producer(graph_, operand(graph_, sum, 0), Op::kReduceMean);
    const NodeId square = mean ? producer(graph_, operand(graph_, mean, 0), {Op::kPow, Op::kMul}) : NodeId{};
    if (!square) return false;
    return graph_.node(square).op == Op::kPow ? uniform_float(graph_, operand(graph_, square, 1)) == 2
                                              : operand(graph_, square, 0) == operand(graph_, square, 1);
  }

  static bool adjacent(const Tokens& tokens) { return tokens.length == tokens.batch + 1; }

  // Where operands have the tokens, none for one that is the same whatever the tokens are; empty: not token by token.
  std::vector<std::optional<Tokens>> operands_of(const Node& node, const Tokens& tokens) const {
    const Shape& result = graph_.type(node.outputs[0]).shape;
    std::vector<std::optional<Tokens>> operands(node.inputs.size());
    const auto is_other = [&](int64_t axis) { return axis != tokens.batch && axis != tokens.length; };
    switch (node.op) {
      case Op::kTranspose: {
        const std::vector<int64_t> perm = node.attrs.is("perm");
        operands[0] = Tokens{perm[static_cast<size_t>(tokens.batch)], perm[static_cast<size_t>(tokens.length)]};
        break;
      }
      case Op::kReshape:
      case Op::kSqueeze:
      case Op::kUnsqueeze: operands[0] = before_reshape(graph_.type(node.inputs[0]).shape, result, tokens); break;
      case Op::kSlice:
        if (is_other(node.attrs.i("axis"))) operands[0] = tokens;
        break;
      case Op::kConcat:
        if (is_other(node.attrs.i("axis"))) std::fill(operands.begin(), operands.end(), tokens);
        break;
      case Op::kLayerNormalization:
      case Op::kSimplifiedLayerNormalization:
        if (node.attrs.i("axis") > std::max(tokens.batch, tokens.length)) operands[0] = tokens;
        break;
      case Op::kReduceSum:
      case Op::kReduceMean:
      case Op::kReduceMax:
      case Op::kReduceMin:
        if (node.attrs.is("axes").front() > std::max(tokens.batch, tokens.length)) operands[0] = tokens;
        break;
      case Op::kRotaryEmbedding:
        if (std::max(tokens.batch, tokens.length) + 1 < std::ssize(result)) operands[0] = tokens;
        break;
      default:
        if (!is_finite_at_zero(node)) return {};
        for (size_t i = 0; i < operands.size(); ++i) {
          if (!node.inputs[i]) continue;
          const Shape& shape = graph_.type(node.inputs[i]).shape;
          const int64_t missing = std::ssize(result) - std::ssize(shape);
          const Tokens found{tokens.batch - missing, tokens.length - missing};
          if (has_tokens(shape, found)) operands[i] = found;
        }
    }
    const bool any = std::any_of(operands.begin(), operands.end(), [](const auto& each) { return each.has_value(); });
    return any ? operands : std::vector<std::optional<Tokens>>();
  }

  const Graph& graph_;
  const NodeId attention_;
  const Dim batch_, length_;
  std::map<ValueId, Tokens> tokens_;
  std::set<NodeId> nodes_;
  std::vector<ValueId> products_;
};

}  // namespace

std::optional<TokenRegion> token_region(const Graph& graph, NodeId attention) {
  const Node& node = graph.node(attention);
  if (node.op != Op::kAttention || node.inputs.size() < 4 || !node.inputs[3]) return std::nullopt;
  if (node.outputs[1] && is_read(graph, node.outputs[1])) return std::nullopt;
  const Shape &query = graph.type(node.inputs[0]).shape, &key = graph.type(node.inputs[1]).shape;
  const TensorType& mask = graph.type(node.inputs[3]);
  if (query.size() != 4 || key.size() != 4 || mask.shape.size() != 4 || mask.dtype != DType::kBool) return std::nullopt;
  if (query[0] != key[0] || query[2] != key[2] || mask.shape[0] != key[0] || mask.shape[3] != key[2])
    return std::nullopt;
  Walk walk(graph, attention, query[0], query[2]);
  for (size_t i = 0; i < 3; ++i)
    if (!walk.visit(node.inputs[i], {0, 2})) return std::nullopt;
  if (!walk.is_closed()) return std::nullopt;
  return TokenRegion{node.inputs[3], query[0], query[2], walk.products()};
}

}  // namespace lowtide
