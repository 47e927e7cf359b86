#include "ops/lanes/collective.h"

#include <algorithm>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/lanes/collective_testing.h"
#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra::collective_test {
namespace {

using collective_testing::Call;
using collective_testing::CallSpec;
using collective_testing::CheckCall;
using collective_testing::MakeEngines;
using collective_testing::Ranks;
using collective_testing::Sum;
using testing::Engines;
using testing::OnEveryRank;

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
                                     CollectiveKind::kReduce};

// Every kind over every set of ranks, in one order or another.
TEST_CASE("EveryKindOverEverySet") {
  testing::OverAll();
  constexpr int kWorld = 4;
  Engines engines = MakeEngines(kWorld);
  const std::vector<Ranks> sets = {{0},    {2},       {0, 1},    {3, 1},
                                   {0, 2}, {1, 2, 3}, {3, 0, 2}, {0, 1, 2, 3}};
  std::vector<CallSpec> all;
  for (const Ranks& ranks : sets) {
    for (const CollectiveKind kind : kKinds) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{12}, size_t{60'000}}) {
        for (const bool in_place : {false, true}) {
          CallSpec spec{kind, ranks, count};
          spec.in_place = in_place;
          const bool resizes =
              kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
          if (resizes && (in_place || count == 1)) continue;
          if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) {
            spec.root = ranks[count % ranks.size()];
          }
          if (count == 12) spec.reduction = Reduction::kAverage;
          spec.name = "call " + std::to_string(all.size());
          all.push_back(spec);
        }
      }
    }
  }
  // All of them concurrently, in another order on each rank.
  OnEveryRank(kWorld, [&](int rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (const CallSpec& spec : all) {
      if (std::count(spec.ranks.begin(), spec.ranks.end(), rank) == 0) continue;
      calls.push_back(std::make_unique<Call>(spec, rank));
    }
    std::mt19937 random(static_cast<uint32_t>(rank));
    std::vector<Call*> order;
    for (auto& call : calls) order.push_back(call.get());
    std::shuffle(order.begin(), order.end(), random);
    for (Call* call : order) call->Start(engines[rank].get());
    for (auto& call : calls) CheckCall(call.get(), rank);
  });
}

// Blocks of parts wait for those of other ranks, and rings for them come round several times.
TEST_CASE("LargerThanWhatRanksHoldAtATime") {
  testing::OverAll();
  constexpr int kWorld = 4;
  Engines engines = MakeEngines(kWorld);
  const std::vector<Ranks> sets = {{1, 0}, {3, 0, 2, 1}};
  for (const Ranks& ranks : sets) {
    OnEveryRank(kWorld, [&](int rank) {
      if (std::count(ranks.begin(), ranks.end(), rank) == 0) return;
      std::vector<std::unique_ptr<Call>> calls;
      for (const CollectiveKind kind : kKinds) {
        for (const bool in_place : {false, true}) {
          CallSpec spec{kind, ranks, size_t{300'000}};
          spec.in_place = in_place;
          if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast) {
            spec.count += 5;  // parts of different sizes
          }
          const bool resizes =
              kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
          if (resizes && in_place) continue;
          if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) {
            spec.root = ranks.back();
          }
          spec.name = std::string(CollectiveName(kind)) + (in_place ? " in place" : "");
          calls.push_back(std::make_unique<Call>(spec, rank));
        }
      }
      // In another order on each rank.
      std::rotate(calls.begin(), calls.begin() + rank, calls.end());
      for (auto& call : calls) call->Start(engines[rank].get());
      for (auto& call : calls) CheckCall(call.get(), rank);
    });
  }
}

// Half of the values are zeros, and rounding to bfloat16 changes the others to 256.
std::future<Status> StartRounded(LaneEngine* engine, std::vector<float>* values) {
  values->assign(50'000, 0.0f);
  for (size_t i = 0; i < values->size(); ++i) (*values)[i] = i / 1000 % 2 == 0 ? 257.0f : 0.0f;
  auto info = std::make_shared<OperationInfo>();
  info->reduction = Reduction::kSum;
  info->wire_type = ElementType::kBFloat16;
  info->tensor_names = {"gradient"};
  info->ComputeDigest();
  auto end = std::make_shared<std::promise<Status>>();
  AllReduceRequest request;
  request.operation = info;
  request.tensors = {{values->data(), values->data(), 4 * values->size()}};
  request.done = [end](const Status& status) { end->set_value(status); };
  engine->AllReduce(std::move(request));
  return end->get_future();
}

// Collectives of some ranks send every bit, while all-reduces of a plan round and leave out zeros.
TEST_CASE("NextToRoundedAllReduces") {
  testing::OverAll();
  const Engines engines = MakeEngines(3);
  OnEveryRank(3, [&](int rank) {
    for (int step = 0; step < 4; ++step) {
      std::vector<float> values;
      std::future<Status> end = StartRounded(engines[rank].get(), &values);
      Call call({CollectiveKind::kAllReduce, {2, 0}, size_t{60'000}}, rank);
      std::fill_n(call.input.begin(), 30'000, 0.0f);
      std::vector<float> sum = Sum(call.spec);
      std::fill_n(sum.begin(), 30'000, 0.0f);
      if (rank != 1) {
        call.Start(engines[rank].get());
        CHECK_EQ(call.Wait(), testing::IsOk());
        CHECK(call.output == sum);
      }
      CHECK_EQ(end.get(), testing::IsOk());
      const auto num_rounded = std::count(values.begin(), values.end(), 3 * 256.0f);
      CHECK_EQ(num_rounded, 25'000);
      CHECK_EQ(num_rounded + std::count(values.begin(), values.end(), 0.0f), 50'000);
    }
  });
}

TEST_CASE("SameNameAgainAndAgain") {
  testing::OverAll();
  Engines engines = MakeEngines(3);
  OnEveryRank(3, [&](int rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < 30; ++i) {
      const CallSpec spec{CollectiveKind::kAllReduce, {0, 1, 2}, size_t{1000}};
      calls.push_back(std::make_unique<Call>(spec, rank));
      for (float& value : calls.back()->input) value *= static_cast<float>(i);
      calls.back()->Start(engines[rank].get());
    }
    for (int i = 0; i < 30; ++i) {
      CHECK_EQ(calls[i]->Wait(), testing::IsOk());
      const auto zeros = std::count(calls[i]->output.begin(), calls[i]->output.end(), 0.0f);
      CHECK_EQ(zeros == 1000, i == 0);
    }
    for (int i = 2; i < 30; i *= 2) {
      CHECK_EQ(calls[i]->output[7], static_cast<float>(i) * calls[1]->output[7]);  // exactly
    }
  });
}

}  // namespace
}  // namespace tf_libra::collective_test
