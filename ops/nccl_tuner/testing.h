// Helpers for tests of the tuner: a communicator that calls it as NCCL does, through every version
// of its interface, with cost tables made up here; and Python's side of it.
#ifndef TF_LIBRA_OPS_NCCL_TUNER_TESTING_H_
#define TF_LIBRA_OPS_NCCL_TUNER_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/nccl_tuner/c_api.h"
#include "ops/nccl_tuner/channel_plan.h"
#include "ops/nccl_tuner/nccl_abi.h"
#include "ops/testing/checks.h"

extern "C" {
extern const tf_libra::nccl::TunerV1 ncclTunerPlugin_v1;
extern const tf_libra::nccl::TunerV2 ncclTunerPlugin_v2;
extern const tf_libra::nccl::TunerV3 ncclTunerPlugin_v3;
extern const tf_libra::nccl::TunerV4 ncclTunerPlugin_v4;
extern const tf_libra::nccl::TunerV5 ncclTunerPlugin_v5;
extern const tf_libra::nccl::TunerV6 ncclTunerPlugin_v6;
}

namespace tf_libra {
namespace nccl {

constexpr int kOldest = 1;
constexpr int kNewest = 6;
constexpr int kAlgorithms = 7;
constexpr int kProtocols = 3;
constexpr int kRanks = 8;
// Value of an answer that sets no number of channels.
constexpr int kUntouched = 0;

struct Costs {
  float cells[kAlgorithms][kProtocols];

  Costs() {
    for (auto& row : cells) {
      for (float& cell : row) cell = 50;
    }
    cells[kRing][kLowLatency] = 200;
    cells[kRing][kSimple] = 100;
  }
  CostTable table() { return reinterpret_cast<CostTable>(cells); }
  bool operator==(const Costs& other) const {
    for (int a = 0; a < kAlgorithms; ++a) {
      for (int p = 0; p < kProtocols; ++p) {
        if (cells[a][p] != other.cells[a][p]) return false;
      }
    }
    return true;
  }
};

// One communicator of NCCL, by one version of the interface.
class FakeNccl {
 public:
  explicit FakeNccl(int version, size_t num_ranks = kRanks) : version_(version) {
    switch (version) {
      case 1:
        CHECK_EQ(ncclTunerPlugin_v1.init(num_ranks, 2, nullptr), kSuccess);
        break;
      case 2:
        CHECK_EQ(ncclTunerPlugin_v2.init(num_ranks, 2, nullptr, &context_), kSuccess);
        break;
      case 3:
        CHECK_EQ(ncclTunerPlugin_v3.init(num_ranks, 2, nullptr, &context_), kSuccess);
        break;
      case 4:
        CHECK_EQ(ncclTunerPlugin_v4.init(num_ranks, 2, nullptr, &context_), kSuccess);
        break;
      case 5:
        CHECK_EQ(ncclTunerPlugin_v5.init(&context_, 7, num_ranks, 2, nullptr, nullptr, nullptr),
                 kSuccess);
        break;
      default:
        CHECK_EQ(ncclTunerPlugin_v6.init(&context_, 7, num_ranks, 2, nullptr, nullptr, nullptr),
                 kSuccess);
    }
  }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;
  ~FakeNccl() {
    Result result = kInternalError;
    if (version_ == 1) result = ncclTunerPlugin_v1.destroy();
    if (version_ == 2) result = ncclTunerPlugin_v2.destroy(context_);
    if (version_ == 3) result = ncclTunerPlugin_v3.destroy(context_);
    if (version_ == 4) result = ncclTunerPlugin_v4.destroy(context_);
    if (version_ == 5) result = ncclTunerPlugin_v5.finalize(context_);
    if (version_ == 6) result = ncclTunerPlugin_v6.finalize(context_);
    CHECK_EQ(result, kSuccess);
  }

  // Returns the channels that the plugin sets, or kUntouched.
  int Ask(size_t num_bytes, Collective collective = kAllReduce, Costs* costs = nullptr) {
    Costs own;
    CostTable table = (costs == nullptr ? &own : costs)->table();
    int channels = kUntouched;
    int algorithm = -1;
    int protocol = -1;
    Result result = kInternalError;
    switch (version_) {
      case 1:
        result = ncclTunerPlugin_v1.get_coll_info(collective, num_bytes, 0, 0, 1, &algorithm,
                                                  &protocol, &channels);
        break;
      case 2:
        result = ncclTunerPlugin_v2.get_coll_info(context_, collective, num_bytes, 0, 0, 1,
                                                  &algorithm, &protocol, &channels);
        break;
      case 3:
        result = ncclTunerPlugin_v3.get_coll_info(context_, collective, num_bytes, 1, table,
                                                  kAlgorithms, kProtocols, &channels);
        break;
      case 4:
        result = ncclTunerPlugin_v4.get_coll_info(context_, collective, num_bytes, 1, table,
                                                  kAlgorithms, kProtocols, 0, &channels);
        break;
      case 5:
        result = ncclTunerPlugin_v5.get_coll_info(context_, collective, num_bytes, 1, table,
                                                  kAlgorithms, kProtocols, 0, &channels);
        break;
      default:
        result = ncclTunerPlugin_v6.get_coll_info(context_, collective, num_bytes, 1, table,
                                                  kAlgorithms, kProtocols, 0, &channels);
    }
    CHECK_EQ(result, kSuccess);
    // The choice of an algorithm is made by costs, or not at all.
    CHECK_EQ(algorithm, -1);
    CHECK_EQ(protocol, -1);
    return channels;
  }

 private:
  const int version_;
  void* context_ = nullptr;
};

inline int SetPlan(const std::vector<PlannedAllReduce>& all_reduces, bool prefer_ring = true,
                   int num_ranks = kRanks) {
  std::vector<uint64_t> num_bytes, padded_bytes;
  std::vector<int> channels;
  for (const PlannedAllReduce& planned : all_reduces) {
    num_bytes.push_back(planned.num_bytes);
    padded_bytes.push_back(planned.padded_bytes);
    channels.push_back(planned.num_channels);
  }
  return TfLibraTunerSetPlan(num_ranks, prefer_ring, static_cast<int>(all_reduces.size()),
                             num_bytes.data(), padded_bytes.data(), channels.data());
}

inline TfLibraTunerCounts Counts() {
  TfLibraTunerCounts counts;
  TfLibraTunerReadCounts(&counts);
  CHECK_EQ(counts.asked, counts.applied + counts.passed_over);
  CHECK_EQ(counts.passed_over, counts.no_plan + counts.other_collective +
                                   counts.other_communicator + counts.unknown_size);
  return counts;
}

inline std::vector<int64_t> Applied() {
  std::vector<int64_t> applied(1000);
  applied.resize(TfLibraTunerReadApplied(applied.data(), static_cast<int>(applied.size())));
  return applied;
}

inline void ForEachVersion(void (*body)(int version)) {
  for (int version = kOldest; version <= kNewest; ++version) {
    TfLibraTunerClearPlan();
    body(version);
    CHECK_EQ(Counts().communicators, 0);
  }
}

}  // namespace nccl
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_NCCL_TUNER_TESTING_H_
