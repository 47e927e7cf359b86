// Element types, and the sum of one block of elements over all ranks.
#ifndef TF_LIBRA_OPS_LANES_ELEMENT_H_
#define TF_LIBRA_OPS_LANES_ELEMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_libra {

enum class ElementType : uint8_t { kFloat16 = 0, kBFloat16 = 1, kFloat32 = 2, kFloat64 = 3 };
enum class Reduction : uint8_t { kSum = 0, kAverage = 1 };

size_t ElementSize(ElementType type);
const char* ElementName(ElementType type);

// The processor that an implementation needs: this one, with the instructions it has, or any. Both
// give the same bits; tests compare them.
enum class Processor { kThis, kAny };

// Writes to `out[0, count)` the sum (or average) over ranks of `contributions[rank][0, count)`.
//
// Terms are added in rank order, whatever order they arrived in, so that the result depends on
// nothing but the inputs: not on the number of lanes, nor on how tensors were grouped. Float16 and
// bfloat16 are summed and divided in float32 and rounded once. `out` may be one of the
// contributions. No pointer needs to be aligned.
//
// A NaN among the terms makes the result a NaN. If two or more terms are NaNs, the result has the
// payload and the sign of one of them. Float16 keeps the sign of a NaN alone.
void ReduceBlock(ElementType type, Reduction reduction,
                 const std::vector<const void*>& contributions, size_t count, void* out,
                 Processor processor = Processor::kThis);

// Writes to `out` the elements of `in` divided by `divisor`, as ReduceBlock divides a sum.
void Divide(ElementType type, int divisor, const void* in, size_t count, void* out);

// ReduceBlock of float16 or bfloat16 in two levels (grid.h): sums in float32, and their sum,
// divided by `num_terms` for an average, rounded once.
void SumInFloat32(ElementType type, const std::vector<const void*>& contributions, size_t count,
                  float* out);
void RoundFromFloat32(ElementType type, Reduction reduction, int num_terms, const float* sums,
                      size_t count, void* out);

// Adds to `errors[0, count)` what rounding has lost of `sums`, times `factor`: the sum less
// `num_terms` times the rounded element, and nothing where one of both is not finite.
void AddRoundingErrors(ElementType type, const float* sums, const void* rounded, size_t count,
                       int num_terms, float factor, float* errors);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ELEMENT_H_
