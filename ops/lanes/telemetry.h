// Records of all-reduces and gathers: what was reduced, when, and on how many lanes. The number of
// records is bounded; the reader drains them.
#ifndef TF_LIBRA_OPS_LANES_TELEMETRY_H_
#define TF_LIBRA_OPS_LANES_TELEMETRY_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ops/lanes/element.h"

namespace tf_libra {

// Properties that all executions of an operation share.
struct OperationInfo {
  std::string plan;
  std::string function;    // the training function whose gradients these are
  bool is_gather = false;  // of parts that ranks own; else an all-reduce, or a reduce-scatter
  int group = -1;
  int num_threads = 1;
  int first_lane = 0;  // it runs on as many from there
  Reduction reduction = Reduction::kAverage;
  // In which float32 elements travel (wire_format.h); nullopt: in their own.
  std::optional<ElementType> wire_type;
  // Whether ranks add the rounding errors of the wire type to what they send next
  // (error_feedback.h).
  bool error_feedback = false;
  std::vector<std::string> tensor_names;
  // At which byte of each tensor begins the part that is reduced, -1 for whole ones; empty where
  // all are whole.
  std::vector<int64_t> part_starts;
  uint64_t digest = 0;  // of all of the above, the same on every rank

  // Returns the type in which elements of `type` travel between ranks.
  ElementType WireType(ElementType type) const {
    return type == ElementType::kFloat32 ? wire_type.value_or(type) : type;
  }
  bool IsPart(size_t tensor) const { return !part_starts.empty() && part_starts[tensor] >= 0; }
  // Returns whether it has the beginning of a tensor: of the parts of one, one has.
  bool HasBeginning(size_t tensor) const { return !IsPart(tensor) || part_starts[tensor] == 0; }
  void ComputeDigest();
  // "group 2 (conv/kernel, conv/bias, fc/kernel and 3 more) of plan 1a2b in train_step".
  std::string Describe() const;
};

// One executed all-reduce or gather. Times are nanoseconds since the epoch, as by a WallClock.
struct AllReduceRecord {
  std::shared_ptr<const OperationInfo> operation;
  int64_t step = -1;
  uint64_t sequence = 0;
  uint64_t num_bytes = 0;
  // Of all that this rank sends over sockets, or if there are none in memory, in an all-reduce of
  // so many bytes: how many it has sent, and how many it has left out, since they are zeros.
  uint64_t num_sent_bytes = 0;
  uint64_t num_omitted_bytes = 0;
  int64_t cpu_nanos = 0;  // core time of its lanes
  int64_t enqueued_nanos = 0;
  int64_t started_nanos = 0;     // the first lane began
  int64_t first_byte_nanos = 0;  // every peer had sent a first byte: the wait is over
  int64_t finished_nanos = 0;    // the last lane ended
};

class Telemetry {
 public:
  static constexpr size_t kMaxRecords = 65536;

  // Without memory for the record, counts it as lost.
  void Add(const AllReduceRecord& record) noexcept;
  // Takes all records; `dropped` receives how many older ones were lost since the last call.
  std::vector<AllReduceRecord> Drain(uint64_t* dropped);

 private:
  std::mutex mutex_;
  std::deque<AllReduceRecord> records_;
  uint64_t dropped_ = 0;
};

// {"dropped": 0, "operations": {"<digest>": {...}}, "records": [{"operation": "<digest>", ...}]}
std::string TelemetryJson(const std::vector<AllReduceRecord>& records, uint64_t dropped);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_TELEMETRY_H_
