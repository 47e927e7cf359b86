// One all-reduce in flight: the data that its lanes exchange, and its telemetry record.
#ifndef TF_LIBRA_OPS_LANES_ALL_REDUCE_JOB_H_
#define TF_LIBRA_OPS_LANES_ALL_REDUCE_JOB_H_

#include <atomic>
#include <cstdint>

#include "ops/lanes/buffers.h"
#include "ops/lanes/clock.h"
#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/lane_queue.h"
#include "ops/lanes/owned_parts.h"
#include "ops/lanes/status.h"
#include "ops/lanes/telemetry.h"

namespace tf_libra {

// InvalidArgument: the operation asks for lanes that are none of so many.
Status CheckLanes(const OperationInfo& operation, int num_lanes);

// Shared by the lanes that work on it.
struct AllReduceJob {
  // All but the request itself, which is taken when nothing may fail any more, and the sequence.
  // `in_two_levels`: its outputs are exchanged in place, too.
  AllReduceJob(const AllReduceRequest& request, int64_t step, const WallClock& wall,
               bool in_two_levels);

  LaneRange range() const { return {record.operation->first_lane, record.operation->num_threads}; }
  // From any lane, with times of the monotonic clock; 0 stands for never. The earliest stays.
  void Began(int64_t nanos);
  void HeardAll(int64_t nanos);
  // Of a lane's part, from any lane.
  void Sent(uint64_t num_bytes, uint64_t num_omitted) {
    num_sent_ += num_bytes;
    num_omitted_ += num_omitted;
  }
  void UsedCores(int64_t nanos) { cpu_nanos_ += nanos; }
  // Its record is whole.
  void Ended();

  AllReduceRequest request;
  Buffers buffers;
  Buffers in_place;     // its outputs, on a grid
  Buffers errors;       // as the request's; empty without error feedback
  ExchangeSteps steps;  // as requested, or of a sum whose parts are gathered
  OwnerLayout owned;    // its parts by owner, if not all steps run
  ExchangeHeader header;
  AllReduceRecord record;  // its times but `enqueued` once it has ended
  WallClock wall;
  std::atomic<int> lanes_left{0};
  std::atomic<bool> warned{false};
  std::atomic<bool> failed{false};  // on a lane, which tells the engine why

 private:
  std::atomic<int64_t> started_nanos_{0};  // SteadyNanos, as the next
  std::atomic<int64_t> first_byte_nanos_{0};
  std::atomic<uint64_t> num_sent_{0};
  std::atomic<uint64_t> num_omitted_{0};
  std::atomic<int64_t> cpu_nanos_{0};
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ALL_REDUCE_JOB_H_
