#include "ops/nccl_tuner/channel_plan.h"

#include <algorithm>
#include <utility>

namespace tf_libra {
namespace nccl {

ChannelPlan::ChannelPlan(size_t num_ranks, bool prefer_ring,
                         std::vector<PlannedAllReduce> all_reduces)
    : num_ranks_(num_ranks), prefer_ring_(prefer_ring), all_reduces_(std::move(all_reduces)) {
  for (size_t i = 0; i < all_reduces_.size(); ++i) {
    const PlannedAllReduce& planned = all_reduces_[i];
    indices_[planned.num_bytes].push_back(i);
    if (planned.padded_bytes != planned.num_bytes) indices_[planned.padded_bytes].push_back(i);
  }
}

size_t ChannelPlan::Find(uint64_t num_bytes, size_t position) const {
  const auto found = indices_.find(num_bytes);
  if (found == indices_.end()) return kNone;
  const std::vector<size_t>& indices = found->second;
  const auto next = std::lower_bound(indices.begin(), indices.end(), position);
  return next == indices.end() ? indices.front() : *next;
}

}  // namespace nccl
}  // namespace tf_libra
