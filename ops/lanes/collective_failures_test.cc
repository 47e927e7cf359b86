// Collectives that fail: sets that an engine rejects, ranks that disagree, and lost ranks.
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/collective.h"
#include "ops/lanes/collective_testing.h"
#include "ops/lanes/frame.h"
#include "ops/lanes/testing.h"

namespace tf_libra::collective_failures_test {
namespace {

using collective_testing::Call;
using collective_testing::CallSpec;
using collective_testing::CheckCall;
using collective_testing::MakeEngines;
using testing::Engines;
using testing::kShortSeconds;
using testing::OnEveryRank;

TEST_CASE("SetThatHasNotTheRank") {
  testing::OverAll();
  Engines engines = MakeEngines(3);
  const auto refused = [&](const CallSpec& spec, const std::string& part) {
    Call call(spec, 0);
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
void CheckDisagreement(const CallSpec& mine, const CallSpec& theirs, const std::string& one,
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
  const CallSpec reduces{CollectiveKind::kAllReduce, {0, 1}, 4};
  CallSpec gathers = reduces, longer = reduces, averages = reduces, order = reduces;
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
}  // namespace tf_libra::collective_failures_test
