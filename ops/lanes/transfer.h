// One side of a message between two ranks (messenger.h), and what of it waits for too long.
#ifndef TF_LIBRA_OPS_LANES_TRANSFER_H_
#define TF_LIBRA_OPS_LANES_TRANSFER_H_

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
  // Of a send: whether the data is there. Until Messenger::Release it only keeps its place.
  bool is_ready = true;
  std::function<void(const Status&)> done;  // exactly once, from any thread; none from then on

  std::string name() const { return key.substr(1); }

  // Of the messenger's thread.
  bool is_matched = false;  // of a send: it was asked for
  uint64_t asked_as = 0;    // the receiver's id
  size_t num_moved = 0;
  TimePoint last_progress;
  bool warned = false;
};

using TransferPtr = std::shared_ptr<Transfer>;

// InvalidArgument: it is with nobody, or its texts are none that go over a connection.
Status CheckTransfer(const Transfer& transfer, int rank, int world_size);

// Which transfers have made no progress for too long, those first that have waited longest.
struct Waits {
  std::vector<const Transfer*> overdue;  // for `timeout_seconds`
  std::vector<const Transfer*> late;     // for `warning_seconds`, and not told so before
  double next_look_seconds = 0;          // when there may be more
};

// Those that are late are noted as warned about. A `warning_seconds` of no less than the timeout
// warns of none; a send without data waits for nobody.
Waits LookForWaits(const std::unordered_set<TransferPtr>& transfers, TimePoint now,
                   double timeout_seconds, double warning_seconds);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_TRANSFER_H_
