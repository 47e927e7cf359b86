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

// One tensor group: what is reduced together, by how many threads.
struct PlanGroup {
  std::vector<std::string> tensor_names;  // backward order
  int num_threads = 1;
  int stream = 0;
  // At which byte of each tensor its part begins, which ends where the next part or the tensor
  // does; kWholeTensor for whole ones. Empty where all are whole.
  std::vector<int64_t> part_starts = {};
};

struct RegisteredPlan {
  std::string id;
  std::string digest;
  std::vector<PlanGroup> groups;  // in the order in which they are to start
  // No group starts before every gradient has been produced.
  bool after_backward = false;
};

// InvalidArgument naming the field, its value and what is allowed.
absl::Status ValidatePlan(const RegisteredPlan& plan);

// Thread-safe map from plan id to plan.
class PlanRegistry {
 public:
  // The registry of this process: the C functions write it, the pass reads it.
  static PlanRegistry& Global();

  // Registering the same id and digest again counts; another digest under the same id is
  // AlreadyExists.
  absl::Status Register(RegisteredPlan plan);
  // Undoes one Register; `last` says whether the plan is gone now. NotFound for an id that is not
  // registered. A caller that holds the plan may go on using it.
  absl::Status Unregister(const std::string& id, bool* last);
  // Null for an id that is not registered.
  std::shared_ptr<const RegisteredPlan> Find(const std::string& id) const;

 private:
  mutable std::mutex mutex_;
  struct Entry {
    std::shared_ptr<const RegisteredPlan> plan;
    int count;  // of Register without its Unregister
  };
  std::map<std::string, Entry> plans_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_PLAN_REGISTRY_H_
