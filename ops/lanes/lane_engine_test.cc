#include "ops/lanes/lane_engine.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::OnEveryRank;

using Engines = std::vector<std::shared_ptr<LaneEngine>>;

LaneEngineOptions Patient() {
  LaneEngineOptions options;
  options.timeout_seconds = kGenerousSeconds;
  return options;
}

std::shared_ptr<LaneEngine> MakeEngine(const LaneEngineOptions& options, Mesh mesh) {
  std::shared_ptr<LaneEngine> engine;
  CHECK_OK(LaneEngine::Start(options, std::move(mesh), &engine));
  return engine;
}

Engines MakeEngines(std::vector<Mesh> meshes, const LaneEngineOptions& options = Patient()) {
  Engines engines;
  for (Mesh& mesh : meshes) engines.push_back(MakeEngine(options, std::move(mesh)));
  return engines;
}

struct Operation {
  std::vector<size_t> counts;  // elements of each tensor
  ElementType type = ElementType::kFloat32;
  int num_threads = 1;
  int first_lane = 0;
  Reduction reduction = Reduction::kAverage;
  bool in_place = false;
  int group = 0;
  std::string name = "tensor";

  std::shared_ptr<const OperationInfo> Info() const {
    auto info = std::make_shared<OperationInfo>();
    info->plan = "plan";
    info->group = group;
    info->num_threads = num_threads;
    info->first_lane = first_lane;
    info->reduction = reduction;
    info->tensor_names.assign(counts.size(), name);
    info->ComputeDigest();
    return info;
  }

  size_t num_elements() const {
    size_t total = 0;
    for (const size_t count : counts) total += count;
    return total;
  }
};

// A rank's gradients, laid end to end: finite, of mixed sizes, so that sums are rounded.
std::vector<char> Gradients(const Operation& operation, int rank, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed * 16 + rank));
  std::vector<char> bytes(operation.num_elements() * ElementSize(operation.type));
  for (size_t i = 0; i < operation.num_elements(); ++i) {
    const uint32_t bits = random();
    const float value = static_cast<float>(static_cast<int32_t>(bits)) / 3e6f;
    const double wide = value * 1.1;
    // Sign, an exponent from the middle of the range, any fraction.
    const uint16_t half = static_cast<uint16_t>(bits & 0xbfff) | 0x2000;
    switch (operation.type) {
      case ElementType::kFloat32:
        std::memcpy(&bytes[i * 4], &value, 4);
        break;
      case ElementType::kFloat64:
        std::memcpy(&bytes[i * 8], &wide, 8);
        break;
      default:
        std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

std::vector<char> Expected(const Operation& operation, int world_size, int seed) {
  std::vector<std::vector<char>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.push_back(Gradients(operation, rank, seed));
  }
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<char> out(inputs[0].size());
  ReduceBlock(operation.type, operation.reduction, pointers, operation.num_elements(), out.data());
  return out;
}

// One call of AllReduce: its memory, and its end.
class Call {
 public:
  Call(const Operation& operation, int rank, int seed) : operation_(operation) {
    const std::vector<char> gradients = Gradients(operation, rank, seed);
    size_t at = 0;
    for (const size_t count : operation.counts) {
      const size_t size = count * ElementSize(operation.type);
      inputs_.emplace_back(gradients.begin() + at, gradients.begin() + at + size);
      outputs_.emplace_back(size, '\x55');
      at += size;
    }
  }

  void Start(LaneEngine* engine) {
    AllReduceRequest request;
    request.operation = operation_.Info();
    request.element_type = operation_.type;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      auto& output = operation_.in_place ? inputs_[i] : outputs_[i];
      request.tensors.push_back({inputs_[i].data(), output.data(), output.size()});
    }
    request.done = [this](const Status& status) {
      if (times_done_.fetch_add(1) == 0) end_.set_value(status);
    };
    engine->AllReduce(std::move(request));
  }

  // Once, after Start.
  Status Wait() { return end_.get_future().get(); }

  std::vector<char> Output() const {
    std::vector<char> flat;
    for (const auto& tensor : operation_.in_place ? inputs_ : outputs_) {
      flat.insert(flat.end(), tensor.begin(), tensor.end());
    }
    return flat;
  }

  int times_done() const { return times_done_; }

 private:
  const Operation operation_;
  std::vector<std::vector<char>> inputs_, outputs_;
  std::promise<Status> end_;
  std::atomic<int> times_done_{0};
};

Status AllReduce(LaneEngine* engine, const Operation& operation, int seed = 0,
                 std::vector<char>* output = nullptr) {
  Call call(operation, engine->rank(), seed);
  call.Start(engine);
  const Status status = call.Wait();
  if (output != nullptr) *output = call.Output();
  return status;
}

constexpr ElementType kTypes[] = {ElementType::kFloat16, ElementType::kBFloat16,
                                  ElementType::kFloat32, ElementType::kFloat64};

// Random tensor lists, every dtype, every number of threads, in place and not.
void EqualsTheReference() {
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
      Operation large;  // several megabytes
      large.counts = {1000001, 3};
      large.num_threads = num_lanes;
      operations.push_back(large);
      std::vector<std::vector<char>> expected;
      for (size_t i = 0; i < operations.size(); ++i) {
        expected.push_back(Expected(operations[i], world_size, static_cast<int>(i)));
      }
      OnEveryRank(world_size, [&](int rank) {
        for (size_t i = 0; i < operations.size(); ++i) {
          std::vector<char> output;
          CHECK_OK(AllReduce(engines[rank].get(), operations[i], static_cast<int>(i), &output));
          CHECK_TRUE(output == expected[i]);
        }
      });
    }
  }
}

// The same gradients in one tensor or many, on any number of threads: the same bits.
void GroupingAndThreadsChangeNothing() {
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
          CHECK_OK(AllReduce(engines[rank].get(), operation, 1, &output));
          CHECK_TRUE(output == expected);
        });
      }
    }
  }
}

// Every lane at work tells so once, on its own thread, before the all-reduce is done.
void LanesTellWhatTheyDid() {
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
    CHECK_OK(AllReduce(engines[rank].get(), operation));
  });
  const int64_t after = WallClock().Nanos();
  CHECK_EQ(spans.size(), static_cast<size_t>(kWorld * 2));
  uint64_t num_bytes = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    num_bytes += spans[i].num_bytes;
    CHECK_EQ(threads[i], "libra lane " + std::to_string(spans[i].lane));
    CHECK_TRUE(spans[i].lane < 2);
    CHECK_TRUE(before <= spans[i].started_nanos);
    CHECK_TRUE(spans[i].started_nanos <= spans[i].first_byte_nanos);
    CHECK_TRUE(spans[i].first_byte_nanos <= spans[i].finished_nanos);
    CHECK_TRUE(spans[i].finished_nanos <= after);
  }
  CHECK_EQ(num_bytes, kWorld * operation.num_elements() * sizeof(float));
}

// As a training step does it: everything is queued at once, over several megabytes.
void ManyInTheQueue() {
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
      CHECK_OK(calls[i]->Wait());
      CHECK_TRUE(calls[i]->Output() == Expected(operations[i], 3, static_cast<int>(i)));
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
      CHECK_TRUE(record.enqueued_nanos > 0);
      CHECK_TRUE(record.enqueued_nanos <= record.started_nanos);
      CHECK_TRUE(record.started_nanos <= record.first_byte_nanos);
      CHECK_TRUE(record.first_byte_nanos <= record.finished_nanos);
      const OperationInfo& operation = *record.operation;
      for (int lane = 0; lane < operation.num_threads; ++lane) {
        int64_t& free_at = free_nanos[operation.first_lane + lane];
        CHECK_TRUE(free_at <= record.started_nanos);
        free_at = record.finished_nanos;
      }
    }
    CHECK_EQ(engines[rank]->telemetry()->Drain(&dropped).size(), 0u);
  });
}

// One on lane 0 ends no sooner than those behind it on lane 1 have, in whatever order they end on
// the other rank.
void LanesOfTheirOwnRunAtOnce() {
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
    for (size_t i = 1; i < operations.size(); ++i) CHECK_OK(calls[rank][i]->Wait());
  });
  for (const auto& of_rank : calls) CHECK_EQ(of_rank[0]->times_done(), 0);
  others_have_ended.set_value();
  for (const auto& of_rank : calls) {
    CHECK_OK(of_rank[0]->Wait());
    for (size_t i = 0; i < operations.size(); ++i) {
      CHECK_TRUE(of_rank[i]->Output() == Expected(operations[i], 2, static_cast<int>(i)));
    }
  }
}

// From threads of its own, an AllReduce within `done`, control messages in between.
void CallsFromAnywhere() {
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
    CHECK_OK(engine->AllGather(std::string(1 << 20, static_cast<char>('a' + rank)), &all));
    CHECK_TRUE(all.size() == 2 && all[1].size() == (1 << 20) && all[1][5] == 'b');
    std::string message = rank == 0 ? "a plan" : "";
    CHECK_OK(engine->Broadcast(0, &message));
    CHECK_EQ(message, "a plan");
    CHECK_OK(first_done.get_future().get());
    CHECK_EQ(values[999], 0.5f);
    CHECK_OK(second.Wait());
    CHECK_TRUE(second.Output() == Expected(operation, 2, 2));
  });
}

void ThreadsThatTheEngineDoesNotHave() {
  const Engines engines = MakeEngines(ConnectAll(2, 2));
  OnEveryRank(2, [&](int rank) {
    Operation operation;
    operation.counts = {10};
    for (const int num_threads : {0, -1, 3, 1 << 20}) {
      operation.num_threads = num_threads;
      const Status status = AllReduce(engines[rank].get(), operation);
      CHECK_STATUS(status, StatusCode::kInvalidArgument, "got " + std::to_string(num_threads));
      CHECK_CONTAINS(status.message(), "2 lane(s)");
    }
    operation.num_threads = 1;
    for (const int first_lane : {-1, 2, 1 << 30}) {
      operation.first_lane = first_lane;
      CHECK_STATUS(AllReduce(engines[rank].get(), operation), StatusCode::kInvalidArgument,
                   "first_lane must be between 0 and 1 for 1 of 2 lane(s), got " +
                       std::to_string(first_lane));
    }
    operation.first_lane = 0;
    operation.num_threads = 2;  // the engine is none the worse
    CHECK_OK(AllReduce(engines[rank].get(), operation));
  });
}

// Whatever one of three ranks does differently, all end with an error that names that rank (it
// itself: another), and no wrong sum gets anywhere.
void RanksThatDisagree() {
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
      CHECK_TRUE(status.code() == StatusCode::kFailedPrecondition ||
                 status.code() == StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), "rank " + std::to_string(odd));
      CHECK_TRUE(output == std::vector<char>(output.size(), '\x55'));
      CHECK_EQ(AllReduce(engines[rank].get(), operation).message(), status.message());
    });
  }
}

void RankThatDoesNotArrive() {
  std::mutex mutex;
  std::vector<std::string> warnings;
  LaneEngineOptions options;
  options.timeout_seconds = 1;
  options.stall_warning_seconds = 0.2;
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
  CHECK_TRUE(ends[0].code() == StatusCode::kDeadlineExceeded ||
             ends[2].code() == StatusCode::kDeadlineExceeded);
  for (const int rank : {0, 2}) {
    CHECK_TRUE(!ends[rank].ok());
    CHECK_CONTAINS(ends[rank].message(), "for rank(s) 1");
    CHECK_CONTAINS(ends[rank].message(), "group 3");
    CHECK_CONTAINS(ends[rank].message(), "step 42 was not completed");
  }
  CHECK_TRUE(!warnings.empty());
  for (const std::string& warning : warnings) {
    CHECK_CONTAINS(warning, "for rank(s) 1 in group 3");
    CHECK_CONTAINS(warning, "step 42");
  }
  // The late one learns of it at once.
  CHECK_STATUS(AllReduce(engines[1].get(), operation), StatusCode::kUnavailable, "for rank(s) 1");
}

// Plays rank 1 of two on one lane, for a slice of `count` float32: sends `header` and its part,
// and then, where `to_the_end`, what it owes after having received its own.
void PlayRank1(const Connection& lane, const ExchangeHeader& header, size_t count,
               bool to_the_end) {
  const size_t rank0 = count / 2 * sizeof(float), rank1 = count * sizeof(float) - rank0;
  const std::string message = testing::HeaderBytes(lane, header) + std::string(rank0, '\0');
  CHECK_OK(testing::Send(lane, message.data(), message.size()));
  // Rank 0's header was read to find out what to say. What follows it: a part, and a sum.
  std::vector<char> part(rank1), sum(rank0);
  CHECK_OK(testing::Receive(lane, part.data(), part.size()));
  CHECK_OK(testing::ReceiveSum(lane, sum.data(), sum.size()));
  if (to_the_end) CHECK_OK(testing::SendSum(lane, part.data(), part.size()));
}

ExchangeHeader HeaderOfRank0(const Connection& lane) {
  ExchangeHeader header;
  CHECK_OK(testing::ReceiveHeader(lane, &header));
  return header;
}

Operation OnTwoLanes() {
  Operation operation;
  operation.counts = {2000};
  operation.num_threads = 2;
  return operation;
}

// Lane 0 was through before the peer fell silent.
void AnyLaneWarns() {
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
  CHECK_STATUS(call.Wait(), StatusCode::kDeadlineExceeded, "for rank(s) 1");
  CHECK_EQ(warnings.size(), 1u);
}

// Lane 0 hears of the peer first and is through last.
void FirstByteOfAnyLane() {
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
  CHECK_OK(testing::SendSum(lane0, sum.data(), sum.size()));
  CHECK_OK(call.Wait());
  uint64_t dropped;
  const std::vector<AllReduceRecord> records = engine->telemetry()->Drain(&dropped);
  CHECK_EQ(records.size(), 1u);
  CHECK_TRUE(records[0].started_nanos <= records[0].first_byte_nanos);
  CHECK_TRUE(records[0].first_byte_nanos <= heard);
}

// All-reduces that are through, on all ranks.
class Count {
 public:
  void Add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // After this, others are under way.
  void WaitFor(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Many all-reduces until one fails; returns how.
Status ReduceUntilItEnds(LaneEngine* engine, const Operation& operation, Count* through) {
  for (;;) {
    const Status status = AllReduce(engine, operation);
    if (!status.ok()) return status;
    through->Add();
  }
}

Operation Small() {
  Operation operation;
  operation.counts = {50000, 1};
  operation.num_threads = 2;
  return operation;
}

void EngineDestroyedInMidReduce() {
  for (int round = 0; round < 10; ++round) {
    Engines engines = MakeEngines(ConnectAll(3, 2));
    Count through;
    OnEveryRank(3, [&](int rank) {
      if (rank == 1) {
        for (int i = 0; i < round; ++i) CHECK_OK(AllReduce(engines[1].get(), Small()));
        engines[1].reset();
        return;
      }
      const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
      CHECK_STATUS(status, StatusCode::kUnavailable, "rank 1 gave up: the engine was closed");
      // From now on, and for whatever is asked.
      CHECK_EQ(AllReduce(engines[rank].get(), Operation()).message(), status.message());
      std::vector<std::string> all;
      CHECK_EQ(engines[rank]->AllGather("x", &all).message(), status.message());
      std::string text;
      CHECK_EQ(engines[rank]->Broadcast(0, &text).message(), status.message());
      engines[rank]->Abort(Status(StatusCode::kUnavailable, "too late to be the reason"));
      CHECK_EQ(AllReduce(engines[rank].get(), Operation()).message(), status.message());
    });
  }
}

// As when its process is killed: every connection closes, without a word.
void ProcessKilledInMidReduce() {
  for (int round = 0; round < 10; ++round) {
    std::vector<Mesh> meshes = ConnectAll(3, 2);
    Mesh killed = std::move(meshes[2]);
    meshes.pop_back();
    const Engines engines = MakeEngines(std::move(meshes));
    OnEveryRank(3, [&](int rank) {
      if (rank == 2) {
        killed = Mesh();
        return;
      }
      Count through;
      const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
      CHECK_STATUS(status, StatusCode::kUnavailable, "rank 2");
    });
  }
}

// Rank 1 itself sees no more of it than that rank 0 gives up.
void TheCauseIsPassedOn() {
  std::vector<Mesh> meshes = ConnectAll(3, 2);
  Mesh killed = std::move(meshes[2]);
  meshes.pop_back();
  const Engines engines = MakeEngines(std::move(meshes));
  OnEveryRank(3, [&](int rank) {
    if (rank == 2) {
      killed.control[0] = Socket();
      for (auto& lane : killed.lanes) lane.column[0] = Connection();
      return;
    }
    Count through;
    const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
    CHECK_STATUS(status, StatusCode::kUnavailable, "rank 2");
    if (rank == 1) CHECK_CONTAINS(status.message(), "rank 2 is gone");
  });
}

// One connection of one lane breaks, here in the middle of large all-reduces on all lanes.
void OneLaneBreaks() {
  for (int broken = 0; broken < 4; ++broken) {
    std::vector<Mesh> meshes = ConnectAll(2, 4);
    const int fd = meshes[0].lanes[broken].column[1].socket.fd();
    const Engines engines = MakeEngines(std::move(meshes));
    Count through;
    OnEveryRank(3, [&](int rank) {
      if (rank == 2) {
        through.WaitFor(4);
        shutdown(fd, SHUT_RDWR);
        return;
      }
      Operation operation;
      operation.counts = {1 << 19};
      operation.num_threads = 4;
      const Status status = ReduceUntilItEnds(engines[rank].get(), operation, &through);
      CHECK_STATUS(status, StatusCode::kUnavailable, "rank " + std::to_string(1 - rank));
    });
  }
}

void AbortWhileLanesWork() {
  for (int round = 0; round < 10; ++round) {
    const Engines engines = MakeEngines(ConnectAll(3, 2));
    Count through;
    OnEveryRank(4, [&](int rank) {
      if (rank == 3) {
        through.WaitFor(3 + round);
        engines[1]->Abort(Status(StatusCode::kUnavailable, "interrupted by the user"));
        engines[1]->Abort(Status(StatusCode::kUnavailable, "another reason"));
        return;
      }
      const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
      if (rank == 1) {
        CHECK_EQ(status.message(), "interrupted by the user");
      } else {
        CHECK_STATUS(status, StatusCode::kUnavailable, "rank 1 gave up: interrupted by the user");
      }
    });
  }
}

// Ranks that wait for control messages and ranks that all-reduce hear of the same end.
void AbortReachesWhoeverWaits() {
  const Engines engines = MakeEngines(ConnectAll(3, 2));
  OnEveryRank(4, [&](int part) {
    std::vector<std::string> all;
    if (part == 0) {
      CHECK_CONTAINS(engines[0]->AllGather("x", &all).message(), "no more coffee");
    } else if (part == 1) {
      CHECK_CONTAINS(AllReduce(engines[0].get(), Operation()).message(), "no more coffee");
    } else if (part == 2) {
      CHECK_CONTAINS(AllReduce(engines[1].get(), Operation()).message(), "no more coffee");
    } else {
      engines[2]->Abort(Status(StatusCode::kUnavailable, "no more coffee"));
    }
  });
}

// Nobody answers: the first one waits in the lanes, the others in the queue.
void DestructionEndsTheQueue() {
  Engines engines = MakeEngines(ConnectAll(2, 2));
  Operation operation;
  operation.counts = {1000};
  operation.num_threads = 2;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(std::make_unique<Call>(operation, 0, i));
    calls.back()->Start(engines[0].get());
  }
  engines[0].reset();
  for (const auto& call : calls) {
    CHECK_EQ(call->times_done(), 1);
    CHECK_STATUS(call->Wait(), StatusCode::kUnavailable, "the engine was closed");
  }
}

// At any moment, one all-reduce ending and the next one beginning: every `done` comes once.
void DestructionAtAnyMoment() {
  Operation operation;
  operation.counts = {3};
  operation.num_threads = 4;
  for (int round = 0; round < 60; ++round) {
    Engines engines = MakeEngines(ConnectAll(2, 4));
    std::vector<std::vector<std::unique_ptr<Call>>> calls(2);
    OnEveryRank(2, [&](int rank) {
      for (int i = 0; i < 40; ++i) {
        calls[rank].push_back(std::make_unique<Call>(operation, rank, i));
        calls[rank].back()->Start(engines[rank].get());
      }
      if (rank == round % 2) {
        const Status early = calls[rank][static_cast<size_t>(round % 40)]->Wait();
        engines[rank].reset();
      }
    });
    engines.clear();
    for (const auto& of_rank : calls) {
      for (const auto& call : of_rank) CHECK_EQ(call->times_done(), 1);
    }
  }
}

// A process that was forked has copies of the connections and none of the lanes. When it is
// through, as Python's exit is with all that it holds, the parent goes on.
void ForkedChildLeavesTheParentAlone() {
  Engines engines = MakeEngines(ConnectAll(2, 2));
  Operation operation;
  operation.counts = {1000};
  operation.num_threads = 2;
  OnEveryRank(2, [&](int rank) { CHECK_OK(AllReduce(engines[rank].get(), operation)); });
  const int before = testing::Failures();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // not inherited; a child that hangs is a failure
    const char* const why = "not in one forked from it";
    CHECK_STATUS(AllReduce(engines[0].get(), operation), StatusCode::kFailedPrecondition, why);
    std::vector<std::string> all;
    CHECK_STATUS(engines[0]->AllGather("x", &all), StatusCode::kFailedPrecondition, why);
    engines[0]->Abort(Status(StatusCode::kUnavailable, "the child has no say"));
    engines.clear();
    _exit(testing::Failures() == before ? 0 : 1);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
  OnEveryRank(2, [&](int rank) {
    std::vector<char> output;
    CHECK_OK(AllReduce(engines[rank].get(), operation, 1, &output));
    CHECK_TRUE(output == Expected(operation, 2, 1));
  });
}

// Further lanes for engines that run. Ranks that do not take part have no say.
Status Grow(testing::Meeting* meeting, int rank, LaneEngine* engine) {
  return engine->Grow(meeting->options, std::move(meeting->listeners[rank]), Socket());
}

// In the middle of all-reduces, more than once; afterwards an all-reduce may use all of them.
void LanesAreAdded() {
  for (int world_size = 1; world_size <= 3; ++world_size) {
    const Engines engines = MakeEngines(ConnectAll(world_size, 1));
    std::vector<testing::Meeting> meetings;
    for (const int num_lanes : {2, 5}) meetings.emplace_back(world_size, num_lanes);
    Count through;
    std::vector<std::thread> training;
    Operation narrow;
    narrow.counts = {30000};
    const std::vector<char> expected = Expected(narrow, world_size, 3);
    for (int rank = 0; rank < world_size; ++rank) {
      training.emplace_back([&, rank] {
        for (int i = 0; i < 60; ++i) {
          std::vector<char> output;
          CHECK_OK(AllReduce(engines[rank].get(), narrow, 3, &output));
          CHECK_TRUE(output == expected);
          through.Add();
        }
      });
    }
    OnEveryRank(world_size, [&](int rank) {
      for (testing::Meeting& meeting : meetings) {
        through.WaitFor(world_size);
        CHECK_OK(Grow(&meeting, rank, engines[rank].get()));
        CHECK_EQ(engines[rank]->max_threads(), meeting.options.num_lanes);
        std::vector<std::string> all;
        CHECK_OK(engines[rank]->AllGather("x", &all));
      }
    });
    for (std::thread& thread : training) thread.join();
    for (int num_threads = 1; num_threads <= 5; ++num_threads) {
      Operation wide = narrow;
      wide.num_threads = num_threads;
      OnEveryRank(world_size, [&](int rank) {
        std::vector<char> output;
        CHECK_OK(AllReduce(engines[rank].get(), wide, 3, &output));
        CHECK_TRUE(output == expected);
      });
    }
    testing::Meeting fewer(world_size, 5);
    CHECK_STATUS(Grow(&fewer, 0, engines[0].get()), StatusCode::kInvalidArgument, "more lanes");
  }
}

// It is gone, or gives up: the others need not wait for it until the deadline.
void RankThatIsLostWhileLanesAreAdded() {
  for (const bool says_why : {false, true}) {
    for (int lost = 0; lost < 3; ++lost) {
      std::vector<Mesh> meshes = ConnectAll(3, 1);
      LaneEngineOptions options;
      options.timeout_seconds = 1e4;
      Mesh killed;
      Engines engines(3);
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == lost && !says_why) {
          killed = std::move(meshes[rank]);
        } else {
          engines[rank] = MakeEngine(options, std::move(meshes[rank]));
        }
      }
      testing::Meeting meeting(3, 3, 1e4);
      OnEveryRank(3, [&](int rank) {
        if (rank == lost) {
          // Its listener stays: a process that is forked, or another program, may have it.
          if (says_why) engines[rank]->Abort(Status(StatusCode::kUnavailable, "no more lanes"));
          killed = Mesh();
          return;
        }
        const Status status = Grow(&meeting, rank, engines[rank].get());
        CHECK_STATUS(status, StatusCode::kUnavailable, "while lanes 2 to 3 are added: ");
        if (says_why) {
          CHECK_CONTAINS(status.message(), "gave up");
        } else {
          CHECK_CONTAINS(status.message(), "is gone");
        }
        CHECK_EQ(AllReduce(engines[rank].get(), Operation()).message(), status.message());
      });
    }
  }
}

// By Ctrl-C, say.
void AbortWhileLanesAreAdded() {
  const Engines engines = MakeEngines(ConnectAll(2, 1));
  testing::Meeting meeting(2, 2);
  std::thread user([&] { engines[0]->Abort(Status(StatusCode::kUnavailable, "Ctrl-C")); });
  CHECK_STATUS(Grow(&meeting, 0, engines[0].get()), StatusCode::kUnavailable, "Ctrl-C");
  user.join();
}

// What follows an all-reduce does not return: closing says so in time, and leaves it alone.
void ClosingEndsInTime() {
  std::vector<Mesh> meshes = ConnectAll(2, 2);
  LaneEngineOptions options;
  options.timeout_seconds = testing::kShortSeconds;
  auto engine = MakeEngine(options, std::move(meshes[0]));
  std::promise<void> entered, leave;
  auto left = std::make_shared<std::promise<void>>();
  AllReduceRequest request;
  request.operation = Small().Info();
  request.done = [&, left](const Status&) {
    entered.set_value();
    leave.get_future().wait();
    left->set_value();
  };
  engine->AllReduce(std::move(request));
  meshes.clear();
  entered.get_future().wait();
  CHECK_STATUS(EndWithin(std::move(engine), "it ends"), StatusCode::kDeadlineExceeded,
               "has not returned");
  leave.set_value();
  left->get_future().wait();  // it uses what lies on this stack
  auto quick = MakeEngine(Patient(), std::move(ConnectAll(1, 1)[0]));
  CHECK_OK(EndWithin(std::move(quick), "it ends"));
}

// A process that was forked, such as one that loads data, outlives the rank that forked it.
void ForkedChildDoesNotHideADeath() {
  std::vector<Mesh> meshes = ConnectAll(2, 2);
  Mesh killed = std::move(meshes[1]);
  meshes.pop_back();
  const Engines engines = MakeEngines(std::move(meshes));
  int hold[2];
  CHECK_EQ(pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    close(hold[1]);
    char byte;
    _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);  // until the parent is through
  }
  close(hold[0]);
  killed = Mesh();
  CHECK_STATUS(AllReduce(engines[0].get(), Small()), StatusCode::kUnavailable, "rank 1");
  close(hold[1]);
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
}

// What the child opens gets numbers that its copies of the connections had.
void ForkedChildClosesNothingOfItsOwn() {
  Engines engines = MakeEngines(ConnectAll(2, 2));
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int files[64];
    for (int& file : files) file = dup(0);
    engines.clear();
    for (const int file : files) {
      if (fcntl(file, F_GETFD) < 0) _exit(1);
    }
    _exit(0);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  using namespace tf_libra;
  return testing::RunTestsOverAll(
      {{"EqualsTheReference", EqualsTheReference},
       {"GroupingAndThreadsChangeNothing", GroupingAndThreadsChangeNothing},
       {"LanesTellWhatTheyDid", LanesTellWhatTheyDid},
       {"ManyInTheQueue", ManyInTheQueue},
       {"LanesOfTheirOwnRunAtOnce", LanesOfTheirOwnRunAtOnce},
       {"CallsFromAnywhere", CallsFromAnywhere},
       {"ThreadsThatTheEngineDoesNotHave", ThreadsThatTheEngineDoesNotHave},
       {"RanksThatDisagree", RanksThatDisagree},
       {"RankThatDoesNotArrive", RankThatDoesNotArrive},
       {"AnyLaneWarns", AnyLaneWarns},
       {"FirstByteOfAnyLane", FirstByteOfAnyLane},
       {"EngineDestroyedInMidReduce", EngineDestroyedInMidReduce},
       {"ProcessKilledInMidReduce", ProcessKilledInMidReduce},
       {"TheCauseIsPassedOn", TheCauseIsPassedOn},
       {"OneLaneBreaks", OneLaneBreaks},
       {"AbortWhileLanesWork", AbortWhileLanesWork},
       {"AbortReachesWhoeverWaits", AbortReachesWhoeverWaits},
       {"DestructionEndsTheQueue", DestructionEndsTheQueue},
       {"DestructionAtAnyMoment", DestructionAtAnyMoment},
       {"ForkedChildLeavesTheParentAlone", ForkedChildLeavesTheParentAlone},
       {"LanesAreAdded", LanesAreAdded},
       {"RankThatIsLostWhileLanesAreAdded", RankThatIsLostWhileLanesAreAdded},
       {"AbortWhileLanesAreAdded", AbortWhileLanesAreAdded},
       {"ClosingEndsInTime", ClosingEndsInTime},
       {"ForkedChildDoesNotHideADeath", ForkedChildDoesNotHideADeath},
       {"ForkedChildClosesNothingOfItsOwn", ForkedChildClosesNothingOfItsOwn}},
      argc, argv);
}
