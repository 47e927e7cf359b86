// A plan as NCCL sees it: the all-reduces of one step in their order, each with its channels.
#ifndef TF_LIBRA_OPS_NCCL_TUNER_CHANNEL_PLAN_H_
#define TF_LIBRA_OPS_NCCL_TUNER_CHANNEL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tf_libra {
namespace nccl {

struct PlannedAllReduce {
  uint64_t num_bytes = 0;
  // The same with every tensor padded, as it is copied into a fusion buffer; either one matches.
  uint64_t padded_bytes = 0;
  int num_channels = 0;
};

class ChannelPlan {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // Applies to communicators of `num_ranks`. `prefer_ring`: the ring's kernels are preferred, whose
  // threads per channel are those that NCCL_NTHREADS says.
  ChannelPlan(size_t num_ranks, bool prefer_ring, std::vector<PlannedAllReduce> all_reduces);

  size_t num_ranks() const { return num_ranks_; }
  bool prefer_ring() const { return prefer_ring_; }
  size_t size() const { return all_reduces_.size(); }
  const PlannedAllReduce& operator[](size_t index) const { return all_reduces_[index]; }

  // The first all-reduce of `num_bytes` at or after `position`, where the first follows the last;
  // kNone if the plan has none of this size.
  size_t Find(uint64_t num_bytes, size_t position) const;

 private:
  const size_t num_ranks_;
  const bool prefer_ring_;
  const std::vector<PlannedAllReduce> all_reduces_;
  // Indices of the all-reduces by byte count, ascending.
  std::unordered_map<uint64_t, std::vector<size_t>> indices_;
};

}  // namespace nccl
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_NCCL_TUNER_CHANNEL_PLAN_H_
