// What NCCL and a tuner plugin must agree on, written down for this project: NCCL's headers are not
// needed to build it. Layouts and numbers are those of NCCL's tuner interface, versions 1 to 6;
// names are ours, since only layouts are seen by the other side.
//
// NCCL asks the newest version it knows first. Looked for, by library:
//   2.19, 2.20          v1
//   2.21                v2
//   2.22, 2.23          v3, v2
//   2.24 to 2.27        v4, v3, v2
//   2.28, 2.29          v5 .. v2
//   2.30 to 2.32        v6 .. v2
#ifndef TF_LIBRA_OPS_NCCL_TUNER_NCCL_ABI_H_
#define TF_LIBRA_OPS_NCCL_TUNER_NCCL_ABI_H_

#include <cstddef>
#include <cstdint>

namespace tf_libra {
namespace nccl {

// ncclResult_t. Anything but success ends the collective with an error, so a tuner that has no
// opinion says success and writes nothing.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInternalError = 3;

// ncclFunc_t.
using Collective = int;
constexpr Collective kBroadcast = 0;
constexpr Collective kReduce = 1;
constexpr Collective kAllGather = 2;
constexpr Collective kReduceScatter = 3;
constexpr Collective kAllReduce = 4;

// Rows of the cost table.
constexpr int kTree = 0;
constexpr int kRing = 1;
// Columns of the cost table.
constexpr int kLowLatency = 0;
constexpr int kLowLatency128 = 1;
constexpr int kSimple = 2;
// In a cell: this pair cannot run this collective.
constexpr float kNotOffered = -1.0f;

// ncclDebugLogger_t: level, subsystems, file, line, format, values.
using Log = void (*)(int level, unsigned long subsystems, const char* file, int line,
                     const char* format, ...);
constexpr int kLogInfo = 3;
constexpr unsigned long kLogTuning = 64;

// The cost table is declared `float**` and is none: it points at `num_algorithms` rows of
// `num_protocols` floats, one after the other, in microseconds.
using CostTable = float**;

struct TunerV1 {
  const char* name;
  Result (*init)(size_t num_ranks, size_t num_nodes, Log log);
  Result (*get_coll_info)(Collective collective, size_t num_bytes, int collnet_support,
                          int nvls_support, int num_aggregated, int* algorithm, int* protocol,
                          int* num_channels);
  Result (*destroy)();
};

struct TunerV2 {
  const char* name;
  Result (*init)(size_t num_ranks, size_t num_nodes, Log log, void** context);
  Result (*get_coll_info)(void* context, Collective collective, size_t num_bytes,
                          int collnet_support, int nvls_support, int num_aggregated, int* algorithm,
                          int* protocol, int* num_channels);
  Result (*destroy)(void* context);
};

struct TunerV3 {
  const char* name;
  Result (*init)(size_t num_ranks, size_t num_nodes, Log log, void** context);
  Result (*get_coll_info)(void* context, Collective collective, size_t num_bytes,
                          int num_aggregated, CostTable costs, int num_algorithms,
                          int num_protocols, int* num_channels);
  Result (*destroy)(void* context);
};

struct TunerV4 {
  const char* name;
  Result (*init)(size_t num_ranks, size_t num_nodes, Log log, void** context);
  Result (*get_coll_info)(void* context, Collective collective, size_t num_bytes,
                          int num_aggregated, CostTable costs, int num_algorithms,
                          int num_protocols, int registered_buffers, int* num_channels);
  Result (*destroy)(void* context);
};

// `links` describes NVLink domains, `constants` are those of NCCL's cost model, which a tuner may
// change; this one reads neither. Their layouts are of no concern here.
struct TunerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, size_t num_ranks, size_t num_nodes, Log log,
                 void* links, void* constants);
  Result (*get_coll_info)(void* context, Collective collective, size_t num_bytes,
                          int num_aggregated, CostTable costs, int num_algorithms,
                          int num_protocols, int registered_buffers, int* num_channels);
  Result (*finalize)(void* context);
};

struct TunerV6 {
  const char* name;
  Result (*init)(void** context, uint64_t communicator, size_t num_ranks, size_t num_nodes, Log log,
                 void* links, void* constants);
  Result (*get_coll_info)(void* context, Collective collective, size_t num_bytes,
                          int num_aggregated, CostTable costs, int num_algorithms,
                          int num_protocols, int registered_buffers, int* num_channels);
  Result (*finalize)(void* context);
  // May be null: NCCL then keeps the size it computed.
  Result (*get_chunk_size)(void* context, Collective collective, size_t num_bytes, int algorithm,
                           int protocol, int num_channels, size_t* chunk_size);
};

}  // namespace nccl
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_NCCL_TUNER_NCCL_ABI_H_
