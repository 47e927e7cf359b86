// Asks as NCCL does, through every version of its interface, with cost tables made up here.
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/testing.h"
#include "ops/nccl_tuner/c_api.h"
#include "ops/nccl_tuner/channel_plan.h"
#include "ops/nccl_tuner/nccl_abi.h"

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
namespace {

constexpr int kOldest = 1;
constexpr int kNewest = 6;
constexpr int kAlgorithms = 7;
constexpr int kProtocols = 3;
constexpr int kRanks = 8;
// What an answer leaves where it does not say how many channels.
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

  // The channels it is told, or kUntouched.
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

int SetPlan(const std::vector<PlannedAllReduce>& all_reduces, bool prefer_ring = true,
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

TfLibraTunerCounts Counts() {
  TfLibraTunerCounts counts;
  TfLibraTunerReadCounts(&counts);
  CHECK_EQ(counts.asked, counts.applied + counts.passed_over);
  CHECK_EQ(counts.passed_over, counts.no_plan + counts.other_collective +
                                   counts.other_communicator + counts.unknown_size);
  return counts;
}

std::vector<int64_t> Applied() {
  std::vector<int64_t> applied(1000);
  applied.resize(TfLibraTunerReadApplied(applied.data(), static_cast<int>(applied.size())));
  return applied;
}

void ForEachVersion(void (*body)(int version)) {
  for (int version = kOldest; version <= kNewest; ++version) {
    TfLibraTunerClearPlan();
    body(version);
    CHECK_EQ(Counts().communicators, 0);
  }
}

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

// Version 1 does not say which communicator asks.
TEST_CASE("TheOldestInterfaceServesOneCommunicator") {
  CHECK_EQ(SetPlan({{100, 100, 2}}), 0);
  {
    FakeNccl one(1);
    CHECK_EQ(one.Ask(100), 2);
    {
      FakeNccl other(1);
      CHECK_EQ(one.Ask(100), kUntouched);
      CHECK_EQ(other.Ask(100), kUntouched);
    }
    CHECK_EQ(one.Ask(100), kUntouched);  // which of the two is left cannot be known
  }
  FakeNccl next(1);
  CHECK_EQ(next.Ask(100), 2);
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
// that is asked the same answers the same.
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

TEST_CASE("TheCheaperRingBecomesFree") {
  for (int version = 3; version <= kNewest; ++version) {
    CHECK_EQ(SetPlan({{100, 100, 2}}), 0);
    FakeNccl nccl(version);
    Costs costs, expected;
    expected.cells[kRing][kSimple] = 0;
    CHECK_EQ(nccl.Ask(100, kAllReduce, &costs), 2);
    CHECK(costs == expected);

    costs = expected = Costs();
    costs.cells[kRing][kLowLatency] = 99;
    expected.cells[kRing][kLowLatency] = 0;
    CHECK_EQ(nccl.Ask(100, kAllReduce, &costs), 2);
    CHECK(costs == expected);

    costs = expected = Costs();
    costs.cells[kRing][kSimple] = expected.cells[kRing][kSimple] = kNotOffered;
    expected.cells[kRing][kLowLatency] = 0;
    CHECK_EQ(nccl.Ask(100, kAllReduce, &costs), 2);
    CHECK(costs == expected);

    // The channels are said though there is no ring.
    costs = Costs();
    costs.cells[kRing][kSimple] = kNotOffered;
    costs.cells[kRing][kLowLatency] = NAN;
    const int64_t before = Counts().without_ring;
    CHECK_EQ(nccl.Ask(100, kAllReduce, &costs), 2);
    CHECK_EQ(costs.cells[kRing][kSimple], kNotOffered);
    CHECK(std::isnan(costs.cells[kRing][kLowLatency]));
    CHECK_EQ(Counts().without_ring, before + 1);

    // Not wanted.
    CHECK_EQ(SetPlan({{100, 100, 2}}, false), 0);
    costs = Costs();
    CHECK_EQ(nccl.Ask(100, kAllReduce, &costs), 2);
    CHECK(costs == Costs());
    CHECK_EQ(Counts().without_ring, before + 1);
  }
}

// Nothing beside a table that is smaller than expected, or none, is touched.
TEST_CASE("SmallCostTables") {
  CHECK_EQ(SetPlan({{100, 100, 5}}), 0);
  void* context = nullptr;
  CHECK_EQ(ncclTunerPlugin_v4.init(kRanks, 1, nullptr, &context), kSuccess);
  const int64_t before = Counts().without_ring;
  int asked = 0;
  for (int algorithms = 0; algorithms <= 4; ++algorithms) {
    for (int protocols = 0; protocols <= 4; ++protocols) {
      std::vector<float> cells(algorithms * protocols, 1.0f);  // sanitizers see its ends
      int channels = kUntouched;
      CHECK_EQ(ncclTunerPlugin_v4.get_coll_info(context, kAllReduce, 100, 1,
                                                reinterpret_cast<CostTable>(cells.data()),
                                                algorithms, protocols, 0, &channels),
               kSuccess);
      CHECK_EQ(channels, 5);
      const bool has_ring = algorithms > kRing && protocols > kSimple;
      for (int i = 0; i < algorithms * protocols; ++i) {
        // Equal costs: Simple.
        CHECK_EQ(cells[i], has_ring && i == kRing * protocols + kSimple ? 0.0f : 1.0f);
      }
      asked += !has_ring;
    }
  }
  CHECK_EQ(Counts().without_ring, before + asked);
  CHECK_EQ(ncclTunerPlugin_v4.destroy(context), kSuccess);
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

std::string& Logged() {
  static std::string text;
  return text;
}

void KeepLine(int level, unsigned long subsystems, const char*, int, const char* format, ...) {
  CHECK_EQ(level, kLogInfo);
  CHECK_EQ(subsystems, kLogTuning);
  char line[200];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  Logged() += line;
}

TEST_CASE("NcclsLogNamesTheCommunicator") {
  void* context = nullptr;
  CHECK_EQ(ncclTunerPlugin_v5.init(&context, 7, 64, 8, KeepLine, nullptr, nullptr), kSuccess);
  CHECK_EQ(ncclTunerPlugin_v5.finalize(context), kSuccess);
  CHECK_EQ(Logged(), "TF-Libra's tuner: a communicator of 64 ranks on 8 nodes, interface v5");
}

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

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
