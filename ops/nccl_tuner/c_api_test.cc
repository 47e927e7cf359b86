#include "ops/nccl_tuner/c_api.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ops/nccl_tuner/testing.h"

namespace tf_libra {
namespace nccl {
namespace {

TEST_CASE("BadPlansChangeNothing") {
  CHECK_EQ(SetPlan({{100, 100, 7}}), 0);
  FakeNccl nccl(6);
  const auto refused = [&](const std::vector<PlannedAllReduce>& plan, const std::string& why,
                           int num_ranks = kRanks) {
    CHECK_EQ(SetPlan(plan, true, num_ranks), 1);
    CHECK_EQ(TfLibraTunerLastError(), testing::Contains(why));
    CHECK_EQ(nccl.Ask(100), 7);
  };
  refused({{100, 100, 1}}, "num_ranks must be at least 1, got 0", 0);
  refused({}, "num_all_reduces must be at least 1, got 0");
  refused({{100, 100, 1}, {0, 100, 1}}, "num_bytes[1] must be at least 1, got 0");
  refused({{100, 99, 1}}, "padded_bytes[0] must be at least num_bytes[0], 100, got 99");
  refused({{100, 100, 0}}, "num_channels[0] must be from 1 to 1024, got 0");
  refused({{100, 100, 1025}}, "num_channels[0] must be from 1 to 1024, got 1025");
}

TEST_CASE("TheLeastAndTheMostThatAPlanMaySay") {
  CHECK_EQ(SetPlan({{1, 1, 1}, {UINT64_MAX, UINT64_MAX, 1024}}, true, 1), 0);
  FakeNccl nccl(6, 1);
  CHECK_EQ(nccl.Ask(1), 1);
  CHECK_EQ(nccl.Ask(UINT64_MAX), 1024);
}

// A plan far larger than any table NCCL has, all of one size and all of different sizes.
TEST_CASE("LargePlansAndManyCalls") {
  constexpr int kSize = 20000;
  for (const bool all_equal : {true, false}) {
    std::vector<PlannedAllReduce> plan;
    for (int i = 0; i < kSize; ++i) {
      const uint64_t num_bytes = all_equal ? 4096 : 4096 + 16 * i;
      plan.push_back({num_bytes, num_bytes, 1 + i % 32});
    }
    CHECK_EQ(SetPlan(plan), 0);
    FakeNccl nccl(6);
    const TfLibraTunerCounts before = Counts();
    for (int step = 0; step < 10; ++step) {
      for (int i = 0; i < kSize; ++i) {
        CHECK_EQ(nccl.Ask(plan[i].num_bytes), plan[i].num_channels);
      }
    }
    CHECK_EQ(Counts().applied, before.applied + 10 * kSize);
    CHECK_EQ(Counts().out_of_order, before.out_of_order);
    std::vector<int64_t> applied(10, -1);
    CHECK_EQ(TfLibraTunerReadApplied(applied.data(), 9), kSize);
    CHECK_EQ(applied[8], 10);
    CHECK_EQ(applied[9], -1);  // beyond the capacity
  }
}

// Two plans of the same sizes, swapped as fast as can be while communicators ask: every answer is
// of one of them.
TEST_CASE("PlansAreSwappedWhole") {
  constexpr int kCalls = 100000;
  constexpr int kMinSwaps = 1000;
  std::vector<PlannedAllReduce> low, high;
  for (int i = 0; i < 8; ++i) {
    low.push_back({100, 100, 1 + i});
    high.push_back({100, 100, 101 + i});
  }
  CHECK_EQ(SetPlan(low), 0);
  std::atomic<bool> stop{false};
  std::thread swapper([&] {
    for (int swap = 0; swap < kMinSwaps || !stop.load(); ++swap) {
      CHECK_EQ(SetPlan(swap % 2 == 0 ? high : low), 0);
      if (swap % 7 == 0) TfLibraTunerBeginStep();
      Counts();
    }
  });
  std::vector<std::thread> askers;
  for (const int version : {2, 5, 6}) {
    askers.emplace_back([version] {
      FakeNccl nccl(version);
      for (int i = 0; i < kCalls; ++i) {
        const int answer = nccl.Ask(100);
        CHECK(((1 <= answer && answer <= 8) || (101 <= answer && answer <= 108)));
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  stop.store(true);
  swapper.join();
  CHECK_EQ(Counts().communicators, 0);
}

TEST_CASE("ASwapBeginsAtTheBeginning") {
  ForEachVersion([](int version) {
    FakeNccl nccl(version);
    CHECK_EQ(SetPlan({{100, 100, 1}, {100, 100, 2}, {100, 100, 3}}), 0);
    CHECK_EQ(nccl.Ask(100), 1);
    CHECK_EQ(nccl.Ask(100), 2);
    CHECK_EQ(SetPlan({{100, 100, 11}, {100, 100, 12}}), 0);
    CHECK_EQ(nccl.Ask(100), 11);
    CHECK_EQ(nccl.Ask(100), 12);
    CHECK(Applied() == std::vector<int64_t>({1, 1}));
    TfLibraTunerClearPlan();
    CHECK_EQ(nccl.Ask(100), kUntouched);
    CHECK(Applied().empty());
  });
}

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
