// The cells of Recurrence. How many rows of the weight each has for a unit, and what of a step it keeps for backward.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lowtide {

// In the order of kRecurrentCells.
enum class CellKind : int32_t { kLstm, kGru, kTanh, kRelu };

struct RecurrentCell {
  std::string_view name;
  int64_t gates;
  int64_t kept;  // numbers a unit and step beside the states
  bool has_memory;
  bool splits_state;  // what flows into the gates is not what flows into what the state gives them
};

inline constexpr std::array<RecurrentCell, 4> kRecurrentCells{{{"lstm", 4, 4, true, false},
                                                               {"gru", 3, 4, false, true},
                                                               {"tanh", 1, 0, false, false},
                                                               {"relu", 1, 0, false, false}}};
inline constexpr std::string_view kRecurrentCellNames = "lstm, gru, tanh, relu";

// Of a name that inference has let pass.
inline CellKind cell_kind(std::string_view name) {
  for (size_t i = 0; i < kRecurrentCells.size(); ++i)
    if (kRecurrentCells[i].name == name) return static_cast<CellKind>(i);
  return CellKind::kTanh;
}
inline const RecurrentCell& recurrent_cell(CellKind kind) { return kRecurrentCells[static_cast<size_t>(kind)]; }
inline const RecurrentCell& recurrent_cell(std::string_view name) { return recurrent_cell(cell_kind(name)); }

}  // namespace lowtide
