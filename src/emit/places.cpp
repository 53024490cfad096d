// Emitter: expressions, buffers, operands and copies.

#include <algorithm>
#include <bit>
#include <complex>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "emit/emitter.h"

namespace lowtide {

ExpressionId Emitter::expression(const Dim& dim) {
  auto [at, fresh] = expressions_.try_emplace(dim, static_cast<ExpressionId>(program_.expressions.size()));
  if (fresh) program_.expressions.push_back(compile_dim(dim, symbols_));
  return at->second;
}

AttrList<int64_t> Emitter::program_attrs(const Attrs& attrs) {
  AttrList<int64_t> result;
  for (const auto& [name, value] : attrs) {
    if (const Dim* dim = std::get_if<Dim>(&value)) {
      result.set(name, int64_t{expression(*dim)});
    } else if (const Shape* shape = std::get_if<Shape>(&value)) {
      std::vector<int64_t> ids;
      for (const Dim& dim : *shape) ids.push_back(expression(dim));
      result.set(name, ids);
    } else {
      std::visit(
          [&](const auto& other) {
            using T = std::decay_t<decltype(other)>;
            if constexpr (!std::is_same_v<T, Dim> && !std::is_same_v<T, Shape>) result.set(name, other);
          },
          value);
    }
  }
  return result;
}

int32_t Emitter::add_buffer(BufferKind kind, std::string name, const Dim& elements, DType dtype, int64_t source) {
  const int32_t id = static_cast<int32_t>(program_.buffers.size());
  ProgramBuffer buffer;
  buffer.name = std::move(name);
  buffer.kind = kind;
  buffer.size_bytes = expression(elements * size_bytes(dtype));
  buffer.source = source;
  program_.buffers.push_back(std::move(buffer));
  buffer_numel_.push_back(elements);
  claimed_.push_back(false);
  return id;
}

int32_t Emitter::add_operand(const TensorType& type, const Storage& storage) {
  const int32_t id = static_cast<int32_t>(program_.operands.size());
  program_.operands.emplace_back();
  operands_.emplace_back();
  place_operand(id, type, storage);
  return id;
}

void Emitter::place_operand(int32_t id, const TensorType& type, const Storage& storage) {
  LT_CHECK(type.shape.size() <= static_cast<size_t>(kMaxRank), "a tensor of rank ", type.shape.size(),
           " reached the planner");
  ProgramOperand operand;
  operand.buffer = storage.buffer;
  operand.dtype = type.dtype;
  operand.offset = expression(storage.offset);
  for (const Dim& dim : type.shape) operand.sizes.push_back(expression(dim));
  for (const Dim& stride : storage.strides) operand.strides.push_back(expression(stride));
  program_.operands[static_cast<size_t>(id)] = std::move(operand);
  operands_[static_cast<size_t>(id)] = {type.dtype, type.shape, storage};
}

int32_t Emitter::operand_of(ValueId value) {
  LT_CHECK(places_[value.at()].has_value(), "%", graph_.value(value).name, " has no place");
  return add_operand(graph_.type(value), *places_[value.at()]);
}

Storage Emitter::place_new(ValueId value, const Shape& strides) {
  const TensorType& type = graph_.type(value);
  Storage storage;
  storage.buffer = add_buffer(kind_of(value), graph_.value(value).name, numel(type.shape), type.dtype);
  storage.strides = strides;
  return storage;
}

template <class T>
static void append_scalar(std::string& bytes, T value) {
  bytes.resize((bytes.size() + 63) / 64 * 64, '\0');
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

Storage Emitter::constant_storage(ValueId value, DType dtype, double number, int64_t integer) {
  auto [at, fresh] = constant_buffers_.try_emplace({dtype, std::bit_cast<uint64_t>(number), integer}, -1);
  if (fresh) {
    std::string& bytes = program_.constants;
    switch (dtype) {
      case DType::kF64: append_scalar(bytes, number); break;
      case DType::kF32: append_scalar(bytes, static_cast<float>(number)); break;
      case DType::kBF16: append_scalar(bytes, BFloat16(static_cast<float>(number))); break;
      case DType::kF16: append_scalar(bytes, Float16(static_cast<float>(number))); break;
      case DType::kI64: append_scalar(bytes, integer); break;
      case DType::kI32: append_scalar(bytes, static_cast<int32_t>(integer)); break;
      case DType::kI16: append_scalar(bytes, static_cast<int16_t>(integer)); break;
      case DType::kI8:
      case DType::kU8: append_scalar(bytes, static_cast<int8_t>(integer)); break;
      case DType::kBool: append_scalar(bytes, static_cast<int8_t>(integer != 0)); break;
      case DType::kC64: append_scalar(bytes, std::complex<float>(static_cast<float>(integer))); break;
      case DType::kC128: append_scalar(bytes, std::complex<double>(static_cast<double>(integer))); break;
      case DType::kContext: LT_FAIL("a constant context");
    }
    const int64_t offset = static_cast<int64_t>(bytes.size()) - size_bytes(dtype);
    at->second = add_buffer(BufferKind::kConstant, graph_.value(value).name, 1, dtype, offset);
  }
  Storage storage;
  storage.buffer = at->second;
  storage.strides.assign(graph_.type(value).shape.size(), Dim(0));
  return storage;
}

Storage Emitter::emit_copy(const TensorType& type, const Storage& from, const Shape& strides, BufferKind kind,
                           const std::string& name, const std::string& node) {
  Storage to;
  to.buffer = add_buffer(kind, name, numel(type.shape), type.dtype);
  to.strides = strides;
  emit_copy_step(type, from, to, node);
  return to;
}

void Emitter::emit_copy_step(const TensorType& type, const Storage& from, const Storage& to, const std::string& node) {
  const OperandInfo source{type.dtype, static_cast<int>(type.shape.size()), true, layout_of(type.shape, from.strides)};
  const OperandInfo result{type.dtype, source.rank, true, layout_of(type.shape, to.strides)};
  const BoundAttrs attrs;
  const KernelQuery query{Op::kCopy, {&source, 1}, {&result, 1}, &attrs};
  ProgramStep step;
  for (const Kernel& kernel : kernels_of(Op::kCopy))
    if (kernel.rules.output(0).layout == OutputLayout::kAsAsked &&
        (kernel.supports == nullptr || kernel.supports(query) == nullptr)) {
      step.kernel = kernel.name;
      break;
    }
  LT_CHECK(!step.kernel.empty(), "no kernel copies ", to_string(type));
  step.inputs = {add_operand(type, from)};
  step.outputs = {add_operand(type, to)};
  step.node = "Copy for " + node;
  program_.steps.push_back(std::move(step));
}

Storage Emitter::comply(ValueId value, Accept accept, bool channels_last, const std::string& node) {
  const Storage& storage = *places_[value.at()];
  const TensorType& type = graph_.type(value);
  const Layout layout = layout_of(type.shape, storage.strides);
  const bool wants_channels_last = (type.shape.size() == 4 && accept == Accept::kChannelsLast) ||
                                   (has_channels(type.shape) && accept == Accept::kDense && channels_last);
  if (accept == Accept::kAnyRepeated) return comply_repeated(value, node);
  const bool fine = accept == Accept::kAny ||
                    (accept == Accept::kInnerDense && layout != Layout::kStrided && layout != Layout::kChannelsLast) ||
                    layout == (wants_channels_last ? Layout::kChannelsLast : Layout::kRowMajor);
  if (fine) return storage;
  const auto key = std::pair(value.index, wants_channels_last ? Accept::kChannelsLast : Accept::kRowMajor);
  if (auto at = copies_.find(key); at != copies_.end()) return at->second;
  const Shape strides = wants_channels_last ? channels_last_strides(type.shape) : row_major_strides(type.shape);
  if (same_strides(type.shape, storage.strides, strides)) return {storage.buffer, storage.offset, strides};
  const Storage copy = emit_copy(type, storage, strides, BufferKind::kArena, graph_.value(value).name + ".copy", node);
  copies_.emplace(key, copy);
  return copy;
}

// What is read again for each entry of the batch is put in order once; of its own repeated dims one entry.
Storage Emitter::comply_repeated(ValueId value, const std::string& node) {
  const Storage& storage = *places_[value.at()];
  TensorType type = graph_.type(value);
  const size_t rank = type.shape.size();
  const bool is_repeated = rank < 4 || type.shape[0].is(1) || storage.strides[0].is(0);
  if (!is_repeated || rank == 0 || type.shape.back().is(1) || storage.strides.back().is(0) ||
      storage.strides.back().is(1))
    return storage;
  const auto key = std::pair(value.index, Accept::kAnyRepeated);
  if (auto at = copies_.find(key); at != copies_.end()) return at->second;
  for (size_t i = 0; i < rank; ++i)
    if (storage.strides[i].is(0)) type.shape[i] = 1;
  Storage copy = emit_copy(type, storage, row_major_strides(type.shape), BufferKind::kArena,
                           graph_.value(value).name + ".copy", node);
  for (size_t i = 0; i < rank; ++i)
    if (storage.strides[i].is(0)) copy.strides[i] = 0;
  copies_.emplace(key, copy);
  return copy;
}

}  // namespace lowtide
