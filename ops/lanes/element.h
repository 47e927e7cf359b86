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

// Writes to `out[0, count)` the sum (or average) over ranks of `contributions[rank][0, count)`.
//
// Terms are added in rank order, whatever order they arrived in, so that the result depends on
// nothing but the inputs: not on the number of lanes, nor on how tensors were grouped. Halves are
// summed and divided in float32 and rounded once. `out` may be one of the contributions.
void ReduceBlock(ElementType type, Reduction reduction,
                 const std::vector<const void*>& contributions, size_t count, void* out);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ELEMENT_H_
