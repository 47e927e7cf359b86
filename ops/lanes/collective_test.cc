#include "ops/lanes/collective.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/lanes/frame.h"
#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra::collective_test {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::OnEveryRank;

using Engines = std::vector<std::shared_ptr<LaneEngine>>;
using Ranks = std::vector<int>;

Engines MakeEngines(int world_size, double timeout_seconds = kGenerousSeconds) {
  Engines engines;
  LaneEngineOptions options;
  options.timeout_seconds = timeout_seconds;
  for (Mesh& mesh : ConnectAll(world_size, 1)) {
    engines.emplace_back();
    CHECK_EQ(LaneEngine::Start(options, std::move(mesh), &engines.back()), testing::IsOk());
  }
  return engines;
}

// Values of mixed sizes, so that sums are rounded.
std::vector<float> Values(int rank, size_t count) {
  std::mt19937 random(static_cast<uint32_t>(rank));
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(random())) / 3e6f;
  return values;
}

struct What {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Ranks ranks;
  size_t count = 0;
  int root = -1;
  Reduction reduction = Reduction::kSum;
  bool in_place = false;
  std::string name = "x";
};

// One rank's call: its memory, and its end.
struct Call {
  Call(const What& called, int rank) : what(called), input(Values(rank, called.count)) {
    size_t count = what.count;
    if (what.kind == CollectiveKind::kAllGather) count *= what.ranks.size();
    if (what.kind == CollectiveKind::kReduceScatter) count /= what.ranks.size();
    if (!what.in_place) output.assign(count, -1);
  }

  void Start(LaneEngine* engine) {
    CollectiveRequest request;
    request.kind = what.kind;
    request.ranks = what.ranks;
    request.root = what.root;
    request.name = what.name;
    request.content = "float [" + std::to_string(what.count) + "]";
    request.reduction = what.reduction;
    request.input = reinterpret_cast<const char*>(input.data());
    request.output = reinterpret_cast<char*>(result().data());
    request.num_bytes = 4 * what.count;
    request.done = [this](const Status& status) {
      CHECK_EQ(times_done.fetch_add(1), 0);
      end.set_value(status);
    };
    engine->Run(std::move(request));
  }

  Status Wait() {
    auto future = end.get_future();
    const auto wait = std::chrono::duration<double>(2 * kGenerousSeconds);
    const bool ended = future.wait_for(wait) == std::future_status::ready;
    CHECK(ended);
    return ended ? future.get() : Status();
  }

  std::vector<float>& result() { return what.in_place ? input : output; }

  const What what;
  std::vector<float> input, output;
  std::promise<Status> end;
  std::atomic<int> times_done{0};
};

std::vector<float> Sum(const What& what) {
  std::vector<std::vector<float>> inputs;
  std::vector<const void*> pointers;
  for (const int rank : what.ranks) inputs.push_back(Values(rank, what.count));
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<float> sum(what.count);
  ReduceBlock(ElementType::kFloat32, what.reduction, pointers, what.count, sum.data());
  return sum;
}

std::vector<float> Expected(const What& what, int rank) {
  const size_t own = std::find(what.ranks.begin(), what.ranks.end(), rank) - what.ranks.begin();
  std::vector<float> all;
  switch (what.kind) {
    case CollectiveKind::kAllReduce:
      return Sum(what);
    case CollectiveKind::kReduceScatter: {
      const std::vector<float> sum = Sum(what);
      const size_t part = what.count / what.ranks.size();
      return {sum.begin() + own * part, sum.begin() + (own + 1) * part};
    }
    case CollectiveKind::kAllGather:
      for (const int one : what.ranks) {
        const std::vector<float> values = Values(one, what.count);
        all.insert(all.end(), values.begin(), values.end());
      }
      return all;
    case CollectiveKind::kBroadcast:
      return Values(what.root, what.count);
    case CollectiveKind::kReduce:
      break;
  }
  return rank == what.root ? Sum(what) : std::vector<float>(what.count, 0);
}

void CheckCall(Call* call, int rank) {
  CHECK_EQ(call->Wait(), testing::IsOk());
  const std::vector<float> expected = Expected(call->what, rank);
  const std::vector<float>& result = call->result();
  CHECK_EQ(result.size(), expected.size());
  const bool same =
      result.size() == expected.size() &&
      (expected.empty() || std::memcmp(result.data(), expected.data(), 4 * expected.size()) == 0);
  CHECK(same);
  if (!same) std::cerr << CollectiveName(call->what.kind) << " of " << call->what.count << "\n";
}

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
  std::vector<What> all;
  for (const Ranks& ranks : sets) {
    for (const CollectiveKind kind : kKinds) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{12}, size_t{60'000}}) {
        for (const bool in_place : {false, true}) {
          What what{kind, ranks, count};
          what.in_place = in_place;
          const bool resizes =
              kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
          if (resizes && (in_place || count == 1)) continue;
          if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) {
            what.root = ranks[count % ranks.size()];
          }
          if (count == 12) what.reduction = Reduction::kAverage;
          what.name = "call " + std::to_string(all.size());
          all.push_back(what);
        }
      }
    }
  }
  // All of them concurrently, in another order on each rank.
  OnEveryRank(kWorld, [&](int rank) {
    std::vector<std::unique_ptr<Call>> calls;
    for (const What& what : all) {
      if (std::count(what.ranks.begin(), what.ranks.end(), rank) == 0) continue;
      calls.push_back(std::make_unique<Call>(what, rank));
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
          What what{kind, ranks, size_t{300'000}};
          what.in_place = in_place;
          if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast) {
            what.count += 5;  // parts of different sizes
          }
          const bool resizes =
              kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
          if (resizes && in_place) continue;
          if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce) {
            what.root = ranks.back();
          }
          what.name = std::string(CollectiveName(kind)) + (in_place ? " in place" : "");
          calls.push_back(std::make_unique<Call>(what, rank));
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
      std::vector<float> sum = Sum(call.what);
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
      const What what{CollectiveKind::kAllReduce, {0, 1, 2}, size_t{1000}};
      calls.push_back(std::make_unique<Call>(what, rank));
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

TEST_CASE("SetThatHasNotTheRank") {
  testing::OverAll();
  Engines engines = MakeEngines(3);
  const auto refused = [&](const What& what, const std::string& part) {
    Call call(what, 0);
    call.Start(engines[0].get());
    CHECK_EQ(call.Wait(), testing::StatusIs(StatusCode::kInvalidArgument, part));
  };
  refused({CollectiveKind::kAllReduce, {1, 2}, 4}, "rank 0 is not among the ranks");
  refused({CollectiveKind::kAllReduce, {0, 3}, 4}, "ranks are from 0 to 2");
  refused({CollectiveKind::kAllReduce, {0, 1, 0}, 4}, "a rank is named twice");
  refused({CollectiveKind::kBroadcast, {0, 1}, 4, 2}, "the root is not among the ranks");
  refused({CollectiveKind::kReduceScatter, {0, 1, 2}, 4}, "cannot be dealt out evenly");
  // And the engine goes on.
  OnEveryRank(3, [&](int rank) {
    Call call({CollectiveKind::kAllReduce, {0, 1, 2}, size_t{5}}, rank);
    call.Start(engines[rank].get());
    CheckCall(&call, rank);
  });
}

// If two ranks run different operations, the error on each names the operation of the other.
void CheckDisagreement(const What& mine, const What& theirs, const std::string& one,
                       const std::string& other) {
  Engines engines = MakeEngines(2);
  OnEveryRank(2, [&](int rank) {
    Call call(rank == 0 ? mine : theirs, rank);
    call.Start(engines[rank].get());
    const Status status = call.Wait();
    CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition, "'x' is "));
    CHECK_EQ(status.message(), testing::Contains(one));
    CHECK_EQ(status.message(), testing::Contains(other));
  });
}

TEST_CASE("RanksThatDoSomethingElse") {
  testing::OverAll();
  const What reduces{CollectiveKind::kAllReduce, {0, 1}, 4};
  What gathers = reduces, longer = reduces, averages = reduces, order = reduces;
  gathers.kind = CollectiveKind::kAllGather;
  longer.count = 6;
  averages.reduction = Reduction::kAverage;
  order.ranks = {1, 0};
  CheckDisagreement(reduces, gathers, "all_reduce (sum) of float [4]", "all_gather of float [4]");
  CheckDisagreement(longer, reduces, "float [6]", "float [4]");
  CheckDisagreement(reduces, averages, "(sum)", "(average)");
  CheckDisagreement(reduces, order, "over ranks 0, 1", "over ranks 1, 0");
}

// Participants receive the reason; other ranks go on.
TEST_CASE("RankThatDoesNotCome") {
  testing::OverAll();
  Engines engines = MakeEngines(3, kShortSeconds);
  Call call({CollectiveKind::kAllReduce, {0, 1}, size_t{4}}, 0);
  call.Start(engines[0].get());
  CHECK_EQ(call.Wait(), testing::StatusIs(StatusCode::kDeadlineExceeded,
                                          "rank 1 to send 'x' (all_reduce (sum)"));
  Call alone({CollectiveKind::kAllReduce, {2}, size_t{4}}, 2);
  alone.Start(engines[2].get());
  CheckCall(&alone, 2);
}

TEST_CASE("AbortIsToldToWhoeverTakesPart") {
  testing::OverAll();
  Engines engines = MakeEngines(3);
  Call call({CollectiveKind::kAllReduce, {0, 1, 2}, size_t{4}}, 0);
  call.Start(engines[0].get());
  engines[2]->Abort(Status(StatusCode::kUnavailable, "no more data"));
  CHECK_EQ(call.Wait(),
           testing::StatusIs(StatusCode::kUnavailable, "rank 2 gave up: no more data"));
  Call late({CollectiveKind::kAllReduce, {0, 1}, size_t{4}}, 0);
  late.Start(engines[0].get());
  CHECK_EQ(late.Wait(), testing::StatusIs(StatusCode::kUnavailable, "no more data"));
}

std::string Described(const std::vector<int>& ranks) {
  CollectiveRequest request;
  request.ranks = ranks;
  request.content = "float32 [8, 16]";
  return Describe(request);
}

// What a message says of its set fits into a frame, however many ranks the set has.
TEST_CASE("LargeSetsAreTold") {
  const auto range = [](int size) {
    std::vector<int> ranks(size);
    for (int i = 0; i < size; ++i) ranks[i] = i;
    return ranks;
  };
  const std::string name(1000, 'n');
  for (const int size : {16, 17, 1499, 1500, 100000}) {
    const std::vector<int> ranks = range(size);
    const std::string text = Described(ranks);
    CHECK(text.size() < 200);
    CHECK(FitsFrame(name, text));
    CHECK_EQ(Described(ranks), text);
    CHECK_EQ(text, testing::Contains("over ranks 0, 1, 2, "));
    if (size > 16)
      CHECK_EQ(text, testing::Contains(", ..., " + std::to_string(size - 1) + " (" +
                                       std::to_string(size) + " ranks, digest "));
    std::vector<int> others = ranks;
    std::swap(others[5], others[6]);  // the order of summation
    CHECK(Described(others) != text);
    others = ranks;
    others[size / 2] = size;
    CHECK(Described(others) != text);
  }
  // Numbers that say the same in a row are other ranks.
  std::vector<int> one = range(20), other = one;
  one[8] = 112, one[9] = 3;
  other[8] = 11, other[9] = 23;
  CHECK(Described(one) != Described(other));
}

}  // namespace
}  // namespace tf_libra::collective_test
