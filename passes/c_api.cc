#include "passes/c_api.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"

namespace {

std::string& LastError() {
  thread_local std::string error;
  return error;
}

int Finish(const absl::Status& status) {
  LastError() = std::string(status.message());
  return status.ok() ? 0 : 1;
}

int Fail(const char* message) { return Finish(absl::InvalidArgumentError(message)); }

}  // namespace

extern "C" {

int TfLibraRegisterPlan(const char* plan_id, const char* digest, int num_groups,
                        const int* group_sizes, const int* group_threads, const int* group_streams,
                        const char* const* tensor_names, int after_backward) {
  if (plan_id == nullptr) return Fail("plan_id is null");
  if (digest == nullptr) return Fail("digest is null");
  if (num_groups < 1) return Fail("num_groups is less than 1, must be at least 1");
  if (group_sizes == nullptr) return Fail("group_sizes is null");
  if (group_threads == nullptr) return Fail("group_threads is null");
  if (group_streams == nullptr) return Fail("group_streams is null");
  if (tensor_names == nullptr) return Fail("tensor_names is null");
  tf_libra::RegisteredPlan plan;
  plan.id = plan_id;
  plan.digest = digest;
  plan.after_backward = after_backward != 0;
  const char* const* next_name = tensor_names;
  for (int k = 0; k < num_groups; ++k) {
    tf_libra::PlanGroup group;
    group.num_threads = group_threads[k];
    group.stream = group_streams[k];
    for (int i = 0; i < group_sizes[k]; ++i, ++next_name) {
      if (*next_name == nullptr) return Fail("tensor_names holds fewer names than group_sizes say");
      group.tensor_names.emplace_back(*next_name);
    }
    plan.groups.push_back(std::move(group));
  }
  return Finish(tf_libra::PlanRegistry::Global().Register(std::move(plan)));
}

int TfLibraUnregisterPlan(const char* plan_id) {
  if (plan_id == nullptr) return Fail("plan_id is null");
  tf_libra::RewriteReports::Global().Erase(plan_id);
  return Finish(tf_libra::PlanRegistry::Global().Unregister(plan_id));
}

const char* TfLibraLastPlanError() { return LastError().c_str(); }

const char* TfLibraRewriteReport(const char* plan_id) {
  thread_local std::string report;
  report = tf_libra::RewriteReports::Global().ToJson(plan_id == nullptr ? "" : plan_id);
  return report.c_str();
}

}  // extern "C"
