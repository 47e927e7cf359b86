// Another tuner plugin, which answers what the active plan does not know: clouds ship their own.
#ifndef TF_LIBRA_OPS_NCCL_TUNER_NEXT_TUNER_H_
#define TF_LIBRA_OPS_NCCL_TUNER_NEXT_TUNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "ops/nccl_tuner/nccl_abi.h"

namespace tf_libra {
namespace nccl {

// Arguments of `init`, by the newest version that NCCL knows.
struct CommunicatorInfo {
  int version = 0;  // of the interface by which NCCL calls
  uint64_t id = 0;
  size_t num_ranks = 0;
  size_t num_nodes = 0;
  Log log = nullptr;
  // From version 5 on. Their layouts depend on the version.
  void* links = nullptr;
  void* constants = nullptr;
};

// Arguments of `get_coll_info`, of all versions.
struct Question {
  Collective collective = 0;
  size_t num_bytes = 0;
  int num_aggregated = 0;
  int* num_channels = nullptr;
  // Arguments of version 2.
  int collnet_support = 0, nvls_support = 0;
  int *algorithm = nullptr, *protocol = nullptr;
  // Arguments of later versions.
  CostTable costs = nullptr;
  int num_algorithms = 0, num_protocols = 0, registered_buffers = 0;
};

// A communicator as the next tuner knows it.
struct NextCommunicator {
  int version = 0;  // of the interface by which the next tuner is called; 0: it is not called
  void* context = nullptr;
};

class NextTuner {
 public:
  // Returns the address of a symbol; null if the library has none of this name.
  using Lookup = std::function<const void*(const char* symbol)>;

  // The library that TF_LIBRA_NCCL_NEXT_TUNER names, loaded at the first call; never destroyed.
  static const NextTuner& Instance();

  // `lookup` finds symbols of a loaded library; null if there is none. `problem` is the reason why
  // there is none; "" if no library is configured.
  NextTuner(Lookup lookup, std::string problem);

  // Versions 3 and 4 have the arguments of later ones, without descriptions of links. So the next
  // tuner is called by the version of `info`, or else by version 4 or 3. Without a library, without
  // such a version, and if its `init` fails, NCCL's log has the reason, and it is not called.
  NextCommunicator Init(const CommunicatorInfo& info) const;
  // Leaves the question to NCCL if the next tuner is not called.
  Result Ask(const NextCommunicator& communicator, const Question& question) const;
  Result Destroy(const NextCommunicator& communicator) const;

 private:
  int FindVersion(int version) const;
  const void* Table(int version) const;

  Lookup lookup_;
  std::string problem_;
};

}  // namespace nccl
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_NCCL_TUNER_NEXT_TUNER_H_
