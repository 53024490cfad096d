// The state of emission: walks the graph in order, gives every value a place and every computing node a step.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "emit/choose.h"
#include "emit/plan.h"
#include "emit/row_loop.h"
#include "emit/storage.h"
#include "schedule/lifetimes.h"

namespace lowtide {

class Emitter {
 public:
  Emitter(const Graph& graph, const PlanOptions& options)
      : graph_(graph), options_(options), lifetimes_(find_lifetimes(graph, graph.order())) {}
  PlanResult run();

 private:
  void read_inputs();
  void read_data_sizes();
  void emit(NodeId id, int32_t position);
  void emit_view(NodeId id);
  // A copy of what emit_view has had to copy takes those bytes, where nothing else shows them.
  bool takes_copy(NodeId id);
  void emit_constant(NodeId id);
  void emit_yield(NodeId id);
  void emit_call(NodeId id);
  void emit_collective(NodeId id);
  // Before the bytes of a buffer are touched, a call that is at work on it has ended.
  void wait_for(int32_t buffer);
  void wait_for_due(NodeId next);
  void wait_for_all();
  // What forward's updates overwrite behind it, and backward, an output or another update shows: from here on a copy.
  void keep_what_updates_overwrite(NodeId yield);
  void emit_inspect(NodeId id);
  void emit_kernel(NodeId id, int32_t position);
  void emit_data_size(NodeId id);
  void list_places(NodeId id);
  void emit_ready_gradients(NodeId id);
  void emit_gradient(size_t output_index);
  void number_gradients();
  bool is_turned_by_kernels(ValueId value) const;
  void finish_outputs();
  void cut_backward();
  std::vector<int32_t> ready_steps() const;
  void finish_lifetimes();
  void make_loops();
  void emit_loop(const RowBlocks& blocks, const RowLoop& loop, const std::vector<ProgramStep>& steps,
                 const std::vector<int32_t>& positions);
  void take_places(const std::vector<RowLoop>& loops);
  void emit_zeros(const ProgramStep& sum, const Dim& rows);

  ExpressionId expression(const Dim& dim);
  AttrList<int64_t> program_attrs(const Attrs& attrs);
  int32_t add_buffer(BufferKind kind, std::string name, const Dim& numel, DType dtype, int64_t source = 0);
  int32_t add_operand(const TensorType& type, const Storage& storage);
  void place_operand(int32_t id, const TensorType& type, const Storage& storage);
  // The value as an operand, where it is.
  int32_t operand_of(ValueId value);
  Storage place_new(ValueId value, const Shape& strides);
  // A scalar of constant bytes, repeated over `shape`.
  Storage constant_storage(ValueId value, DType dtype, double number, int64_t integer);
  // Emits a Copy step of (shape, from) into a fresh buffer with these strides.
  Storage emit_copy(const TensorType& type, const Storage& from, const Shape& strides, BufferKind kind,
                    const std::string& name, const std::string& node);
  void emit_copy_step(const TensorType& type, const Storage& from, const Storage& to, const std::string& node);
  Storage comply(ValueId value, Accept accept, bool channels_last, const std::string& node);
  Storage comply_repeated(ValueId value, const std::string& node);
  std::optional<Storage> in_place(int input_index, NodeId id, size_t output, const Shape& strides, int32_t position,
                                  std::span<const Storage> inputs);
  std::optional<Storage> in_place_of_parts(int first, NodeId id, int32_t position, std::span<const Storage> inputs);
  // Whether the bytes of an input are such that the output could lie in them.
  bool could_lie_in(ValueId input, ValueId output, const Shape& strides, const Storage& storage) const;
  Shape output_strides(OutputLayout layout, const Node& node, ValueId output, std::span<const Storage> inputs) const;
  int32_t skipped_without(const Node& node, std::span<const Storage> inputs) const;
  BufferKind kind_of(ValueId value) const {
    return lifetimes_.of(value).is_output ? BufferKind::kOutput : BufferKind::kArena;
  }

  const Graph& graph_;
  const PlanOptions& options_;
  const Lifetimes lifetimes_;
  Program program_;
  std::vector<KernelChoice> choices_;
  std::vector<std::string> symbols_;
  std::map<Dim, ExpressionId> expressions_;
  std::vector<std::optional<Storage>> places_;
  std::vector<PlacedOperand> operands_;                   // of the program
  std::vector<Dim> buffer_numel_;                         // elements, by buffer
  std::vector<bool> claimed_;                             // by buffer: a gradient lives here
  std::map<std::pair<int32_t, Accept>, Storage> copies_;  // by value, as it is accepted; made in this region
  std::set<int32_t> copied_for_views_;                    // buffers
  std::map<int32_t, int32_t> context_slots_;              // value of dtype ctx → slot
  std::map<int32_t, std::vector<size_t>> gradients_of_;   // value → graph outputs that are gradients
  std::map<std::tuple<DType, uint64_t, int64_t>, int32_t> constant_buffers_;  // by the bits of a real number
  std::map<int32_t, int32_t> begun_;             // buffer → the step that began a call which fills it
  std::map<int32_t, std::vector<int32_t>> due_;  // node → buffers whose calls have ended before it
  std::map<int32_t, std::vector<size_t>>
      gradients_to_come_;                       // buffer → gradients that are handed out once it is filled
  std::map<int32_t, int32_t> inspect_steps_;    // value → the step that inspects it
  int64_t inspections_ = 0;                     // Inspect nodes so far
  std::vector<std::vector<ValueId>> may_take_;  // by value
  std::vector<ValuePlace> value_places_;
  std::vector<int32_t> step_positions_;
  int32_t zeros_buffer_ = -1;  // 0 and -0, for the sums of loops
};

}  // namespace lowtide
