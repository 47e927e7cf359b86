#include "ops/nccl_tuner/channel_plan.h"

#include <random>
#include <vector>

#include "ops/testing/checks.h"

namespace tf_libra {
namespace nccl {
namespace {

TEST_CASE("WhatIsNotInThePlanIsNotFound") {
  const ChannelPlan plan(8, true, {{100, 112, 2}});
  CHECK_EQ(plan.Find(100, 0), 0u);
  CHECK_EQ(plan.Find(112, 0), 0u);
  for (const uint64_t other :
       {uint64_t{0}, uint64_t{99}, uint64_t{101}, uint64_t{111}, uint64_t{113}, UINT64_MAX}) {
    CHECK(plan.Find(other, 0) == ChannelPlan::kNone);
  }
  CHECK(ChannelPlan(8, true, {}).Find(100, 0) == ChannelPlan::kNone);
}

// At the position itself, one before it and one behind it; after the last comes the first.
TEST_CASE("TheNextOfASizeIsFound") {
  const ChannelPlan plan(8, false, {{100, 100, 1}, {200, 200, 2}, {100, 100, 3}, {300, 300, 4}});
  CHECK_EQ(plan.Find(100, 0), 0u);
  CHECK_EQ(plan.Find(100, 1), 2u);
  CHECK_EQ(plan.Find(100, 2), 2u);
  CHECK_EQ(plan.Find(100, 3), 0u);
  CHECK_EQ(plan.Find(300, 3), 3u);
  CHECK_EQ(plan.Find(300, 4), 3u);  // beyond the end
  CHECK_EQ(plan.Find(200, 2), 1u);
}

TEST_CASE("WhatItWasMadeOfIsKept") {
  const ChannelPlan plan(3, true, {{100, 112, 2}, {300, 304, 4}});
  CHECK_EQ(plan.num_ranks(), 3u);
  CHECK(plan.prefer_ring());
  CHECK_EQ(plan.size(), 2u);
  CHECK_EQ(plan[1].padded_bytes, 304u);
  CHECK_EQ(plan[1].num_channels, 4);
  CHECK(!ChannelPlan(3, false, {}).prefer_ring());
}

// As a search along the whole plan, also where one's padded size is another's own.
TEST_CASE("EqualsASearch") {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<PlannedAllReduce> all;
    for (size_t i = 0; i < 1 + random() % 10; ++i) {
      const uint64_t num_bytes = 1 + random() % 5;
      all.push_back({num_bytes, num_bytes + random() % 3, 1});
    }
    const ChannelPlan plan(8, true, all);
    for (uint64_t num_bytes = 0; num_bytes < 9; ++num_bytes) {
      for (size_t position = 0; position < all.size(); ++position) {
        size_t expected = ChannelPlan::kNone;
        for (size_t i = 0; i < all.size() && expected == ChannelPlan::kNone; ++i) {
          const size_t at = (position + i) % all.size();
          if (all[at].num_bytes == num_bytes || all[at].padded_bytes == num_bytes) expected = at;
        }
        CHECK(plan.Find(num_bytes, position) == expected);
      }
    }
  }
}

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
