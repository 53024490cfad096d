// Integers in fewer bits, and back.
#include "ops/inference.h"

namespace lowtide {

Dim packed_bytes(const Dim& numel, int64_t bits) {
  if (bits >= 8) return numel * Dim(bits / 8);
  const int64_t per_byte = 8 / bits;
  return floordiv(numel + Dim(per_byte - 1), Dim(per_byte));
}

// `bits` of elements of this dtype, checked.
static int64_t bits_attr(const InferArgs& args, DType dtype) {
  LT_INFER_CHECK(args, dtype == DType::kBool || is_integer(dtype), "packs bool and integers, not ", name(dtype));
  const int64_t bits = constant_attr(args, "bits"), low = constant_attr(args, "low");
  const int64_t widest = dtype == DType::kBool ? 1 : 8 * size_bytes(dtype);
  const bool known = bits == 1 || bits == 2 || bits == 4 || bits == 8 || bits == 16 || bits == 32;
  LT_INFER_CHECK(args, known && bits <= widest, "bits=", bits, ": expected 1, 2, 4, 8, 16 or 32, and at most the ",
                 widest, " of ", name(dtype));
  LT_INFER_CHECK(args, dtype != DType::kBool || low == 0, "low=", low, ": must be 0 for bool");
  return bits;
}

// p = (x - low) mod 2**bits, one after another
std::vector<TensorType> infer_pack_bits(const InferArgs& args) {
  const TensorType& x = args.in(0);
  return {{DType::kU8, {packed_bytes(numel(x.shape), bits_attr(args, x.dtype))}}};
}

// y = low + p
std::vector<TensorType> infer_unpack_bits(const InferArgs& args) {
  const Shape& shape = args.attrs.ints("shape");
  for (const Dim& size : shape)
    LT_INFER_CHECK(args, !size.is_constant() || size.constant() >= 0, "shape ", to_string(shape),
                   " has a negative size");
  const DType to = args.attrs.t("to");
  const TensorType packed{DType::kU8, {packed_bytes(numel(shape), bits_attr(args, to))}};
  LT_INFER_CHECK(args, args.in(0).dtype == DType::kU8, "the packed operand must be u8, is ", to_string(args.in(0)));
  LT_INFER_CHECK(args, shapes_agree(args.in(0).shape, packed.shape, args.ranges), to_string(TensorType{to, shape}),
                 " in ", args.attrs.i("bits"), " bits each is ", to_string(packed), ", the operand is ",
                 to_string(args.in(0)));
  return {{to, shape}};
}

}  // namespace lowtide
