// Blocks of zeros in shared memory: a writer marks them in the ring, and copies the others.
//
// What a range of bytes takes in a ring does not depend on its blocks: a marked one has room there
// too, whose bytes mean nothing. So positions, waits and wakes are those of all bytes. Blocks are
// counted from the beginning of the range, and only whole ones are marked. A writer sets the mark
// of each whole block before it publishes the block's first byte, and marks as zeros what it
// publishes in one go.
#ifndef TF_LIBRA_OPS_LANES_ZERO_MARKS_H_
#define TF_LIBRA_OPS_LANES_ZERO_MARKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/lanes/shared_memory.h"

namespace tf_libra {

// The range of `num_bytes` whose byte `moved` is at the position of a ring's end.
struct MarkedRange {
  const RingEnd* ring;
  size_t num_bytes;
  size_t moved;

  // Returns the mark of the block that contains the byte at `at`; nullptr if the range has only a
  // part of it.
  uint8_t* mark(size_t at) const {
    const size_t begin = at - at % kMarkedBlockBytes;
    if (begin + kMarkedBlockBytes > num_bytes) return nullptr;
    return ring->mark(ring->position() + begin - moved);
  }
  // Returns, to a reader, whether the block that contains the byte at `at` is marked.
  bool IsMarked(size_t at) const {
    const uint8_t* const found = mark(at);
    return found != nullptr && *found != 0;
  }
};

// Calls `visit(begin, end)` for what [begin, end) has of each block.
template <typename Visit>
void ForEachMarkedBlock(size_t begin, size_t end, Visit visit) {
  for (size_t next; begin < end; begin = next) {
    next = std::min(end, begin - begin % kMarkedBlockBytes + kMarkedBlockBytes);
    visit(begin, next);
  }
}

// Calls `visit(begin, end, zero)` for pieces of [begin, end): runs of blocks for which
// `is_zero(at)` has returned the same. It is called once for each block, in order, with the first
// of its bytes.
template <typename IsZero, typename Visit>
void ForEachPiece(size_t begin, size_t end, IsZero is_zero, Visit visit) {
  bool zero = begin < end && is_zero(begin);
  for (size_t at = begin; begin < end;) {
    at = std::min(end, at - at % kMarkedBlockBytes + kMarkedBlockBytes);
    const bool next = at < end && is_zero(at);
    if (at < end && next == zero) continue;
    visit(begin, at, zero);
    begin = at;
    zero = next;
  }
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ZERO_MARKS_H_
