#include "passes/plan_registry.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tf_libra {

absl::Status ValidatePlan(const RegisteredPlan& plan) {
  if (plan.id.empty()) return absl::InvalidArgumentError("plan id is empty");
  if (plan.groups.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan '", plan.id, "': number of groups is 0, must be at least 1"));
  }
  if (!plan.wire_dtype.empty() && plan.wire_dtype != "float16" && plan.wire_dtype != "bfloat16") {
    return absl::InvalidArgumentError(absl::StrCat("plan '", plan.id, "': wire_dtype is '",
                                                   plan.wire_dtype,
                                                   "', must be empty, 'float16' or 'bfloat16'"));
  }
  std::unordered_map<std::string, int64_t> seen;  // where the last part of each tensor begins
  for (size_t k = 0; k < plan.groups.size(); ++k) {
    const PlanGroup& group = plan.groups[k];
    const std::string where = absl::StrCat("plan '", plan.id, "', group ", k, ": ");
    if (group.tensor_names.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, "has 0 tensors, must have at least 1"));
    }
    if (group.num_threads < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "num_threads is ", group.num_threads, ", must be at least 1"));
    }
    if (group.stream < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "stream is ", group.stream, ", must be at least 0"));
    }
    if (!group.part_starts.empty() && group.part_starts.size() != group.tensor_names.size()) {
      return absl::InvalidArgumentError(absl::StrCat(where, "has ", group.tensor_names.size(),
                                                     " tensors and starts of ",
                                                     group.part_starts.size(), " parts"));
    }
    for (size_t i = 0; i < group.tensor_names.size(); ++i) {
      const std::string& name = group.tensor_names[i];
      if (name.empty()) return absl::InvalidArgumentError(where + "a tensor name is empty");
      const int64_t start = group.part_starts.empty() ? kWholeTensor : group.part_starts[i];
      const auto [last, is_first] = seen.emplace(name, start);
      if (is_first) {
        if (start > 0 || start < kWholeTensor) {
          return absl::InvalidArgumentError(absl::StrCat(
              where, "the first part of '", name, "' begins at ", start, ", must begin at 0"));
        }
        continue;
      }
      if (start == kWholeTensor || last->second == kWholeTensor) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, "tensor name '", name, "' stands in the plan more than once"));
      }
      if (start <= last->second) {
        return absl::InvalidArgumentError(absl::StrCat(where, "a part of '", name, "' begins at ",
                                                       start, ", must begin behind ", last->second,
                                                       ", where the last one does"));
      }
      last->second = start;
    }
  }
  if (plan.gathers.empty()) return absl::OkStatus();
  std::unordered_set<std::string> gathered;
  for (size_t k = 0; k < plan.gathers.size(); ++k) {
    const std::string where = absl::StrCat("plan '", plan.id, "', gather ", k, ": ");
    if (plan.gathers[k].num_threads < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, "num_threads is ", plan.gathers[k].num_threads, ", must be at least 1"));
    }
    for (const std::string& name : plan.gathers[k].tensor_names) {
      if (seen.count(name) == 0 || !gathered.insert(name).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, "tensor name '", name, "' must stand in a group, and in one gather alone"));
      }
    }
  }
  if (gathered.size() != seen.size()) {
    return absl::InvalidArgumentError(absl::StrCat("plan '", plan.id, "': gathers have ",
                                                   gathered.size(), " tensors, must have all ",
                                                   seen.size()));
  }
  return absl::OkStatus();
}

PlanRegistry& PlanRegistry::Global() {
  static PlanRegistry* const registry = new PlanRegistry;
  return *registry;
}

absl::Status PlanRegistry::Register(RegisteredPlan plan) {
  if (absl::Status status = ValidatePlan(plan); !status.ok()) return status;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = plans_.find(plan.id);
  if (found == plans_.end()) {
    auto kept = std::make_shared<const RegisteredPlan>(std::move(plan));
    plans_.emplace(kept->id, Entry{kept, 1});
    return absl::OkStatus();
  }
  if (found->second.plan->digest != plan.digest) {
    return absl::AlreadyExistsError(absl::StrCat("plan '", plan.id, "' is registered with digest '",
                                                 found->second.plan->digest, "', not '",
                                                 plan.digest, "'"));
  }
  ++found->second.count;
  return absl::OkStatus();
}

absl::Status PlanRegistry::Unregister(const std::string& id, bool* last) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = plans_.find(id);
  if (found == plans_.end()) {
    return absl::NotFoundError(absl::StrCat("plan '", id, "' is not registered"));
  }
  *last = --found->second.count == 0;
  if (*last) plans_.erase(found);
  return absl::OkStatus();
}

std::shared_ptr<const RegisteredPlan> PlanRegistry::Find(const std::string& id) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = plans_.find(id);
  return found == plans_.end() ? nullptr : found->second.plan;
}

}  // namespace tf_libra
