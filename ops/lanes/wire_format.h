// All-reduce of float32 tensors that travel in 16 bits per element.
//
// A rank rounds its elements to the wire type. The owner of a chunk adds the rounded elements of
// all ranks, its own among them, in float32 and in rank order, rounds the result once, and every
// rank, the owner included, takes those 16 bits. So ranks have equal bits, and the result does not
// depend on which rank owns an element. On a grid (grid.h) each level does so: the sum of a row is
// rounded before it goes to other rows, so no link carries more than 16 bits per element.
//
// With error feedback a rank adds to its elements the errors of its last such all-reduce, before it
// rounds them: of its own elements, and of the sums that it has rounded as their owner. So what
// ranks have received and what their errors hold is, together, all that they were given, but for
// roundings to float32. An element that is not finite leaves no error.
//
// Rounding is to nearest, ties to even. A NaN stays a NaN and an infinity an infinity. In float16
// what is too large becomes an infinity, and what is below its normal range loses digits.
#ifndef TF_LIBRA_OPS_LANES_WIRE_FORMAT_H_
#define TF_LIBRA_OPS_LANES_WIRE_FORMAT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/element.h"
#include "ops/lanes/grid.h"

namespace tf_libra {

// The wire type of this name; nullopt for another.
std::optional<ElementType> WireTypeOf(const std::string& name);

// Memory that a lane keeps between all-reduces.
struct WireScratch {
  std::vector<char> blocks;       // RunExchange's
  std::vector<uint16_t> rounded;  // a slice in the wire type
  std::vector<float> errors;      // of that slice, with error feedback
};

// As RunOnGrid, of float32 buffers whose elements travel as `options.header.element_type`, float16
// or bfloat16. `options.slice` is of the buffers, and of `errors`, which are as large with error
// feedback and else empty. They change if the exchange succeeds.
ExchangeResult RunInWireFormat(ExchangeOptions options, const Buffers& errors, const Grid& grid,
                               const GridPeers& peers, WireScratch* scratch);

// Returns the seconds that this thread needs to round a byte of float32 to `type`, and back.
double RoundingSeconds(ElementType type, bool error_feedback);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_WIRE_FORMAT_H_
