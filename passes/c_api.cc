#include "passes/c_api.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/update_sharding.h"

namespace {

// The reason for the last failure in this thread. Setting it throws nothing.
class LastError {
 public:
  static LastError& OfThisThread() {
    thread_local LastError error;
    return error;
  }

  void Set(absl::string_view text) noexcept {
    try {
      text_.assign(text.data(), text.size());
      is_lost_ = false;
    } catch (...) {
      is_lost_ = true;
    }
  }

  const char* Get() const { return is_lost_ ? "out of memory" : text_.c_str(); }

 private:
  std::string text_;
  bool is_lost_ = false;
};

// Calls `work` and catches its exceptions, since the caller is C. Returns 0, or 1 and keeps the
// reason.
template <typename Work>
int Guarded(Work work) noexcept {
  try {
    const absl::Status status = work();
    LastError::OfThisThread().Set(status.message());
    return status.ok() ? 0 : 1;
  } catch (const std::bad_alloc&) {
    LastError::OfThisThread().Set("out of memory");
  } catch (const std::exception& error) {
    LastError::OfThisThread().Set(error.what());
  } catch (...) {
    LastError::OfThisThread().Set("something was thrown that is no std::exception");
  }
  return 1;
}

absl::Status Register(const char* plan_id, const char* digest, int num_groups,
                      const int* group_sizes, const int* group_threads, const int* group_streams,
                      const char* const* tensor_names, const long long* part_starts,
                      int after_backward, const char* wire_dtype, int num_gathers,
                      const int* gather_sizes, const int* gather_threads,
                      const char* const* gather_names) {
  const auto refuse = [](const char* reason) { return absl::InvalidArgumentError(reason); };
  if (plan_id == nullptr) return refuse("plan_id is null");
  if (digest == nullptr) return refuse("digest is null");
  if (num_groups < 1) return refuse("num_groups is less than 1, must be at least 1");
  if (group_sizes == nullptr) return refuse("group_sizes is null");
  if (group_threads == nullptr) return refuse("group_threads is null");
  if (group_streams == nullptr) return refuse("group_streams is null");
  if (tensor_names == nullptr) return refuse("tensor_names is null");
  if (part_starts == nullptr) return refuse("part_starts is null");
  if (wire_dtype == nullptr) return refuse("wire_dtype is null");
  if (num_gathers < 0) return refuse("num_gathers is less than 0, must be at least 0");
  if (gather_sizes == nullptr) return refuse("gather_sizes is null");
  if (gather_threads == nullptr) return refuse("gather_threads is null");
  if (gather_names == nullptr) return refuse("gather_names is null");
  tf_libra::RegisteredPlan plan;
  plan.id = plan_id;
  plan.digest = digest;
  plan.after_backward = after_backward != 0;
  plan.wire_dtype = wire_dtype;
  const char* const* next_name = tensor_names;
  for (int k = 0; k < num_groups; ++k) {
    tf_libra::PlanGroup group;
    group.num_threads = group_threads[k];
    group.stream = group_streams[k];
    for (int i = 0; i < group_sizes[k]; ++i, ++next_name) {
      if (*next_name == nullptr) {
        return refuse("tensor_names holds fewer names than group_sizes say");
      }
      group.tensor_names.emplace_back(*next_name);
      group.part_starts.push_back(*part_starts++);
    }
    plan.groups.push_back(std::move(group));
  }
  next_name = gather_names;
  for (int k = 0; k < num_gathers; ++k) {
    tf_libra::GatherGroup gather;
    gather.num_threads = gather_threads[k];
    for (int i = 0; i < gather_sizes[k]; ++i, ++next_name) {
      if (*next_name == nullptr) {
        return refuse("gather_names holds fewer names than gather_sizes say");
      }
      gather.tensor_names.emplace_back(*next_name);
    }
    plan.gathers.push_back(std::move(gather));
  }
  return tf_libra::PlanRegistry::Global().Register(std::move(plan));
}

}  // namespace

extern "C" {

int TfLibraRegisterPlan(const char* plan_id, const char* digest, int num_groups,
                        const int* group_sizes, const int* group_threads, const int* group_streams,
                        const char* const* tensor_names, const long long* part_starts,
                        int after_backward, const char* wire_dtype, int num_gathers,
                        const int* gather_sizes, const int* gather_threads,
                        const char* const* gather_names) {
  return Guarded([&] {
    return Register(plan_id, digest, num_groups, group_sizes, group_threads, group_streams,
                    tensor_names, part_starts, after_backward, wire_dtype, num_gathers,
                    gather_sizes, gather_threads, gather_names);
  });
}

int TfLibraUnregisterPlan(const char* plan_id) {
  return Guarded([&]() -> absl::Status {
    if (plan_id == nullptr) return absl::InvalidArgumentError("plan_id is null");
    // All that needs memory comes first: what follows is done as a whole.
    const std::string id = plan_id;
    bool last = false;
    absl::Status status = tf_libra::PlanRegistry::Global().Unregister(id, &last);
    if (last) tf_libra::RewriteReports::Global().Erase(id);
    return status;
  });
}

int TfLibraRegisterSharding(const char* id, int num_gradients, const char* const* names,
                            const long long* num_elements, int num_slots, const int* slots,
                            int overlaps_calls) {
  return Guarded([&]() -> absl::Status {
    if (id == nullptr) return absl::InvalidArgumentError("id is null");
    tf_libra::UpdateSharding sharding;
    for (int i = 0; i < num_gradients; ++i) sharding.num_elements[names[i]] = num_elements[i];
    sharding.slots.insert(slots, slots + num_slots);
    sharding.overlaps_calls = overlaps_calls != 0;
    tf_libra::UpdateShardings::Global().Register(id, std::move(sharding));
    return absl::OkStatus();
  });
}

const char* TfLibraLastPlanError() { return LastError::OfThisThread().Get(); }

const char* TfLibraRewriteReport(const char* plan_id) {
  thread_local std::string report;
  const int code = Guarded([&] {
    report = tf_libra::RewriteReports::Global().ToJson(plan_id == nullptr ? "" : plan_id);
    return absl::OkStatus();
  });
  return code == 0 ? report.c_str() : nullptr;
}

}  // extern "C"
