// Answers NCCL's questions from the active plan. One per process: NCCL has one in mind, too.
#ifndef TF_LIBRA_OPS_NCCL_TUNER_TUNER_H_
#define TF_LIBRA_OPS_NCCL_TUNER_TUNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/nccl_tuner/channel_plan.h"
#include "ops/nccl_tuner/nccl_abi.h"
#include "ops/nccl_tuner/next_tuner.h"

namespace tf_libra {
namespace nccl {

// Counts NCCL's questions since the process began: in all, applied + passed_over, at any time.
struct Counters {
  int64_t interface_version = 0;  // the newest that a communicator came by; 0: NCCL never came
  int64_t communicators = 0;      // alive
  int64_t asked = 0;
  int64_t applied = 0;
  int64_t passed_over = 0;
  // Why passed over; these add up.
  int64_t no_plan = 0;
  int64_t other_collective = 0;    // no all-reduce
  int64_t other_communicator = 0;  // of another number of ranks than the plan's
  int64_t unknown_size = 0;        // the plan has no all-reduce of this size
  // Some of the requests that were left to NCCL.
  int64_t forwarded = 0;  // to the next tuner
  // Some of the requests that got the plan's channels.
  int64_t out_of_order = 0;  // not the one that was next
  int64_t without_ring = 0;  // a ring was wanted, and NCCL offered none
};

// One per NCCL communicator. Its position in the step depends only on NCCL's questions to it, the
// plan and BeginStep, all of which are the same on every rank. So the answers are the same, and
// must be: ranks with different channels for one collective would wait forever.
struct Communicator {
  size_t num_ranks = 0;
  size_t position = 0;  // of the all-reduce that is next
  uint64_t epoch = 0;   // in which `position` holds
  NextCommunicator next;
};

// Thread-safe.
class Tuner {
 public:
  // Never destroyed: NCCL may finalize communicators while the process exits.
  static Tuner& Instance();

  // Takes effect with the next question, whole; null takes the plan out of force. All ranks call it
  // between the same two steps.
  void SetPlan(std::shared_ptr<const ChannelPlan> plan);
  // The next all-reduce of every communicator is looked for from the plan's beginning: what brings
  // the order back after a step that was cut short.
  void BeginStep();

  Counters counters() const;
  // Returns how often each all-reduce of the active plan was applied.
  std::vector<int64_t> applied() const;

  Communicator* NewCommunicator(int interface_version, size_t num_ranks,
                                const NextCommunicator& next = {});
  void DeleteCommunicator(Communicator* communicator);

  struct Answer {
    int num_channels = 0;  // 0: leave it to NCCL
    bool prefer_ring = false;
  };
  Answer Ask(Communicator* communicator, Collective collective, uint64_t num_bytes);
  // A question that cannot be answered, because it does not say which communicator asks.
  void PassOver();
  // Counts a request that was forwarded to the next tuner.
  void CountForwarded();
  // A ring was preferred, and not there.
  void CountWithoutRing();

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ChannelPlan> plan_;
  std::vector<int64_t> applied_;
  uint64_t epoch_ = 0;
  Counters counters_;
};

}  // namespace nccl
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_NCCL_TUNER_TUNER_H_
