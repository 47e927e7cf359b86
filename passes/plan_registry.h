// Plans that Python registers with the pass library; read-only once registered.

#ifndef TF_LIBRA_PASSES_PLAN_REGISTRY_H_
#define TF_LIBRA_PASSES_PLAN_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tf_libra {

inline constexpr int64_t kWholeTensor = -1;

// One tensor group: the tensors of one all-reduce, and its threads.
struct PlanGroup {
  std::vector<std::string> tensor_names;  // backward order
  int num_threads = 1;
  int stream = 0;
  // Byte of each tensor at which its part begins; kWholeTensor for a whole tensor. A part ends at
  // the next part or at the end of the tensor. Empty if all tensors are whole.
  std::vector<int64_t> part_starts = {};
};

// The weights of one all-gather, by the names of their gradients.
struct GatherGroup {
  std::vector<std::string> tensor_names;
  int num_threads = 1;
};

struct RegisteredPlan {
  std::string id;
  std::string digest;
  std::vector<PlanGroup> groups;  // in the order of their start
  // No group starts before every gradient has been produced.
  bool after_backward = false;
  // The dtype to which ranks round float32 tensors on their way; empty for the tensors' own.
  std::string wire_dtype = {};
  // Gathers of sharded updates, in forward order. Empty: by the groups of the all-reduces.
  std::vector<GatherGroup> gathers = {};
};

// Returns InvalidArgument with the field, its value and the allowed values.
absl::Status ValidatePlan(const RegisteredPlan& plan);

// Thread-safe map from plan id to plan.
class PlanRegistry {
 public:
  // The registry of this process: the C functions write it, the pass reads it.
  static PlanRegistry& Global();

  // Registering the same id and digest again increments a count; another digest under the same id
  // is AlreadyExists.
  absl::Status Register(RegisteredPlan plan);
  // Undoes one Register; sets `last` if that deleted the plan. Returns NotFound for an unregistered
  // id. A caller that shares the plan may continue to use it.
  absl::Status Unregister(const std::string& id, bool* last);
  // Returns null for an unregistered id.
  std::shared_ptr<const RegisteredPlan> Find(const std::string& id) const;

 private:
  mutable std::mutex mutex_;
  struct Entry {
    std::shared_ptr<const RegisteredPlan> plan;
    int count;  // calls of Register without Unregister
  };
  std::map<std::string, Entry> plans_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_PLAN_REGISTRY_H_
