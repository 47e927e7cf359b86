// What Python calls, through ctypes, to hand plans to the pass and to read what it did. Texts that
// are returned live until the same thread calls again.
#ifndef TF_LIBRA_PASSES_C_API_H_
#define TF_LIBRA_PASSES_C_API_H_

#ifdef __cplusplus
extern "C" {
#endif

// Registers a plan. `group_sizes` are tensors per group; `tensor_names` is flat, in backward
// order, and holds sum(group_sizes) names. The same id and digest again is a no-op; another digest
// under a registered id is an error. Returns 0, else the reason is in TfLibraLastPlanError.
int TfLibraRegisterPlan(const char* plan_id, const char* digest, int num_groups,
                        const int* group_sizes, const int* group_threads, const int* group_streams,
                        const char* const* tensor_names, int after_backward);

// Forgets the plan and what was reported about it. Non-zero if it was not registered.
int TfLibraUnregisterPlan(const char* plan_id);

// Why the last of the calls above failed in this thread; empty if it did not.
const char* TfLibraLastPlanError();

// JSON text of what the pass last did with this plan, per graph.
const char* TfLibraRewriteReport(const char* plan_id);

#ifdef __cplusplus
}
#endif

#endif  // TF_LIBRA_PASSES_C_API_H_
