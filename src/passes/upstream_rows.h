// Taking a choice of rows from where it is made up to what the rows are computed from.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "passes/rewrite.h"

namespace lowtide {

// A node `reader` needs only the rows of a value where a condition is true. Nodes that compute each row from the same
// row of their operands, and for this reader alone, need to compute only those, too.
//   %y = Gelu %x                          %c = Compress %x, %condition
//   %z = Compress %y, %condition     →    %z = Gelu %c
// Through pointwise ops, Dropout (with the masks of all rows), products by a matrix, norms, softmax, reductions,
// gathers of an embedding and views, as long as rows stay rows. Where asked, through attention with a mask: its
// queries, keys and values are computed for rows that are asked for or that the mask shows to anybody, and put in their
// places.
class UpstreamRows {
 public:
  // Finds those nodes; the graph stays as it is. `value` has its rows in dim 0.
  UpstreamRows(const Graph& graph, NodeId reader, ValueId value, bool through_attention);

  bool has_product() const { return has_product_; }
  // Writes them before the reader: the chosen rows of `value`. `condition`: bool[rows of the value]; `count`: how often
  // it is true.
  ValueId write(Graph& graph, ValueId condition, const Dim& count) const;

 private:
  // The rows that somebody asks for: those of dims [0, lead), chosen by the condition of `frame`.
  struct Rows {
    int64_t lead = 1;
    size_t frame = 0;
    friend auto operator<=>(const Rows&, const Rows&) = default;
  };
  // A condition on rows; the first is the caller's.
  struct Frame {
    size_t from = 0;  // this one's rows are
    NodeId slice;     // those of `from`, in what this took a slice of; or
    ValueId mask;     // those of `from`, and those that this shows to an attention
  };
  struct Asked {
    Rows rows;
    size_t readers = 0;    // operands of nodes that were found
    bool differs = false;  // they ask for different rows, none of which are the others too
  };
  struct Found {
    NodeId node;
    Rows rows;
    std::vector<std::optional<Rows>> operands;  // none: as it is, but for dims of 1 in the place of the rows
  };
  class Writer;

  static int64_t rank(const Shape& shape) { return static_cast<int64_t>(shape.size()); }
  static Shape leading(const Shape& shape, int64_t lead) { return {shape.begin(), shape.begin() + lead}; }

  void visit(NodeId id);
  void ask(ValueId value, const Rows& rows, size_t readers = 1);
  // Where the node puts an attention's heads together.
  void ask_of_attention(const Node& node, const Rows& rows);
  size_t frame_with(size_t frame, ValueId mask);
  // Whether the rows of `inner` are among those of `outer` by how these were made.
  bool includes(size_t outer, size_t inner) const;
  // What the node needs of each operand; none: it has to compute all rows.
  std::optional<std::vector<std::optional<Rows>>> operands_of(const Node& node, const Rows& rows);
  std::optional<std::vector<std::optional<Rows>>> broadcast_operands(const Node& node, const Rows& rows) const;
  std::optional<Rows> rows_of_reshape(const Shape& from, const Shape& to, const Rows& rows) const;

  const Graph& graph_;
  std::map<ValueId, Asked> asked_;
  std::vector<Frame> frames_{1};
  std::vector<Found> found_;  // the last one first
  ValueId value_;
  NodeId reader_;
  bool through_attention_, has_product_ = false;
  std::vector<ValueId> restored_;  // values that an attention reads, which has a place for every row
};

}  // namespace lowtide
