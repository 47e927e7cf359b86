// The symbols that NCCL looks for in a tuner plugin: one table of functions per interface version.
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ops/nccl_tuner/guarded.h"
#include "ops/nccl_tuner/nccl_abi.h"
#include "ops/nccl_tuner/next_tuner.h"
#include "ops/nccl_tuner/tuner.h"

namespace tf_libra {
namespace nccl {
namespace {

template <typename Body>
Result OrInternalError(Body body) noexcept {
  return Guarded(body, [](const char*) { return kInternalError; });
}

Result NewContext(const CommunicatorInfo& info, void** context) {
  return OrInternalError([&] {
    if (info.log != nullptr) {
      info.log(kLogInfo, kLogTuning, __FILE__, __LINE__,
               "TF-Libra's tuner: a communicator of %zu ranks on %zu nodes, interface v%d",
               info.num_ranks, info.num_nodes, info.version);
    }
    // Version 1 does not say which communicator asks.
    const NextCommunicator next =
        info.version == 1 ? NextCommunicator() : NextTuner::Instance().Init(info);
    *context = Tuner::Instance().NewCommunicator(info.version, info.num_ranks, next);
    return kSuccess;
  });
}

Result DeleteContext(void* context) {
  return OrInternalError([context] {
    if (context == nullptr) return kSuccess;
    auto* const communicator = static_cast<Communicator*>(context);
    const NextCommunicator next = communicator->next;
    Tuner::Instance().DeleteCommunicator(communicator);
    return NextTuner::Instance().Destroy(next);
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

Result Forward(const Communicator& communicator, const Question& question) {
  if (communicator.next.version == 0) return kSuccess;
  Tuner::Instance().CountForwarded();
  return NextTuner::Instance().Ask(communicator.next, question);
}

Result Ask(void* context, const Question& question) {
  return OrInternalError([&] {
    Tuner& tuner = Tuner::Instance();
    auto* const communicator = static_cast<Communicator*>(context);
    const Tuner::Answer answer = tuner.Ask(communicator, question.collective, question.num_bytes);
    if (answer.num_channels == 0) return Forward(*communicator, question);
    *question.num_channels = answer.num_channels;
    // Versions 1 and 2 have no costs to choose by, so the algorithm stays NCCL's.
    const bool has_costs = question.algorithm == nullptr;
    if (has_costs && answer.prefer_ring &&
        !PreferRing(question.costs, question.num_algorithms, question.num_protocols)) {
      tuner.CountWithoutRing();
    }
    return kSuccess;
  });
}

// Arguments that all versions have.
Question AskedFor(Collective collective, size_t num_bytes, int num_aggregated, int* num_channels) {
  Question question;
  question.collective = collective;
  question.num_bytes = num_bytes;
  question.num_aggregated = num_aggregated;
  question.num_channels = num_channels;
  return question;
}

// As of versions 1 and 2.
Question AskedFor(Collective collective, size_t num_bytes, int collnet_support, int nvls_support,
                  int num_aggregated, int* algorithm, int* protocol, int* num_channels) {
  Question question = AskedFor(collective, num_bytes, num_aggregated, num_channels);
  question.collnet_support = collnet_support;
  question.nvls_support = nvls_support;
  question.algorithm = algorithm;
  question.protocol = protocol;
  return question;
}

// As of later versions.
Question AskedFor(Collective collective, size_t num_bytes, int num_aggregated, CostTable costs,
                  int num_algorithms, int num_protocols, int registered_buffers,
                  int* num_channels) {
  Question question = AskedFor(collective, num_bytes, num_aggregated, num_channels);
  question.costs = costs;
  question.num_algorithms = num_algorithms;
  question.num_protocols = num_protocols;
  question.registered_buffers = registered_buffers;
  return question;
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
        alone.begun > 0 ? kSuccess : NewContext({1, 0, num_ranks, num_nodes, log}, &alone.context);
    if (result != kSuccess) return result;  // NCCL destroys nothing that has not begun
    ++alone.alive;
    ++alone.begun;
    return kSuccess;
  });
}

Result GetCollInfo(Collective collective, size_t num_bytes, int collnet_support, int nvls_support,
                   int num_aggregated, int* algorithm, int* protocol, int* num_channels) {
  return OrInternalError([&] {
    Alone& alone = TheOne();
    const std::lock_guard<std::mutex> lock(alone.mutex);
    if (alone.begun == 1 && alone.context != nullptr) {
      return Ask(alone.context, AskedFor(collective, num_bytes, collnet_support, nvls_support,
                                         num_aggregated, algorithm, protocol, num_channels));
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
  return NewContext({2, 0, num_ranks, num_nodes, log}, context);
}

Result GetCollInfo(void* context, Collective collective, size_t num_bytes, int collnet_support,
                   int nvls_support, int num_aggregated, int* algorithm, int* protocol,
                   int* num_channels) {
  return Ask(context, AskedFor(collective, num_bytes, collnet_support, nvls_support, num_aggregated,
                               algorithm, protocol, num_channels));
}

}  // namespace v2

namespace v3 {

Result Init(size_t num_ranks, size_t num_nodes, Log log, void** context) {
  return NewContext({3, 0, num_ranks, num_nodes, log}, context);
}

Result GetCollInfo(void* context, Collective collective, size_t num_bytes, int num_aggregated,
                   CostTable costs, int num_algorithms, int num_protocols, int* num_channels) {
  return Ask(context, AskedFor(collective, num_bytes, num_aggregated, costs, num_algorithms,
                               num_protocols, 0, num_channels));
}

}  // namespace v3

namespace v4 {

Result Init(size_t num_ranks, size_t num_nodes, Log log, void** context) {
  return NewContext({4, 0, num_ranks, num_nodes, log}, context);
}

// Also that of versions 5 and 6.
Result GetCollInfo(void* context, Collective collective, size_t num_bytes, int num_aggregated,
                   CostTable costs, int num_algorithms, int num_protocols, int registered_buffers,
                   int* num_channels) {
  return Ask(context, AskedFor(collective, num_bytes, num_aggregated, costs, num_algorithms,
                               num_protocols, registered_buffers, num_channels));
}

}  // namespace v4

namespace v5 {

Result Init(void** context, uint64_t id, size_t num_ranks, size_t num_nodes, Log log, void* links,
            void* constants) {
  return NewContext({5, id, num_ranks, num_nodes, log, links, constants}, context);
}

}  // namespace v5

namespace v6 {

Result Init(void** context, uint64_t id, size_t num_ranks, size_t num_nodes, Log log, void* links,
            void* constants) {
  return NewContext({6, id, num_ranks, num_nodes, log, links, constants}, context);
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
