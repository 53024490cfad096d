#include "grad/pieces.h"

#include <algorithm>

namespace lowtide {

// The index of a piece that no other one precedes directly; the first where all are preceded (empty slices).
static size_t first_of_chain(const std::vector<GradientPiece>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const bool preceded = std::any_of(pieces.begin(), pieces.end(), [&](const GradientPiece& other) {
      return &other != &pieces[i] && other.axis == pieces[i].axis && other.end == pieces[i].start;
    });
    if (!preceded) return i;
  }
  return 0;
}

// Takes the pieces that follow each other without gaps out of `pieces`.
static std::vector<GradientPiece> take_chain(std::vector<GradientPiece>& pieces) {
  std::vector<GradientPiece> chain;
  auto at = pieces.begin() + static_cast<int64_t>(first_of_chain(pieces));
  while (at != pieces.end()) {
    chain.push_back(*at);
    pieces.erase(at);
    at = std::find_if(pieces.begin(), pieces.end(), [&](const GradientPiece& next) {
      return next.axis == chain.back().axis && next.start == chain.back().end;
    });
  }
  return chain;
}

ValueId join_pieces(Builder& builder, const Shape& shape, std::vector<GradientPiece> pieces) {
  ValueId total;
  while (!pieces.empty()) {
    const std::vector<GradientPiece> chain = take_chain(pieces);
    const int64_t axis = chain.front().axis;
    ValueId grad = chain.front().grad;
    if (chain.size() > 1) {
      std::vector<ValueId> parts;
      for (const GradientPiece& piece : chain) parts.push_back(piece.grad);
      grad = builder.op(Op::kConcat, std::move(parts), {{"axis", Dim(axis)}});
    }
    grad = builder.pad_axis(grad, axis, chain.front().start, shape[static_cast<size_t>(axis)] - chain.back().end);
    total = total ? builder.add(total, grad) : grad;
  }
  return total;
}

}  // namespace lowtide
