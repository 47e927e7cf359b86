// Interface of the engine that executes all-reduces and moves tensors between ranks. Kernels
// depend on this interface alone.
#ifndef TF_LIBRA_OPS_LANES_ENGINE_H_
#define TF_LIBRA_OPS_LANES_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/lanes/buffers.h"
#include "ops/lanes/collective.h"
#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/element.h"
#include "ops/lanes/error_feedback.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/status.h"
#include "ops/lanes/telemetry.h"

namespace tf_libra {

struct AllReduceRequest {
  std::shared_ptr<const OperationInfo> operation;
  ElementType element_type = ElementType::kFloat32;
  std::vector<TensorView> tensors;  // alive until `done` is called
  // By tensor, of as many elements; empty: nothing is added to what is sent. Read and written if
  // the tensors are rounded on their way, and then only by an all-reduce that succeeds on its lane.
  std::vector<RoundingErrors> errors;
  // [rank]: of one tensor, the bytes that the rank contributes; its input is the own part alone,
  // which is divided by `part_divisor` on its way. Ranks that exchange directly gather these parts
  // if that sends less; else what is outside of them becomes zero, and all is added, whatever the
  // operation's reduction. Empty: ranks contribute whole tensors.
  std::vector<ByteRange> parts;
  int part_divisor = 1;
  // A reduce-scatter or an all-gather moves the parts that ranks own (owned_parts.h). Only ranks
  // that exchange directly do so.
  ExchangeSteps steps = ExchangeSteps::kAll;
  std::function<void(const Status&)> done;
};

// One side of a tensor's way to another rank. Sends and receives of one name between two ranks meet
// in the order of their calls on each side; those of different names in any.
struct MessageRequest {
  int peer = 0;
  std::string name;
  std::string content;   // as "float32 [8, 16]": the same on both sides
  char* data = nullptr;  // of `num_bytes`, alive until `done` is called; what is sent is only read
  size_t num_bytes = 0;
  // A one-sided read: the sender sends when AwaitRead has named it. Without bytes it is a notice,
  // which ends, too, and ends well, if the other rank is gone.
  bool is_read = false;
  std::function<void(const Status&)> done;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The same on all hosts; 0: not known, or hosts differ.
  virtual int ranks_per_host() const = 0;
  // The largest `first_lane + num_threads` that an operation may ask for.
  virtual int max_threads() const = 0;
  // Deadline of every operation that involves other ranks.
  virtual double timeout_seconds() const = 0;

  // Returns immediately; `done` is called exactly once, from any thread. All-reduces that share a
  // lane run one after the other in the order of these calls, which must be the same on every rank;
  // the others run concurrently. After a failure every call ends with the first cause. An exception
  // that `done` throws is a failure, too.
  virtual void AllReduce(AllReduceRequest request) noexcept = 0;

  // As AllReduce, but in any order: messages and collectives wait only for the ranks that take
  // part, and for the data. The end of a send means that its memory is free again. The engine goes
  // on after a call that is rejected with InvalidArgument.
  virtual void Send(MessageRequest request) noexcept = 0;
  virtual void Receive(MessageRequest request) noexcept = 0;
  virtual void Run(CollectiveRequest request) noexcept = 0;
  // Waits at most `seconds` for a rank to begin a Receive `is_read`; returns its rank and name,
  // each once, and rank -1 if there was none.
  virtual Status AwaitRead(double seconds, int* peer, std::string* name) noexcept = 0;
  // Waits for a while, at an end that is a good one, until what was sent has arrived.
  virtual void Flush() noexcept = 0;

  // Small messages, in the same order on every rank. See ControlPlane.
  virtual Status AllGather(const std::string& mine, std::vector<std::string>* all) = 0;
  virtual Status Broadcast(int root, std::string* message) = 0;

  // Connects more lanes, so that there are `meeting.num_lanes`: on every rank at the same place
  // among these messages, while all-reduces go on. `meeting` has addresses and a secret for this
  // alone.
  virtual Status Grow(MeshOptions meeting, Socket listener, Socket local_listener) noexcept = 0;

  // Ends all work here and tells every peer why. Idempotent: the first reason stays.
  virtual void Abort(const Status& reason) noexcept = 0;

  // The step number of later telemetry and messages.
  virtual void SetStep(int64_t step) = 0;
  virtual int64_t step() const = 0;
  // Whether this rank leaves out zeros (zero_blocks.h, zero_marks.h); others read it either way.
  virtual void SetOmitsZeros(bool omits_zeros) = 0;
  virtual Telemetry* telemetry() = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ENGINE_H_
