#include "ops/nccl_tuner/next_tuner.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

namespace tf_libra {
namespace nccl {
namespace {

constexpr char kVariable[] = "TF_LIBRA_NCCL_NEXT_TUNER";
// A symbol that every plugin of TF-Libra has, and no other.
constexpr char kOurSymbol[] = "TfLibraTunerSetPlan";

NextTuner* FromEnvironment() {
  const char* const path = std::getenv(kVariable);
  if (path == nullptr || *path == '\0') return new NextTuner(nullptr, "");
  // Never closed: NCCL may finalize communicators while the process exits.
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return new NextTuner(nullptr, why == nullptr ? std::string("cannot load ") + path : why);
  }
  return new NextTuner([library](const char* symbol) { return dlsym(library, symbol); }, "");
}

template <typename Table>
const Table* As(const void* table) {
  return static_cast<const Table*>(table);
}

}  // namespace

const NextTuner& NextTuner::Instance() {
  static const NextTuner* const tuner = FromEnvironment();
  return *tuner;
}

NextTuner::NextTuner(Lookup lookup, std::string problem)
    : lookup_(std::move(lookup)), problem_(std::move(problem)) {
  // This plugin would call itself without end.
  if (lookup_ != nullptr && lookup_(kOurSymbol) != nullptr) {
    lookup_ = nullptr;
    problem_ = "it is TF-Libra's own";
  }
}

const void* NextTuner::Table(int version) const {
  return lookup_(("ncclTunerPlugin_v" + std::to_string(version)).c_str());
}

int NextTuner::FindVersion(int version) const {
  if (Table(version) != nullptr) return version;
  for (int older : {4, 3}) {
    if (older < version && Table(older) != nullptr) return older;
  }
  return 0;
}

NextCommunicator NextTuner::Init(const CommunicatorInfo& info) const {
  std::string problem = problem_;
  NextCommunicator next;
  if (lookup_ != nullptr) {
    next.version = FindVersion(info.version);
    Result result = kSuccess;
    const void* const table = next.version == 0 ? nullptr : Table(next.version);
    switch (next.version) {
      case 0:
        problem = "it has no interface v" + std::to_string(info.version);
        break;
      case 2:
        result = As<TunerV2>(table)->init(info.num_ranks, info.num_nodes, info.log, &next.context);
        break;
      case 3:
        result = As<TunerV3>(table)->init(info.num_ranks, info.num_nodes, info.log, &next.context);
        break;
      case 4:
        result = As<TunerV4>(table)->init(info.num_ranks, info.num_nodes, info.log, &next.context);
        break;
      case 5:
        result = As<TunerV5>(table)->init(&next.context, info.id, info.num_ranks, info.num_nodes,
                                          info.log, info.links, info.constants);
        break;
      default:
        result = As<TunerV6>(table)->init(&next.context, info.id, info.num_ranks, info.num_nodes,
                                          info.log, info.links, info.constants);
    }
    if (result != kSuccess) {
      problem = "its init returned " + std::to_string(result);
      next = {};
    }
  }
  if (!problem.empty() && info.log != nullptr) {
    info.log(kLogInfo, kLogTuning, __FILE__, __LINE__,
             "TF-Libra's tuner: the next tuner (%s) is not used: %s", kVariable, problem.c_str());
  }
  return next;
}

Result NextTuner::Ask(const NextCommunicator& communicator, const Question& q) const {
  const void* const table = communicator.version == 0 ? nullptr : Table(communicator.version);
  switch (communicator.version) {
    case 0:
      return kSuccess;
    case 2:
      return As<TunerV2>(table)->get_coll_info(communicator.context, q.collective, q.num_bytes,
                                               q.collnet_support, q.nvls_support, q.num_aggregated,
                                               q.algorithm, q.protocol, q.num_channels);
    case 3:
      return As<TunerV3>(table)->get_coll_info(communicator.context, q.collective, q.num_bytes,
                                               q.num_aggregated, q.costs, q.num_algorithms,
                                               q.num_protocols, q.num_channels);
    case 4:
      return As<TunerV4>(table)->get_coll_info(
          communicator.context, q.collective, q.num_bytes, q.num_aggregated, q.costs,
          q.num_algorithms, q.num_protocols, q.registered_buffers, q.num_channels);
    case 5:
      return As<TunerV5>(table)->get_coll_info(
          communicator.context, q.collective, q.num_bytes, q.num_aggregated, q.costs,
          q.num_algorithms, q.num_protocols, q.registered_buffers, q.num_channels);
    default:
      return As<TunerV6>(table)->get_coll_info(
          communicator.context, q.collective, q.num_bytes, q.num_aggregated, q.costs,
          q.num_algorithms, q.num_protocols, q.registered_buffers, q.num_channels);
  }
}

Result NextTuner::Destroy(const NextCommunicator& communicator) const {
  const void* const table = communicator.version == 0 ? nullptr : Table(communicator.version);
  switch (communicator.version) {
    case 0:
      return kSuccess;
    case 2:
      return As<TunerV2>(table)->destroy(communicator.context);
    case 3:
      return As<TunerV3>(table)->destroy(communicator.context);
    case 4:
      return As<TunerV4>(table)->destroy(communicator.context);
    case 5:
      return As<TunerV5>(table)->finalize(communicator.context);
    default:
      return As<TunerV6>(table)->finalize(communicator.context);
  }
}

}  // namespace nccl
}  // namespace tf_libra
