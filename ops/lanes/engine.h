// What executes an all-reduce. Kernels know this interface and nothing behind it.
#ifndef TF_LIBRA_OPS_LANES_ENGINE_H_
#define TF_LIBRA_OPS_LANES_ENGINE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/lanes/buffers.h"
#include "ops/lanes/element.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/status.h"
#include "ops/lanes/telemetry.h"

namespace tf_libra {

struct AllReduceRequest {
  std::shared_ptr<const OperationInfo> operation;
  ElementType element_type = ElementType::kFloat32;
  std::vector<TensorView> tensors;  // alive until `done` is called
  std::function<void(const Status&)> done;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The largest `first_lane + num_threads` that an operation may ask for.
  virtual int max_threads() const = 0;
  // How long anything that involves other ranks may take.
  virtual double timeout_seconds() const = 0;

  // Returns at once; `done` is called exactly once, from any thread. All-reduces that share a lane
  // run one after the other in the order of these calls, which must be the same on every rank; the
  // others run at once. After a failure every call ends with the first cause. What `done` throws is
  // a failure, too.
  virtual void AllReduce(AllReduceRequest request) noexcept = 0;

  // Small messages, in the same order on every rank. See ControlPlane.
  virtual Status AllGather(const std::string& mine, std::vector<std::string>* all) = 0;
  virtual Status Broadcast(int root, std::string* message) = 0;

  // Connects more lanes, so that there are `meeting.num_lanes`: on every rank at the same place
  // among these messages, while all-reduces go on. `meeting` has addresses and a secret for this
  // alone.
  virtual Status Grow(MeshOptions meeting, Socket listener) noexcept = 0;

  // Ends all work here and tells every peer why. Idempotent: the first reason stays.
  virtual void Abort(const Status& reason) noexcept = 0;

  // Number that telemetry and messages give to what follows.
  virtual void SetStep(int64_t step) = 0;
  virtual Telemetry* telemetry() = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ENGINE_H_
