// One side of a message between two ranks (messenger.h), and what of it waits for too long.
#ifndef TF_LIBRA_OPS_LANES_MESSAGE_TRANSFER_H_
#define TF_LIBRA_OPS_LANES_MESSAGE_TRANSFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "ops/lanes/clock.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Those of one key and one direction meet in the order in which they were posted.
struct Transfer {
  enum class Way { kSend, kReceive };

  Way way = Way::kSend;
  int peer = 0;
  std::string key;       // a letter for the kind of message, then its name
  std::string content;   // as "float32 [8, 16]": the same on both sides
  char* data = nullptr;  // of `num_bytes`, alive until `done` is called
  size_t num_bytes = 0;
  // Bytes from the beginning that may move now, and later as many as Messenger::Release says: data
  // of a send that is there, room of a receive. A send with none keeps its place.
  size_t num_ready = SIZE_MAX;
  // The most bytes that the receiver has room for before it releases more: the same on both sides.
  size_t window = SIZE_MAX;
  // `data` of a receive is a ring of so many bytes.
  size_t ring_bytes = SIZE_MAX;
  // The receiver uses the bytes where they lie in shared memory, if the two ranks share any: the
  // same on both sides. It reports their use by Messenger::Consume. Bytes behind which those of
  // another such transfer may come are copied to `data` instead.
  bool in_place = false;
  // Called by the messenger's thread when bytes of a receive have come, with their number in total.
  std::function<void(size_t num_moved)> on_progress;
  std::function<void(const Status&)> done;  // exactly once, from any thread; none from then on

  std::string name() const { return key.substr(1); }

  // Of the messenger's thread.
  bool is_matched = false;  // of a send: the receiver has requested it
  bool is_queued = false;   // of a send: its next bytes are to go out
  uint64_t asked_as = 0;    // the receiver's id
  // Of a send: bytes from the beginning that the receiver has room for.
  size_t credit = SIZE_MAX;
  size_t num_moved = 0;
  // Of a receive: the bytes in `data`, or consumed. Those from here to num_moved lie at `in_ring`.
  size_t num_taken = 0;
  const char* in_ring = nullptr;
  size_t num_consumed = 0;  // by Messenger::Consume
  TimePoint last_progress;
  bool warned = false;

  // What may move now, once both sides have met.
  size_t num_movable() const { return std::min({num_ready, credit, num_bytes}) - num_moved; }
  // Where the next byte stands, and how many follow it there.
  char* here() const { return data + num_moved % ring_bytes; }
  size_t num_here() const { return ring_bytes - num_moved % ring_bytes; }
  // The same of a byte that has come and is not consumed.
  const char* at(size_t index) const {
    return index < num_taken ? data + index % ring_bytes : in_ring + (index - num_taken);
  }
  size_t num_at(size_t index) const {
    if (index >= num_taken) return num_moved - index;
    return std::min(num_taken - index, ring_bytes - index % ring_bytes);
  }
};

using TransferPtr = std::shared_ptr<Transfer>;

// InvalidArgument: its peer is no other rank, or its texts cannot go over a connection.
Status CheckTransfer(const Transfer& transfer, int rank, int world_size);

// Which transfers have made no progress for too long, those first that have waited longest.
struct Waits {
  std::vector<const Transfer*> overdue;  // for `timeout_seconds`
  std::vector<const Transfer*> late;     // for `warning_seconds`, and not warned about before
  double next_look_seconds = 0;          // when there may be more
};

// Those that are late are noted as warned about. A `warning_seconds` of no less than the timeout
// warns of none. A transfer that has moved all its ready bytes does not wait for its peer.
Waits LookForWaits(const std::unordered_set<TransferPtr>& transfers, TimePoint now,
                   double timeout_seconds, double warning_seconds);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESSAGE_TRANSFER_H_
