// The symbols that NCCL looks for in a tuner plugin: one table of functions per interface version.
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ops/nccl_tuner/guarded.h"
#include "ops/nccl_tuner/nccl_abi.h"
#include "ops/nccl_tuner/tuner.h"

namespace tf_libra {
namespace nccl {
namespace {

template <typename Body>
Result OrInternalError(Body body) noexcept {
  return Guarded(body, [](const char*) { return kInternalError; });
}

Result NewContext(int version, size_t num_ranks, size_t num_nodes, Log log, void** context) {
  return OrInternalError([&] {
    *context = Tuner::Instance().NewCommunicator(version, num_ranks);
    if (log != nullptr) {
      log(kLogInfo, kLogTuning, __FILE__, __LINE__,
          "TF-Libra's tuner: a communicator of %zu ranks on %zu nodes, interface v%d", num_ranks,
          num_nodes, version);
    }
    return kSuccess;
  });
}

Result DeleteContext(void* context) {
  return OrInternalError([context] {
    if (context != nullptr) {
      Tuner::Instance().DeleteCommunicator(static_cast<Communicator*>(context));
    }
    return kSuccess;
  });
}

// NCCL takes the cheapest pair. Of the ring's protocols that run NCCL_NTHREADS threads per channel
// the cheaper one is made free; LL128 has a count of its own, and a tree always runs all threads.
// Nothing is marked as not offered: of the newer libraries some take a negative cost for the least.
bool PreferRing(CostTable table, int num_algorithms, int num_protocols) {
  if (table == nullptr || num_algorithms <= kRing || num_protocols <= kSimple) return false;
  float* const ring = reinterpret_cast<float*>(table) + kRing * num_protocols;
  float* const low_latency = ring + kLowLatency;
  float* const simple = ring + kSimple;
  // Also false for NaN.
  const bool has_low_latency = *low_latency >= 0;
  const bool has_simple = *simple >= 0;
  if (!has_low_latency && !has_simple) return false;
  *(!has_simple || (has_low_latency && *low_latency < *simple) ? low_latency : simple) = 0;
  return true;
}

Result Ask(void* context, Collective collective, size_t num_bytes, CostTable costs,
           int num_algorithms, int num_protocols, int* num_channels) {
  return OrInternalError([&] {
    Tuner& tuner = Tuner::Instance();
    const Tuner::Answer answer =
        tuner.Ask(static_cast<Communicator*>(context), collective, num_bytes);
    if (answer.num_channels == 0) return kSuccess;
    *num_channels = answer.num_channels;
    if (answer.prefer_ring && !PreferRing(costs, num_algorithms, num_protocols)) {
      tuner.CountWithoutRing();
    }
    return kSuccess;
  });
}

// Versions 1 and 2 have no costs to choose by, so the algorithm stays NCCL's.
Result AskForChannels(void* context, Collective collective, size_t num_bytes, int* num_channels) {
  return OrInternalError([&] {
    const Tuner::Answer answer =
        Tuner::Instance().Ask(static_cast<Communicator*>(context), collective, num_bytes);
    if (answer.num_channels != 0) *num_channels = answer.num_channels;
    return kSuccess;
  });
}

namespace v1 {

// This version does not say which communicator asks. Where there has been more than one since the
// last time there was none, whose turn it is cannot be known.
struct Alone {
  std::mutex mutex;
  void* context = nullptr;
  int alive = 0;
  int begun = 0;
};

Alone& TheOne() {
  static Alone* const alone = new Alone;
  return *alone;
}

Result Init(size_t num_ranks, size_t num_nodes, Log log) {
  return OrInternalError([&] {
    Alone& alone = TheOne();
    const std::lock_guard<std::mutex> lock(alone.mutex);
    const Result result =
        alone.begun > 0 ? kSuccess : NewContext(1, num_ranks, num_nodes, log, &alone.context);
    if (result != kSuccess) return result;  // NCCL destroys nothing that has not begun
    ++alone.alive;
    ++alone.begun;
    return kSuccess;
  });
}

Result GetCollInfo(Collective collective, size_t num_bytes, int, int, int, int*, int*,
                   int* num_channels) {
  return OrInternalError([&] {
    Alone& alone = TheOne();
    const std::lock_guard<std::mutex> lock(alone.mutex);
    if (alone.begun == 1 && alone.context != nullptr) {
      return AskForChannels(alone.context, collective, num_bytes, num_channels);
    }
    Tuner::Instance().PassOver();
    return kSuccess;
  });
}

Result Destroy() {
  return OrInternalError([] {
    Alone& alone = TheOne();
    const std::lock_guard<std::mutex> lock(alone.mutex);
    if (alone.alive == 0 || --alone.alive > 0) return kSuccess;
    alone.begun = 0;
    void* const context = alone.context;
    alone.context = nullptr;
    return DeleteContext(context);
  });
}

}  // namespace v1

namespace v2 {

Result Init(size_t num_ranks, size_t num_nodes, Log log, void** context) {
  return NewContext(2, num_ranks, num_nodes, log, context);
}

Result GetCollInfo(void* context, Collective collective, size_t num_bytes, int, int, int, int*,
                   int*, int* num_channels) {
  return AskForChannels(context, collective, num_bytes, num_channels);
}

}  // namespace v2

namespace v3 {

Result Init(size_t num_ranks, size_t num_nodes, Log log, void** context) {
  return NewContext(3, num_ranks, num_nodes, log, context);
}

Result GetCollInfo(void* context, Collective collective, size_t num_bytes, int, CostTable costs,
                   int num_algorithms, int num_protocols, int* num_channels) {
  return Ask(context, collective, num_bytes, costs, num_algorithms, num_protocols, num_channels);
}

}  // namespace v3

namespace v4 {

Result Init(size_t num_ranks, size_t num_nodes, Log log, void** context) {
  return NewContext(4, num_ranks, num_nodes, log, context);
}

// Also that of versions 5 and 6.
Result GetCollInfo(void* context, Collective collective, size_t num_bytes, int, CostTable costs,
                   int num_algorithms, int num_protocols, int, int* num_channels) {
  return Ask(context, collective, num_bytes, costs, num_algorithms, num_protocols, num_channels);
}

}  // namespace v4

namespace v5 {

Result Init(void** context, uint64_t, size_t num_ranks, size_t num_nodes, Log log, void*, void*) {
  return NewContext(5, num_ranks, num_nodes, log, context);
}

}  // namespace v5

namespace v6 {

Result Init(void** context, uint64_t, size_t num_ranks, size_t num_nodes, Log log, void*, void*) {
  return NewContext(6, num_ranks, num_nodes, log, context);
}

}  // namespace v6

constexpr char kName[] = "tf-libra";

}  // namespace
}  // namespace nccl
}  // namespace tf_libra

extern "C" {

#define TF_LIBRA_EXPORT extern __attribute__((visibility("default"))) const

TF_LIBRA_EXPORT tf_libra::nccl::TunerV1 ncclTunerPlugin_v1;
TF_LIBRA_EXPORT tf_libra::nccl::TunerV2 ncclTunerPlugin_v2;
TF_LIBRA_EXPORT tf_libra::nccl::TunerV3 ncclTunerPlugin_v3;
TF_LIBRA_EXPORT tf_libra::nccl::TunerV4 ncclTunerPlugin_v4;
TF_LIBRA_EXPORT tf_libra::nccl::TunerV5 ncclTunerPlugin_v5;
TF_LIBRA_EXPORT tf_libra::nccl::TunerV6 ncclTunerPlugin_v6;

namespace nccl = tf_libra::nccl;

const nccl::TunerV1 ncclTunerPlugin_v1 = {nccl::kName, nccl::v1::Init, nccl::v1::GetCollInfo,
                                          nccl::v1::Destroy};
const nccl::TunerV2 ncclTunerPlugin_v2 = {nccl::kName, nccl::v2::Init, nccl::v2::GetCollInfo,
                                          nccl::DeleteContext};
const nccl::TunerV3 ncclTunerPlugin_v3 = {nccl::kName, nccl::v3::Init, nccl::v3::GetCollInfo,
                                          nccl::DeleteContext};
const nccl::TunerV4 ncclTunerPlugin_v4 = {nccl::kName, nccl::v4::Init, nccl::v4::GetCollInfo,
                                          nccl::DeleteContext};
const nccl::TunerV5 ncclTunerPlugin_v5 = {nccl::kName, nccl::v5::Init, nccl::v4::GetCollInfo,
                                          nccl::DeleteContext};
const nccl::TunerV6 ncclTunerPlugin_v6 = {nccl::kName, nccl::v6::Init, nccl::v4::GetCollInfo,
                                          nccl::DeleteContext, nullptr};

}  // extern "C"
