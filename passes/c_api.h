// C interface for Python (ctypes): registers plans with the pass and reads its reports. Returned
// texts live until the same thread calls again. No function throws.
#ifndef TF_LIBRA_PASSES_C_API_H_
#define TF_LIBRA_PASSES_C_API_H_

#ifdef __cplusplus
extern "C" {
#endif

// Registers a plan. `group_sizes` are numbers of tensors per group. `tensor_names` is flat, in
// backward order, with sum(group_sizes) names. `part_starts` has as many entries: the byte of each
// tensor at which the group's part begins, or -1 if the group has the whole tensor. `wire_dtype` is
// empty, "float16" or "bfloat16". `gather_sizes` and `gather_threads` are of the groups of
// all-gathers of sharded updates, `gather_names` are their tensors, flat, in forward order; with 0
// of them, weights are gathered by the groups of all-reduces. Registering the same id and digest
// again increments a count; another digest under a registered id is an error. Returns 0 on success;
// otherwise TfLibraLastPlanError has the reason.
int TfLibraRegisterPlan(const char* plan_id, const char* digest, int num_groups,
                        const int* group_sizes, const int* group_threads, const int* group_streams,
                        const char* const* tensor_names, const long long* part_starts,
                        int after_backward, const char* wire_dtype, int num_gathers,
                        const int* gather_sizes, const int* gather_threads,
                        const char* const* gather_names);

// Undoes one TfLibraRegisterPlan. The last call deletes the plan and its reports; a Grappler run
// that uses the plan finishes with it. Returns non-zero if the plan is not registered.
int TfLibraUnregisterPlan(const char* plan_id);

// Registers the element-wise updates of a trace (UpdateSharding): gradients with their numbers of
// elements, the function's arguments that are slots, and whether the last gathers of a graph go on
// after it. Nothing unregisters them; they are small.
int TfLibraRegisterSharding(const char* id, int num_gradients, const char* const* names,
                            const long long* num_elements, int num_slots, const int* slots,
                            int overlaps_calls);

// Returns why the last call above failed in this thread; empty if it succeeded.
const char* TfLibraLastPlanError();

// Returns the last reports on this plan, per graph, as JSON (RewriteReports::ToJson). Returns null,
// with the reason in TfLibraLastPlanError, if memory is exhausted.
const char* TfLibraRewriteReport(const char* plan_id);

#ifdef __cplusplus
}
#endif

#endif  // TF_LIBRA_PASSES_C_API_H_
