// Header that two ranks compare on a lane's connection before they exchange data.
#ifndef TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_HEADER_H_
#define TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tf_libra {

// Precedes the payload on every connection of a lane and is compared before any of it is used.
struct ExchangeHeader {
  uint64_t magic = 0x3141525f4942494cu;
  uint64_t sequence = 0;  // counts the all-reduces of this engine
  uint64_t digest = 0;    // of tensor names and sizes, plan, group, reduction
  uint64_t num_bytes = 0;
  int32_t group = -1;
  uint16_t num_threads = 0;
  uint8_t element_type = 0;  // of what travels
  uint8_t reduction = 0;
  int64_t step = -1;  // of the training function, -1 before the first
};
static_assert(sizeof(ExchangeHeader) == 48, "the header goes over the wire as it is");
// In shared memory it stands in this many bytes, at a multiple of them: so what follows lies as
// every type of elements wants it.
inline constexpr size_t kHeaderRoom = 64;
// From `position` of a ring to the end of the header that comes next.
inline constexpr size_t BytesToHeaderEnd(uint64_t position) {
  return (kHeaderRoom - position % kHeaderRoom) % kHeaderRoom + kHeaderRoom;
}

// Describes how another rank's exchange differs from this rank's, as in "rank 1 ..."; "" if both
// agree.
std::string DifferenceOf(const ExchangeHeader& theirs, const ExchangeHeader& mine);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_HEADER_H_
