#include "ops/nccl_tuner/tuner.h"

#include <random>
#include <vector>

#include "ops/nccl_tuner/testing.h"

namespace tf_libra {
namespace nccl {
namespace {

TEST_CASE("WithoutAPlanNothingIsTouched") {
  ForEachVersion([](int version) {
    FakeNccl nccl(version);
    const int64_t before = Counts().no_plan;
    Costs costs;
    CHECK_EQ(nccl.Ask(100, kAllReduce, &costs), kUntouched);
    CHECK(costs == Costs());
    CHECK_EQ(Counts().no_plan, before + 1);
    CHECK(Counts().interface_version >= version);
  });
}

TEST_CASE("GroupsOfEqualSizeKeepTheirOwnCounts") {
  ForEachVersion([](int version) {
    CHECK_EQ(SetPlan({{100, 112, 2}, {100, 112, 8}, {300, 304, 4}, {100, 112, 16}}), 0);
    FakeNccl nccl(version);
    for (int step = 0; step < 3; ++step) {
      CHECK_EQ(nccl.Ask(100), 2);
      CHECK_EQ(nccl.Ask(112), 8);  // as it is in a fusion buffer
      CHECK_EQ(nccl.Ask(304), 4);
      CHECK_EQ(nccl.Ask(100), 16);
    }
    CHECK(Applied() == std::vector<int64_t>({3, 3, 3, 3}));
  });
}

TEST_CASE("WhatThePlanDoesNotNameIsPassedOver") {
  ForEachVersion([](int version) {
    CHECK_EQ(SetPlan({{100, 100, 2}, {200, 200, 3}}), 0);
    FakeNccl nccl(version);
    const TfLibraTunerCounts before = Counts();
    CHECK_EQ(nccl.Ask(100), 2);
    for (const Collective other : {kBroadcast, kReduce, kAllGather, kReduceScatter}) {
      Costs costs;
      CHECK_EQ(nccl.Ask(200, other, &costs), kUntouched);
      CHECK(costs == Costs());
    }
    for (const size_t unknown : {size_t{0}, size_t{99}, size_t{101}, SIZE_MAX}) {
      Costs costs;
      CHECK_EQ(nccl.Ask(unknown, kAllReduce, &costs), kUntouched);
      CHECK(costs == Costs());
    }
    CHECK_EQ(nccl.Ask(200), 3);  // those between have not moved the order
    const TfLibraTunerCounts after = Counts();
    CHECK_EQ(after.asked, before.asked + 10);
    CHECK_EQ(after.applied, before.applied + 2);
    CHECK_EQ(after.other_collective, before.other_collective + 4);
    CHECK_EQ(after.unknown_size, before.unknown_size + 4);
    CHECK_EQ(after.out_of_order, before.out_of_order);
  });
}

TEST_CASE("OnlyCommunicatorsOfThePlansSizeAreTuned") {
  ForEachVersion([](int version) {
    CHECK_EQ(SetPlan({{100, 100, 2}}), 0);
    FakeNccl nccl(version, kRanks / 2);
    const int64_t before = Counts().other_communicator;
    CHECK_EQ(nccl.Ask(100), kUntouched);
    CHECK_EQ(Counts().other_communicator, before + 1);
  });
}

TEST_CASE("CommunicatorsKeepOrdersOfTheirOwn") {
  for (int version = 2; version <= kNewest; ++version) {
    CHECK_EQ(SetPlan({{100, 100, 2}, {100, 100, 8}, {100, 100, 16}}), 0);
    FakeNccl one(version), other(version);
    CHECK_EQ(one.Ask(100), 2);
    CHECK_EQ(one.Ask(100), 8);
    CHECK_EQ(other.Ask(100), 2);
    CHECK_EQ(one.Ask(100), 16);
    CHECK_EQ(other.Ask(100), 8);
    CHECK_EQ(Counts().communicators, 2);
  }
}

TEST_CASE("AStepThatWasCutShort") {
  ForEachVersion([](int version) {
    // Different sizes: the order is found by the next question.
    CHECK_EQ(SetPlan({{100, 100, 2}, {200, 200, 3}, {300, 300, 4}}), 0);
    FakeNccl nccl(version);
    const int64_t before = Counts().out_of_order;
    CHECK_EQ(nccl.Ask(100), 2);
    CHECK_EQ(nccl.Ask(100), 2);
    CHECK_EQ(nccl.Ask(200), 3);
    CHECK_EQ(nccl.Ask(300), 4);
    CHECK_EQ(Counts().out_of_order, before + 1);
    CHECK_EQ(nccl.Ask(100), 2);
    CHECK_EQ(Counts().out_of_order, before + 1);

    // Equal sizes: by the next beginning of a step, and by nothing else.
    CHECK_EQ(SetPlan({{100, 100, 2}, {100, 100, 3}, {100, 100, 4}}), 0);
    CHECK_EQ(nccl.Ask(100), 2);
    TfLibraTunerBeginStep();
    CHECK_EQ(nccl.Ask(100), 2);
    CHECK_EQ(nccl.Ask(100), 3);
    CHECK_EQ(nccl.Ask(100), 4);
    TfLibraTunerBeginStep();
    TfLibraTunerBeginStep();
    CHECK_EQ(nccl.Ask(100), 2);
  });
}

TEST_CASE("AnotherOrderThanThePlans") {
  ForEachVersion([](int version) {
    CHECK_EQ(SetPlan({{100, 100, 2}, {200, 200, 3}, {300, 300, 4}}), 0);
    FakeNccl nccl(version);
    CHECK_EQ(nccl.Ask(300), 4);
    CHECK_EQ(nccl.Ask(100), 2);
    CHECK_EQ(nccl.Ask(200), 3);
  });
}

// Whatever comes, an answer is one of those that the plan has for the size, and every communicator
// with the same questions gives the same answers.
TEST_CASE("RanksAgreeWhateverIsAsked") {
  std::mt19937 random(20260101);
  for (int round = 0; round < 50; ++round) {
    std::vector<PlannedAllReduce> plan;
    for (size_t i = 0; i < 1 + random() % 12; ++i) {
      const uint64_t num_bytes = 100 + random() % 4;
      plan.push_back({num_bytes, num_bytes + random() % 3, static_cast<int>(1 + random() % 32)});
    }
    CHECK_EQ(SetPlan(plan), 0);
    FakeNccl one(6), other(4);
    for (int question = 0; question < 200; ++question) {
      if (random() % 50 == 0) TfLibraTunerBeginStep();
      const size_t num_bytes = 98 + random() % 9;
      const int answer = one.Ask(num_bytes);
      CHECK_EQ(other.Ask(num_bytes), answer);
      bool known = false;
      bool possible = false;
      for (const PlannedAllReduce& planned : plan) {
        if (planned.num_bytes != num_bytes && planned.padded_bytes != num_bytes) continue;
        known = true;
        possible = possible || planned.num_channels == answer;
      }
      CHECK((known ? possible : answer == kUntouched));
    }
  }
}

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
