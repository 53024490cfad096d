// Strong integer ids into vectors; a default-constructed id is "none".
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace lowtide {

template <class Tag>
struct Id {
  int32_t index = -1;

  constexpr bool valid() const { return index >= 0; }
  constexpr explicit operator bool() const { return valid(); }
  constexpr size_t at() const { return static_cast<size_t>(index); }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;
using BufferId = Id<struct BufferTag>;

}  // namespace lowtide

template <class Tag>
struct std::hash<lowtide::Id<Tag>> {
  size_t operator()(lowtide::Id<Tag> id) const { return std::hash<int32_t>()(id.index); }
};
