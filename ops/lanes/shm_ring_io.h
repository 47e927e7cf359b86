// Copies of headers and tensor runs through the rings of shared memory.
#ifndef TF_LIBRA_OPS_LANES_SHM_RING_IO_H_
#define TF_LIBRA_OPS_LANES_SHM_RING_IO_H_

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ops/lanes/buffers.h"
#include "ops/lanes/direct_all_reduce_header.h"
#include "ops/lanes/shared_memory.h"

namespace tf_libra {

enum class Step { kProgress, kBlocked, kFailed };

// Combines the outcomes of two steps.
inline Step Both(Step one, Step other) {
  if (one == Step::kFailed || other == Step::kFailed) return Step::kFailed;
  return one == Step::kProgress ? one : other;
}

// Moves on, and wakes the peer behind the socket if it waits for that.
inline void AdvanceRing(int fd, RingEnd* end, size_t num_bytes) {
  // A socket so full of these that there is no room has woken the peer before.
  if (end->Advance(num_bytes)) send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// As RingEnd::Look. kFailed, here and in all that follows: the other side claims what cannot be.
inline Step LookIntoRing(RingEnd* end, size_t* num_bytes) {
  if (!end->Look(num_bytes)) return Step::kFailed;
  return *num_bytes > 0 ? Step::kProgress : Step::kBlocked;
}

// Copies as much of [*moved, limit) of `range` as there is room for, up to `most`: then the peer
// may go on with it. But for the end at `limit`, it waits for room up to a multiple of `grain`,
// unless the ring is too small for that. `copy` has a run's input, output, position in the ring and
// size.
template <typename Copy>
Step CopyThroughRing(const Buffers& buffers, ByteRange range, size_t limit, size_t most,
                     size_t grain, int fd, RingEnd* end, size_t* moved, Copy copy) {
  if (*moved >= limit) return Step::kBlocked;
  size_t room = 0;
  if (const Step step = LookIntoRing(end, &room); step != Step::kProgress) return step;
  const size_t allowed = std::min({limit - *moved, most, end->capacity() / 4});
  size_t bytes = std::min(room, allowed);
  if (*moved + bytes < limit && allowed >= grain) {
    const size_t beyond = (*moved + bytes) % grain;
    if (beyond >= bytes) return Step::kBlocked;
    bytes -= beyond;
  }
  char* position = end->here();
  const size_t begin = range.begin + *moved;
  buffers.ForEachRun({begin, begin + bytes}, [&](const char* input, char* output, size_t size) {
    copy(input, output, position, size);
    position += size;
    return true;
  });
  *moved += bytes;
  AdvanceRing(fd, end, bytes);
  return Step::kProgress;
}

// Bytes of a stream: as much of `runs` as there is room for, or is there, up to `most`.
inline Step StreamThroughRing(const iovec* runs, size_t num_runs, bool sends, size_t most, int fd,
                              RingEnd* end, size_t* moved) {
  size_t there = 0;
  *moved = 0;
  if (const Step step = LookIntoRing(end, &there); step != Step::kProgress) return step;
  there = std::min({there, most, end->capacity() / 4});
  for (size_t i = 0; i < num_runs && *moved < there; ++i) {
    const size_t size = std::min(runs[i].iov_len, there - *moved);
    if (size == 0) continue;  // its memory may be none
    char* const position = end->here() + *moved;
    std::memcpy(sends ? position : runs[i].iov_base, sends ? runs[i].iov_base : position, size);
    *moved += size;
  }
  AdvanceRing(fd, end, *moved);
  return Step::kProgress;
}

// Moves all of a header in one step, if there is room for it, or all of it is there. `copy` has its
// position. The caller wakes the peer, together with what follows the header: see AdvanceRing.
template <typename Copy>
Step MoveHeaderThroughRing(RingEnd* end, size_t* moved, Copy copy) {
  const size_t size = BytesToHeaderEnd(end->position());
  size_t room = 0;
  if (LookIntoRing(end, &room) == Step::kFailed) return Step::kFailed;
  if (room < size) return Step::kBlocked;
  copy(end->here() + size - kHeaderRoom);
  end->AdvanceAhead(size);
  *moved = sizeof(ExchangeHeader);
  return Step::kProgress;
}

// Requests to be woken when `left`, or what is worth it, is in the ring, or has room there: fewer
// turns between the ranks are fewer calls. A rank that waits for room has left half a ring, hence a
// block, for the other side to go on with, so the two ranks never wait for each other. kProgress:
// there is so much now.
inline Step AwaitRing(RingEnd* end, size_t left) {
  if (left == 0) return Step::kBlocked;
  const size_t awaited = std::min(left, end->capacity() / 2);
  end->Await(awaited);
  size_t there = 0;
  if (LookIntoRing(end, &there) == Step::kFailed) return Step::kFailed;
  return there < awaited ? Step::kBlocked : Step::kProgress;
}

// More than a peer has cause to send between two waits: a byte for each ring that this rank waits
// at.
inline constexpr size_t kMaxWakes = 4096;

// Takes off the socket what has woken this rank: all of it, so that there is room for more. False:
// the peer sends without end.
inline bool TakeWakes(int fd) {
  char bytes[64];
  for (size_t taken = 0; taken < kMaxWakes;) {
    const ssize_t received = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    // An end is found by who watches the connection.
    if (received < static_cast<ssize_t>(sizeof(bytes))) return true;
    taken += static_cast<size_t>(received);
  }
  return false;
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_SHM_RING_IO_H_
