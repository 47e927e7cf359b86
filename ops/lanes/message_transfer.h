// One side of a message between two ranks (messenger.h), and the detection of stalled transfers.
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

// Transfers of one key and direction match in the order in which they were posted.
struct Transfer {
  enum class Way { kSend, kReceive };
  // First letter of the keys of one-sided reads: a receive of which the sender learns by
  // Messenger::AwaitRead. One without bytes is a notice.
  static constexpr char kRead = 'r';

  Way way = Way::kSend;
  int peer = 0;
  std::string key;       // a letter for the kind of message, then its name
  std::string content;   // as "float32 [8, 16]": the same on both sides
  char* data = nullptr;  // of `num_bytes`, alive until `done` is called
  size_t num_bytes = 0;
  // Bytes from the beginning that may move: data of a send, space of a receive. Messenger::Release
  // raises it. A send without ready bytes keeps its place in the order.
  size_t num_ready = SIZE_MAX;
  // Space of the receiver before it releases more, in bytes: the same on both sides.
  size_t window = SIZE_MAX;
  // Size of `data` of a receive if it is a ring.
  size_t ring_bytes = SIZE_MAX;
  // Goes through a ring of its own in shared memory, if the ranks share any, where its first
  // fragment does not wait for the request; the same on both sides. The receiver reads the bytes
  // there, and reports this by Messenger::Consume. They are copied to `data` if the receive
  // `copies`, or if another transfer `in_place` from the same peer is active.
  bool in_place = false;
  bool copies = false;  // the same on both sides
  // Called on the messenger's thread when bytes of a receive have arrived, with the total number.
  std::function<void(size_t num_moved)> on_progress;
  std::function<void(const Status&)> done;  // exactly once, on any thread

  std::string name() const { return key.substr(1); }
  bool is_read() const { return way == Way::kReceive && key[0] == kRead; }
  // A receive that ends alone, and not the engine, if its peer is gone.
  bool is_notice() const { return is_read() && num_bytes == 0; }

  // For the messenger's thread alone.
  bool is_matched = false;  // of a send: the receiver has requested it
  bool is_queued = false;   // of a send: its next bytes are in the send queue
  uint64_t request_id = 0;  // the receiver's id
  uint64_t offer_id = 0;    // the sender's
  bool is_eager = false;    // of a send: its first bytes do not wait for the receiver's request
  bool is_dropped = false;  // of a send: the receiver drops the fragment that is in the send queue
  // Sends: bytes from the beginning for which the receiver has space.
  size_t credit = SIZE_MAX;
  size_t num_moved = 0;
  // Receives: bytes that are in `data` or consumed. Those up to num_moved lie at `in_ring`.
  size_t num_taken = 0;
  const char* in_ring = nullptr;
  size_t num_consumed = 0;  // by Messenger::Consume
  TimePoint last_progress;
  bool warned = false;

  // Bytes of a matched transfer that may move now.
  size_t num_movable() const { return std::min({num_ready, credit, num_bytes}) - num_moved; }
  // The place of the next byte, and the number of bytes in one piece from there.
  char* here() const { return data + num_moved % ring_bytes; }
  size_t num_here() const { return ring_bytes - num_moved % ring_bytes; }
  // The same for a byte that has arrived and is not consumed.
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

// Transfers without progress; the longest wait is first.
struct StalledTransfers {
  std::vector<const Transfer*> overdue;  // for at least `timeout_seconds`
  std::vector<const Transfer*> late;     // for `warning_seconds`, without a previous warning
  double next_check_seconds = 0;         // until there may be more
};

// Marks late transfers as warned about. There are no warnings if `warning_seconds` is at least the
// timeout. A transfer that has moved all its ready bytes does not wait for its peer.
StalledTransfers FindStalledTransfers(const std::unordered_set<TransferPtr>& transfers,
                                      TimePoint now, double timeout_seconds,
                                      double warning_seconds);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESSAGE_TRANSFER_H_
