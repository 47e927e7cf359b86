// Functions by which Python controls the tuner, in the process in which NCCL has loaded it.
#ifndef TF_LIBRA_OPS_NCCL_TUNER_C_API_H_
#define TF_LIBRA_OPS_NCCL_TUNER_C_API_H_

#include <stdint.h>

#define TF_LIBRA_TUNER_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Fields in the order of tf_libra::nccl::Counters, which documents them.
typedef struct {
  int64_t interface_version;
  int64_t communicators;
  int64_t asked;
  int64_t applied;
  int64_t passed_over;
  int64_t no_plan;
  int64_t other_collective;
  int64_t other_communicator;
  int64_t unknown_size;
  int64_t forwarded;
  int64_t out_of_order;
  int64_t without_ring;
} TfLibraTunerCounts;

// Activates a plan for communicators of `num_ranks`: the all-reduces of one step in order. Each
// is known by `num_bytes` or `padded_bytes`. Returns 0; 1 on bad input; or 2 on any other failure,
// such as a lack of memory. A call that fails changes nothing, and TfLibraTunerLastError has the
// reason.
TF_LIBRA_TUNER_EXPORT int TfLibraTunerSetPlan(int num_ranks, int prefer_ring, int num_all_reduces,
                                              const uint64_t* num_bytes,
                                              const uint64_t* padded_bytes,
                                              const int* num_channels);
// Leaves everything to NCCL again. Returns as TfLibraTunerSetPlan.
TF_LIBRA_TUNER_EXPORT int TfLibraTunerClearPlan(void);
// The next all-reduce is looked for from the beginning of the plan. Returns as TfLibraTunerSetPlan.
TF_LIBRA_TUNER_EXPORT int TfLibraTunerBeginStep(void);

// Returns as TfLibraTunerSetPlan.
TF_LIBRA_TUNER_EXPORT int TfLibraTunerReadCounts(TfLibraTunerCounts* counts);
// Reads how often each all-reduce of the plan was applied, at most `capacity` of them. Returns the
// number of all-reduces of the plan, or -1 on a failure.
TF_LIBRA_TUNER_EXPORT int TfLibraTunerReadApplied(int64_t* applied, int capacity);

// The reason of the last call in this thread that failed.
TF_LIBRA_TUNER_EXPORT const char* TfLibraTunerLastError(void);

#ifdef __cplusplus
}
#endif

#endif  // TF_LIBRA_OPS_NCCL_TUNER_C_API_H_
