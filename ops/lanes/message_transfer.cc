#include "ops/lanes/message_transfer.h"

#include <algorithm>
#include <chrono>

#include "ops/lanes/frame.h"
#include "ops/lanes/text.h"

namespace tf_libra {

Status CheckTransfer(const Transfer& transfer, int rank, int world_size) {
  if (transfer.peer < 0 || transfer.peer >= world_size || transfer.peer == rank) {
    return Status(StatusCode::kInvalidArgument,
                  "a message is exchanged with another rank from 0 to " +
                      std::to_string(world_size - 1) + ", got " + std::to_string(transfer.peer) +
                      " for '" + transfer.name() + "' at rank " + std::to_string(rank));
  }
  if (!FitsFrame(transfer.key, transfer.content)) {
    return Status(StatusCode::kInvalidArgument,
                  "a message's name must have characters, no zero byte, and together with what it "
                  "is less than " +
                      std::to_string(Frame::kMaxTextBytes) + " bytes, got '" +
                      CutText(transfer.name(), 100) + "'");
  }
  return Status();
}

StalledTransfers FindStalledTransfers(const std::unordered_set<TransferPtr>& transfers,
                                      TimePoint now, double timeout_seconds,
                                      double warning_seconds) {
  const bool warns = warning_seconds < timeout_seconds;
  StalledTransfers waits;
  double next = timeout_seconds;
  for (const TransferPtr& transfer : transfers) {
    // Then this rank's own data or room is waited for, or bytes of other ranks.
    const bool is_requested = !transfer->is_eager || transfer->is_matched;
    const bool has_moved = transfer->num_moved == transfer->num_ready && is_requested;
    if (has_moved && transfer->num_bytes > 0) continue;
    const bool is_held = transfer->in_place && !transfer->copies && is_requested;
    if (is_held && transfer->num_moved > transfer->num_taken) continue;
    const double silent = std::chrono::duration<double>(now - transfer->last_progress).count();
    if (silent >= timeout_seconds) {
      waits.overdue.push_back(transfer.get());
    } else if (warns && !transfer->warned && silent >= warning_seconds) {
      transfer->warned = true;
      waits.late.push_back(transfer.get());
    }
    const bool to_warn = warns && !transfer->warned;
    next = std::min(next, (to_warn ? warning_seconds : timeout_seconds) - silent);
  }
  for (auto* const found : {&waits.overdue, &waits.late}) {
    std::sort(found->begin(), found->end(), [](const Transfer* one, const Transfer* other) {
      return one->last_progress < other->last_progress;
    });
  }
  waits.next_check_seconds = std::max(next, 1e-3);
  return waits;
}

}  // namespace tf_libra
