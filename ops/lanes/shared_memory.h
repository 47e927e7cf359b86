// Memory that two ranks of one host have both mapped: two rings of bytes in each direction. Its
// file was passed over a Unix socket and has no name, so killed processes leave nothing behind.
// The socket wakes the other side and detects its end.
#ifndef TF_LIBRA_OPS_LANES_SHARED_MEMORY_H_
#define TF_LIBRA_OPS_LANES_SHARED_MEMORY_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// State of a ring that both sides share; positions count all bytes since its beginning.
struct RingState {
  // Value of `wanted_...` while no rank waits.
  static constexpr uint64_t kNever = UINT64_MAX;

  alignas(64) std::atomic<uint64_t> written;  // by the writer
  std::atomic<uint64_t> wanted_read;          // where it waits: to be woken once so much is read
  alignas(64) std::atomic<uint64_t> read;     // by the reader
  std::atomic<uint64_t> wanted_written;
};
static_assert(sizeof(RingState) == 128, "both sides see the same layout");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "works between processes");

// Size of a zero block, which a writer marks instead of copying it (zero_marks.h).
inline constexpr size_t kMarkedBlockBytes = 4096;

// The end of a ring at which this process reads, or writes. What is known of this end is kept here;
// what the other side says is read once and checked before it is used: another process may write
// anything at any time. For one thread at a time.
class RingEnd {
 public:
  // `bytes` is mapped twice in a row, so that whatever is in the ring lies in one piece.
  RingEnd(bool reads, RingState* state, uint8_t* marks, char* bytes, size_t capacity);
  // Returns the number of marks. Blocks that are not read yet begin in the last
  // kMarkedBlockBytes - 1 bytes before the reader's position, or in the `capacity` bytes from there
  // on. In each kMarkedBlockBytes of positions at most one begins.
  static constexpr size_t NumMarks(size_t capacity) { return capacity / kMarkedBlockBytes + 2; }

  size_t capacity() const { return capacity_; }
  uint64_t position() const { return position_; }

  // The bytes that can be read here, or written; from `here` on. False: the other side claims what
  // cannot be: more than there is room for, or less than before.
  bool Look(size_t* num_bytes);
  // Returns whether the other side has claimed another position since the last call, or since Look.
  bool HasMoved();
  char* here() const { return bytes_ + position_ % capacity_; }
  // Returns the mark of the block that begins at `position`. No other block has it before the last
  // byte of this one is read.
  uint8_t* mark(uint64_t position) const {
    return marks_ + position / kMarkedBlockBytes % NumMarks(capacity_);
  }
  // Marks bytes as read or written. Returns true if the other side waits for them and must be
  // woken.
  [[nodiscard]] bool Advance(size_t num_bytes);
  // The same where Advance follows, which tells whether the other side waits for this.
  void AdvanceAhead(size_t num_bytes);
  // From now on the other side wakes this one when Look would say so many; and no more.
  void Await(size_t num_bytes);
  void AwaitNothing();

 private:
  const bool reads_;
  uint8_t* const marks_;
  char* const bytes_;
  const size_t capacity_;
  // State of this end, and of the other: positions, and awaited positions.
  std::atomic<uint64_t>*const mine_, *const theirs_, *const wanted_by_me_, *const wanted_by_them_;
  uint64_t position_ = 0;
  uint64_t seen_ = 0;     // the position of the other side, which never goes back
  uint64_t noticed_ = 0;  // the same, unchecked
};

class SharedMemory {
 public:
  // Rings of `capacity` bytes, a multiple of the system's page. Fails where the system has no such
  // memory, or does not let this process have it; nothing is allocated later. `file` is for the
  // other side, which has to be given it.
  static Status Make(size_t capacity, std::unique_ptr<SharedMemory>* memory, Socket* file);
  // Maps the file of the other side. FailedPrecondition: the file differs from those that Make
  // creates.
  static Status Take(const Socket& file, size_t capacity, std::unique_ptr<SharedMemory>* memory);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Headers and parts, and sums: these are not to wait for those.
  RingEnd* incoming_parts() { return &incoming_parts_; }
  RingEnd* incoming_sums() { return &incoming_sums_; }
  RingEnd* outgoing_parts() { return &outgoing_parts_; }
  RingEnd* outgoing_sums() { return &outgoing_sums_; }
  // On all of them.
  void AwaitNothing();

 private:
  // All that is mapped, in one piece: the state, the marks, and each ring twice.
  SharedMemory(char* base, size_t capacity, bool maker);
  static RingEnd EndOf(int ring, bool reads, char* base, size_t capacity);
  static Status Map(const Socket& file, size_t capacity, bool maker,
                    std::unique_ptr<SharedMemory>* memory);

  char* const base_;
  RingEnd incoming_parts_, incoming_sums_, outgoing_parts_, outgoing_sums_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_SHARED_MEMORY_H_
