// C interface for Python (ctypes): registers plans with the pass and reads its reports. Returned
// texts live until the same thread calls again. No function throws.
#ifndef TF_LIBRA_PASSES_C_API_H_
#define TF_LIBRA_PASSES_C_API_H_

#ifdef __cplusplus
extern "C" {
#endif

// Registers a plan. `group_sizes` are tensors per group; `tensor_names` is flat, in backward
// order, and holds sum(group_sizes) names; so does `part_starts`, at which byte of each tensor the
// group's part of it begins, -1 where the group has all of it. The same id and digest again only
// counts; another digest under a registered id is an error. Returns 0, else the reason is in
// TfLibraLastPlanError.
int TfLibraRegisterPlan(const char* plan_id, const char* digest, int num_groups,
                        const int* group_sizes, const int* group_threads, const int* group_streams,
                        const char* const* tensor_names, const long long* part_starts,
                        int after_backward);

// Undoes one TfLibraRegisterPlan. With the last the plan is forgotten, and what was reported about
// it; Grappler, where it is just at a graph under the plan, finishes by it. Non-zero if the plan is
// not registered.
int TfLibraUnregisterPlan(const char* plan_id);

// Why the last of the calls above failed in this thread; empty if it did not.
const char* TfLibraLastPlanError();

// JSON text of what the pass last did with this plan, per graph, see RewriteReports::ToJson. Null,
// with the reason in TfLibraLastPlanError, where memory ran out.
const char* TfLibraRewriteReport(const char* plan_id);

#ifdef __cplusplus
}
#endif

#endif  // TF_LIBRA_PASSES_C_API_H_
