// What is of the interface itself, in all of its versions.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

#include "ops/nccl_tuner/testing.h"

namespace tf_libra {
namespace nccl {
namespace {

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

// Nothing outside a table that is smaller than expected, or missing, is touched.
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

std::string& PluginLog() {
  static std::string text;
  return text;
}

void KeepPluginLine(int level, unsigned long subsystems, const char*, int, const char* format,
                    ...) {
  CHECK_EQ(level, kLogInfo);
  CHECK_EQ(subsystems, kLogTuning);
  char line[200];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof(line), format, values);
  va_end(values);
  PluginLog() += line;
}

TEST_CASE("NcclsLogNamesTheCommunicator") {
  void* context = nullptr;
  CHECK_EQ(ncclTunerPlugin_v5.init(&context, 7, 64, 8, KeepPluginLine, nullptr, nullptr), kSuccess);
  CHECK_EQ(ncclTunerPlugin_v5.finalize(context), kSuccess);
  CHECK_EQ(PluginLog(), "TF-Libra's tuner: a communicator of 64 ranks on 8 nodes, interface v5");
}

}  // namespace
}  // namespace nccl
}  // namespace tf_libra
