#include "ops/lanes/lane_engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/hosts_testing.h"

namespace tf_libra::lane_engine_test {
namespace {

using testing::AllReduce;
using testing::Call;
using testing::ConnectAll;
using testing::Engines;
using testing::Expected;
using testing::MakeEngine;
using testing::MakeEngines;
using testing::OnEveryRank;
using testing::Operation;
using testing::Patient;

constexpr ElementType kTypes[] = {ElementType::kFloat16, ElementType::kBFloat16,
                                  ElementType::kFloat32, ElementType::kFloat64};

// Random tensor lists, every dtype, every number of threads, in place and not.
TEST_CASE("EqualsTheReference") {
  testing::OverAll();
  const std::vector<std::vector<size_t>> lists = {
      {}, {0}, {1}, {0, 1, 0}, {5}, {1, 2, 3, 4, 5, 6, 7}, {20001, 0, 2345, 1}};
  for (int world_size = 1; world_size <= 4; ++world_size) {
    for (const int num_lanes : {1, 2, 4}) {
      const Engines engines = MakeEngines(ConnectAll(world_size, num_lanes));
      std::vector<Operation> operations;
      for (size_t i = 0; i < lists.size(); ++i) {
        for (const ElementType type : kTypes) {
          Operation operation;
          operation.counts = lists[i];
          operation.type = type;
          operation.num_threads = 1 + static_cast<int>(operations.size()) % num_lanes;
          operation.reduction = operations.size() % 3 == 0 ? Reduction::kSum : Reduction::kAverage;
          operation.in_place = (operations.size() + i) % 2 == 0;
          operations.push_back(operation);
        }
      }
      Operation large;  // more for one of two than an exchange has scratch
      large.counts = {600001, 3};
      large.num_threads = num_lanes;
      operations.push_back(large);
      std::vector<std::vector<char>> expected;
      for (size_t i = 0; i < operations.size(); ++i) {
        expected.push_back(Expected(operations[i], world_size, static_cast<int>(i)));
      }
      OnEveryRank(world_size, [&](int rank) {
        for (size_t i = 0; i < operations.size(); ++i) {
          std::vector<char> output;
          CHECK_EQ(AllReduce(engines[rank].get(), operations[i], static_cast<int>(i), &output),
                   testing::IsOk());
          CHECK(output == expected[i]);
        }
      });
    }
  }
}

// Bytes of each rank's part: equal, growing with the rank, or of rank 0 alone, which is summed.
std::vector<std::vector<ByteRange>> PartsOf(size_t part, int world_size) {
  std::vector<std::vector<ByteRange>> all(3);
  for (size_t rank = 0; rank < static_cast<size_t>(world_size); ++rank) {
    const size_t counts[] = {part, part * rank, rank == 0 ? part : 0};
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t begin = rank == 0 ? 0 : all[i].back().end;
      all[i].push_back({begin, begin + counts[i] * sizeof(float)});
    }
  }
  return all;
}

// Numbers of which some are not finite, denormal or zeros, in runs that are longer than a block.
std::vector<float> Numbers(size_t count) {
  constexpr float kSpecial[] = {INFINITY, -INFINITY, NAN, 1e-40f, -1e-44f, 3e38f};
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const bool is_zero = i / 300 % 2 == 1;
    values[i] = is_zero ? 0.0f : i % 5 == 0 ? kSpecial[i % 6] : static_cast<float>(i + 1);
  }
  return values;
}

// Parts of all ranks on every rank, divided; on a grid, and if ranks have different parts, they are
// added to zeros. What is in the output before does not matter.
void CheckGathering(std::vector<Mesh> meshes, bool is_grid = false) {
  const int world_size = static_cast<int>(meshes.size());
  std::vector<std::vector<ByteRange>> all_parts;
  // Also of five rows that are as wide as a block, or differ by an element.
  for (const size_t part : {size_t{0}, size_t{1}, size_t{33}, size_t{5 * 127}, size_t{5 * 128},
                            size_t{5 * 129}, size_t{70'001}}) {
    for (std::vector<ByteRange>& parts : PartsOf(part, world_size)) all_parts.push_back(parts);
  }
  OnEveryRank(world_size, [&](int rank) {
    const auto engine = MakeEngine(Patient(), std::move(meshes[rank]));
    for (const std::vector<ByteRange>& parts : all_parts) {
      for (const int num_threads : {1, 2, 3}) {
        for (const int divisor : {1, 3}) {
          auto info = std::make_shared<OperationInfo>();
          info->reduction = Reduction::kAverage;
          info->num_threads = num_threads;
          info->tensor_names = {"rows"};
          info->ComputeDigest();
          std::vector<float> expected = Numbers(parts.back().end / sizeof(float));
          if (!is_grid && parts.front().size() == parts.back().size()) {
            std::replace(expected.begin() + expected.size() / 2, expected.end(), 0.0f, -0.0f);
          }
          const std::vector<float> own(expected.begin() + parts[rank].begin / sizeof(float),
                                       expected.begin() + parts[rank].end / sizeof(float));
          for (float& value : expected) value /= static_cast<float>(divisor);
          std::vector<float> values(expected.size(), -1.0f);
          AllReduceRequest request;
          request.operation = info;
          request.parts = parts;
          request.part_divisor = divisor;
          request.tensors = {{own.data(), values.data(), values.size() * sizeof(float)}};
          std::promise<Status> end;
          request.done = [&end](const Status& status) { end.set_value(status); };
          engine->AllReduce(std::move(request));
          CHECK_EQ(end.get_future().get(), testing::IsOk());
          const size_t size = values.size() * sizeof(float);
          CHECK((size == 0 || std::memcmp(values.data(), expected.data(), size) == 0));
        }
      }
    }
  });
}

TEST_CASE("GathersOwnParts") {
  testing::OverAll();
  for (int world_size = 1; world_size <= 5; ++world_size) {
    CheckGathering(ConnectAll(world_size, 3));
  }
}

TEST_CASE("GathersOwnPartsOnAGrid") {
  CheckGathering(testing::ConnectHosts(testing::Hosts(2, 2), 3), /*is_grid=*/true);
  CheckGathering(testing::ConnectHosts({0, 0, 1}, 3), /*is_grid=*/true);
}

// The same gradients in one tensor or many, on any number of threads: the same bits.
TEST_CASE("GroupingAndThreadsChangeNothing") {
  testing::OverAll();
  for (const ElementType type : kTypes) {
    Operation whole;
    whole.counts = {100003};
    whole.type = type;
    const std::vector<char> expected = Expected(whole, 3, 1);
    const Engines engines = MakeEngines(ConnectAll(3, 4));
    for (const auto& counts : {std::vector<size_t>{100003}, {1, 100002}, {50000, 0, 3, 50000}}) {
      for (int num_threads = 1; num_threads <= 4; ++num_threads) {
        Operation operation = whole;
        operation.counts = counts;
        operation.num_threads = num_threads;
        OnEveryRank(3, [&](int rank) {
          std::vector<char> output;
          CHECK_EQ(AllReduce(engines[rank].get(), operation, 1, &output), testing::IsOk());
          CHECK(output == expected);
        });
      }
    }
  }
}

// Every lane at work tells so once, on its own thread, before the all-reduce is done.
TEST_CASE("LanesTellWhatTheyDid") {
  testing::OverAll();
  constexpr int kWorld = 2, kLanes = 3;
  std::mutex mutex;
  std::vector<LaneSpan> spans;
  std::vector<std::string> threads;
  LaneEngineOptions options = Patient();
  options.on_lane_done = [&](const LaneSpan& span) {
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const std::lock_guard<std::mutex> lock(mutex);
    spans.push_back(span);
    threads.push_back(name);
    CHECK_EQ(span.record->step, 5);
    CHECK_EQ(span.record->operation->num_threads, 2);
  };
  const Engines engines = MakeEngines(ConnectAll(kWorld, kLanes), options);
  Operation operation;
  operation.counts = {1000, 1};
  operation.num_threads = 2;
  const int64_t before = WallClock().Nanos();
  OnEveryRank(kWorld, [&](int rank) {
    engines[rank]->SetStep(5);
    CHECK_EQ(AllReduce(engines[rank].get(), operation), testing::IsOk());
  });
  const int64_t after = WallClock().Nanos();
  CHECK_EQ(spans.size(), static_cast<size_t>(kWorld * 2));
  uint64_t num_bytes = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    num_bytes += spans[i].num_bytes;
    CHECK_EQ(threads[i], "libra lane " + std::to_string(spans[i].lane));
    CHECK(spans[i].lane < 2);
    CHECK(before <= spans[i].started_nanos);
    CHECK(spans[i].started_nanos <= spans[i].first_byte_nanos);
    CHECK(spans[i].first_byte_nanos <= spans[i].finished_nanos);
    CHECK(spans[i].finished_nanos <= after);
  }
  CHECK_EQ(num_bytes, kWorld * operation.num_elements() * sizeof(float));
}

// As in a training step: everything is queued together, over several megabytes.
TEST_CASE("ManyInTheQueue") {
  testing::OverAll();
  const Engines engines = MakeEngines(ConnectAll(3, 4));
  std::mt19937 random(7);
  std::vector<Operation> operations(120);
  for (size_t i = 0; i < operations.size(); ++i) {
    operations[i].counts = {random() % 1000, i % 10 == 0 ? random() % (1 << 18) : random() % 100};
    operations[i].type = kTypes[random() % 4];
    operations[i].first_lane = static_cast<int>(random() % 4);
    operations[i].num_threads = 1 + static_cast<int>(random() % (4 - operations[i].first_lane));
    operations[i].in_place = random() % 2 == 0;
    operations[i].group = static_cast<int>(i);
  }
  OnEveryRank(3, [&](int rank) {
    engines[rank]->SetStep(17);
    std::vector<std::unique_ptr<Call>> calls;
    for (size_t i = 0; i < operations.size(); ++i) {
      calls.push_back(std::make_unique<Call>(operations[i], rank, static_cast<int>(i)));
      calls.back()->Start(engines[rank].get());
    }
    for (size_t i = 0; i < operations.size(); ++i) {
      CHECK_EQ(calls[i]->Wait(), testing::IsOk());
      CHECK(calls[i]->Output() == Expected(operations[i], 3, static_cast<int>(i)));
      CHECK_EQ(calls[i]->times_done(), 1);
    }
    uint64_t dropped = 1;
    std::vector<AllReduceRecord> records = engines[rank]->telemetry()->Drain(&dropped);
    CHECK_EQ(dropped, 0u);
    CHECK_EQ(records.size(), operations.size());
    std::sort(records.begin(), records.end(),
              [](const auto& one, const auto& other) { return one.sequence < other.sequence; });
    int64_t free_nanos[4] = {};
    for (size_t i = 0; i < records.size(); ++i) {
      const AllReduceRecord& record = records[i];
      CHECK_EQ(record.sequence, i);
      CHECK_EQ(record.step, 17);
      CHECK_EQ(record.operation->group, static_cast<int>(i));
      CHECK_EQ(record.num_bytes, operations[i].num_elements() * ElementSize(operations[i].type));
      CHECK(record.enqueued_nanos > 0);
      CHECK(record.enqueued_nanos <= record.started_nanos);
      CHECK(record.started_nanos <= record.first_byte_nanos);
      CHECK(record.first_byte_nanos <= record.finished_nanos);
      const OperationInfo& operation = *record.operation;
      for (int lane = 0; lane < operation.num_threads; ++lane) {
        int64_t& free_at = free_nanos[operation.first_lane + lane];
        CHECK(free_at <= record.started_nanos);
        free_at = record.finished_nanos;
      }
    }
    CHECK_EQ(engines[rank]->telemetry()->Drain(&dropped).size(), 0u);
  });
}

// One on lane 0 ends no sooner than those behind it on lane 1 have, in whatever order they end on
// the other rank.
TEST_CASE("LanesOfTheirOwnRunAtOnce") {
  testing::OverAll();
  std::promise<void> others_have_ended;
  const std::shared_future<void> end = others_have_ended.get_future().share();
  LaneEngineOptions options = Patient();
  options.on_lane_done = [&](const LaneSpan& span) {
    if (span.lane == 0) end.wait();
  };
  const Engines engines = MakeEngines(ConnectAll(2, 3), options);
  std::vector<Operation> operations(4);
  for (size_t i = 0; i < operations.size(); ++i) {
    operations[i].counts = {1000 + i};
    operations[i].group = static_cast<int>(i);
    operations[i].first_lane = i == 0 ? 0 : 1;
    operations[i].num_threads = i == 2 ? 2 : 1;
  }
  std::vector<std::vector<std::unique_ptr<Call>>> calls(2);
  OnEveryRank(2, [&](int rank) {
    for (size_t i = 0; i < operations.size(); ++i) {
      calls[rank].push_back(std::make_unique<Call>(operations[i], rank, static_cast<int>(i)));
      calls[rank].back()->Start(engines[rank].get());
    }
    for (size_t i = 1; i < operations.size(); ++i)
      CHECK_EQ(calls[rank][i]->Wait(), testing::IsOk());
  });
  for (const auto& of_rank : calls) CHECK_EQ(of_rank[0]->times_done(), 0);
  others_have_ended.set_value();
  for (const auto& of_rank : calls) {
    CHECK_EQ(of_rank[0]->Wait(), testing::IsOk());
    for (size_t i = 0; i < operations.size(); ++i) {
      CHECK(of_rank[i]->Output() == Expected(operations[i], 2, static_cast<int>(i)));
    }
  }
}

// From threads of its own, an AllReduce within `done`, control messages in between.
TEST_CASE("CallsFromAnywhere") {
  testing::OverAll();
  const Engines engines = MakeEngines(ConnectAll(2, 2));
  OnEveryRank(2, [&](int rank) {
    Operation operation;
    operation.counts = {1000};
    operation.num_threads = 2;
    LaneEngine* const engine = engines[rank].get();
    Call second(operation, rank, 2);
    std::promise<Status> first_done;
    std::vector<float> values(1000, static_cast<float>(rank));
    AllReduceRequest request;
    request.operation = operation.Info();
    request.tensors = {{values.data(), values.data(), values.size() * sizeof(float)}};
    request.done = [&](const Status& status) {
      second.Start(engine);
      first_done.set_value(status);
    };
    engine->AllReduce(std::move(request));
    std::vector<std::string> all;
    CHECK_EQ(engine->AllGather(std::string(1 << 20, static_cast<char>('a' + rank)), &all),
             testing::IsOk());
    CHECK((all.size() == 2 && all[1].size() == (1 << 20) && all[1][5] == 'b'));
    std::string message = rank == 0 ? "a plan" : "";
    CHECK_EQ(engine->Broadcast(0, &message), testing::IsOk());
    CHECK_EQ(message, "a plan");
    CHECK_EQ(first_done.get_future().get(), testing::IsOk());
    CHECK_EQ(values[999], 0.5f);
    CHECK_EQ(second.Wait(), testing::IsOk());
    CHECK(second.Output() == Expected(operation, 2, 2));
  });
}

}  // namespace
}  // namespace tf_libra::lane_engine_test
