// Ranks that request what cannot be, that disagree, that do not arrive or fall silent.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"

namespace tf_libra::lane_engine_failures_test {
namespace {

using testing::AllReduce;
using testing::Call;
using testing::ConnectAll;
using testing::Engines;
using testing::MakeEngine;
using testing::MakeEngines;
using testing::OnEveryRank;
using testing::Operation;
using testing::Patient;

TEST_CASE("ThreadsThatTheEngineDoesNotHave") {
  testing::OverAll();
  const Engines engines = MakeEngines(ConnectAll(2, 2));
  OnEveryRank(2, [&](int rank) {
    Operation operation;
    operation.counts = {10};
    for (const int num_threads : {0, -1, 3, 1 << 20}) {
      operation.num_threads = num_threads;
      const Status status = AllReduce(engines[rank].get(), operation);
      CHECK_EQ(status, testing::StatusIs(StatusCode::kInvalidArgument,
                                         "got " + std::to_string(num_threads)));
      CHECK_EQ(status.message(), testing::Contains("2 lane(s)"));
    }
    operation.num_threads = 1;
    for (const int first_lane : {-1, 2, 1 << 30}) {
      operation.first_lane = first_lane;
      CHECK_EQ(AllReduce(engines[rank].get(), operation),
               testing::StatusIs(StatusCode::kInvalidArgument,
                                 "first_lane must be between 0 and 1 for 1 of 2 lane(s), got " +
                                     std::to_string(first_lane)));
    }
    operation.first_lane = 0;
    operation.num_threads = 2;  // the engine is none the worse
    CHECK_EQ(AllReduce(engines[rank].get(), operation), testing::IsOk());
  });
}

// Whatever one of three ranks does differently, all end with an error that names that rank (it
// itself: another), and no wrong sum gets anywhere.
TEST_CASE("RanksThatDisagree") {
  testing::OverAll();
  const auto changes = std::vector<void (*)(Operation*)>{
      [](Operation* operation) { operation->name = "another"; },
      [](Operation* operation) { operation->counts = {3000, 1001}; },
      [](Operation* operation) { operation->counts = {1000, 3000}; },  // the same sum of bytes
      [](Operation* operation) { operation->group = 1; },
      [](Operation* operation) { operation->num_threads = 1; },
      [](Operation* operation) { operation->num_threads = 4; },
      [](Operation* operation) { operation->first_lane = 1; },
      [](Operation* operation) { operation->type = ElementType::kFloat64; },
      [](Operation* operation) {
        operation->type = ElementType::kFloat16;
        operation->counts = {6000, 2000};
      },
      [](Operation* operation) { operation->reduction = Reduction::kSum; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const int odd = static_cast<int>(i % 3);
    const Engines engines = MakeEngines(ConnectAll(3, 4));
    OnEveryRank(3, [&](int rank) {
      Operation operation;
      operation.counts = {3000, 1000};
      operation.num_threads = 2;
      if (rank == odd) changes[i](&operation);
      std::vector<char> output;
      const Status status = AllReduce(engines[rank].get(), operation, 0, &output);
      CHECK((status.code() == StatusCode::kFailedPrecondition ||
             status.code() == StatusCode::kUnavailable));
      CHECK_EQ(status.message(), testing::Contains("rank " + std::to_string(odd)));
      CHECK(output == std::vector<char>(output.size(), '\x55'));
      CHECK_EQ(AllReduce(engines[rank].get(), operation).message(), status.message());
    });
  }
}

TEST_CASE("RankThatDoesNotArrive") {
  testing::OverAll();
  std::mutex mutex;
  std::vector<std::string> warnings;
  LaneEngineOptions options;
  options.timeout_seconds = 3;
  options.stall_warning_seconds = 1;  // by then the others have come
  options.warn = [&](const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    warnings.push_back(text);
  };
  const Engines engines = MakeEngines(ConnectAll(3, 2), options);
  std::vector<Status> ends(3);
  Operation operation;
  operation.counts = {100000};
  operation.num_threads = 2;
  operation.group = 3;
  OnEveryRank(3, [&](int rank) {
    if (rank == 1) return;
    engines[rank]->SetStep(42);
    ends[rank] = AllReduce(engines[rank].get(), operation);
  });
  // One of them is the first to give up, and tells the other.
  CHECK((ends[0].code() == StatusCode::kDeadlineExceeded ||
         ends[2].code() == StatusCode::kDeadlineExceeded));
  for (const int rank : {0, 2}) {
    CHECK(!ends[rank].ok());
    CHECK_EQ(ends[rank].message(), testing::Contains("for rank(s) 1"));
    CHECK_EQ(ends[rank].message(), testing::Contains("group 3"));
    CHECK_EQ(ends[rank].message(), testing::Contains("step 42 was not completed"));
  }
  CHECK(!warnings.empty());
  for (const std::string& warning : warnings) {
    CHECK_EQ(warning, testing::Contains("for rank(s) 1 in group 3"));
    CHECK_EQ(warning, testing::Contains("step 42"));
  }
  // The late rank learns of it immediately.
  engines[1]->SetStep(42);
  CHECK_EQ(AllReduce(engines[1].get(), operation),
           testing::StatusIs(StatusCode::kUnavailable, "for rank(s) 1"));
}

// Plays rank 1 of two on one lane, for a slice of `count` float32: sends `header` and its part,
// and then, where `to_the_end`, what it owes after having received its own.
void PlayRank1(const Connection& lane, const ExchangeHeader& header, size_t count,
               bool to_the_end) {
  const size_t rank0 = count / 2 * sizeof(float), rank1 = count * sizeof(float) - rank0;
  const std::string message = testing::HeaderBytes(lane, header) + std::string(rank0, '\0');
  CHECK_EQ(testing::Send(lane, message.data(), message.size()), testing::IsOk());
  // Rank 0's header was read to find out what to say. What follows it: a part, and a sum.
  std::vector<char> part(rank1), sum(rank0);
  CHECK_EQ(testing::Receive(lane, part.data(), part.size()), testing::IsOk());
  CHECK_EQ(testing::ReceiveSum(lane, sum.data(), sum.size()), testing::IsOk());
  if (to_the_end) CHECK_EQ(testing::SendSum(lane, part.data(), part.size()), testing::IsOk());
}

ExchangeHeader HeaderOfRank0(const Connection& lane) {
  ExchangeHeader header;
  CHECK_EQ(testing::ReceiveHeader(lane, &header), testing::IsOk());
  return header;
}

Operation OnTwoLanes() {
  Operation operation;
  operation.counts = {2000};
  operation.num_threads = 2;
  return operation;
}

// Lane 0 was through before the peer fell silent.
TEST_CASE("AnyLaneWarns") {
  testing::OverAll();
  std::vector<std::string> warnings;
  LaneEngineOptions options;
  options.timeout_seconds = 1;
  options.stall_warning_seconds = 0.2;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  std::vector<Mesh> meshes = ConnectAll(2, 2);
  const auto engine = MakeEngine(options, std::move(meshes[0]));
  Call call(OnTwoLanes(), 0, 0);
  call.Start(engine.get());
  const Connection& lane = meshes[1].lanes[0].column[0];
  PlayRank1(lane, HeaderOfRank0(lane), 1000, true);
  CHECK_EQ(call.Wait(), testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
  CHECK_EQ(warnings.size(), 1u);
}

// Lane 0 hears of the peer first and is through last.
TEST_CASE("FirstByteOfAnyLane") {
  testing::OverAll();
  std::vector<Mesh> meshes = ConnectAll(2, 2);
  const auto engine = MakeEngine(Patient(), std::move(meshes[0]));
  Call call(OnTwoLanes(), 0, 0);
  call.Start(engine.get());
  const Connection& lane0 = meshes[1].lanes[0].column[0];
  const Connection& lane1 = meshes[1].lanes[1].column[0];
  PlayRank1(lane0, HeaderOfRank0(lane0), 1000, false);
  const int64_t heard = WallClock().Nanos();
  PlayRank1(lane1, HeaderOfRank0(lane1), 1000, true);
  const std::vector<char> sum(500 * sizeof(float));
  CHECK_EQ(testing::SendSum(lane0, sum.data(), sum.size()), testing::IsOk());
  CHECK_EQ(call.Wait(), testing::IsOk());
  uint64_t dropped;
  const std::vector<AllReduceRecord> records = engine->telemetry()->Drain(&dropped);
  CHECK_EQ(records.size(), 1u);
  CHECK(records[0].started_nanos <= records[0].first_byte_nanos);
  CHECK(records[0].first_byte_nanos <= heard);
}

}  // namespace
}  // namespace tf_libra::lane_engine_failures_test
