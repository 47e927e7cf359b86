// A process runs out of memory, at every place where it may: the engine ends with words, on all
// ranks, and the process goes on.
#include <atomic>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace {

// While it is armed: allocations to come until some fail, and how many of them do.
std::atomic<bool> is_armed{false};
std::atomic<int> allocations_left{0};
int num_failing = 1;
std::atomic<bool> has_failed{false};
// The test's own code is not what is tested. What begins as a lane's thread is.
thread_local int in_the_test = 0;

void* Allocate(size_t size) {
  if (in_the_test == 0 && is_armed) {
    if (const int left = allocations_left.fetch_sub(1); left <= 0 && left > -num_failing) {
      has_failed = true;
      throw std::bad_alloc();
    }
  }
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* AllocateOrNot(size_t size) noexcept {
  try {
    return Allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
// As std::stable_sort does.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return AllocateOrNot(size); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return AllocateOrNot(size); }
// Not inlined: else the compiler sees `free` of what came from `new`, and warns of it.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace tf_libra {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::OnEveryRank;

class InTheTest {
 public:
  InTheTest() { ++in_the_test; }
  ~InTheTest() { --in_the_test; }
};

// Calls into what is tested, from within a test.
template <typename Call>
auto Tested(Call call) {
  struct Out {
    Out() { --in_the_test; }
    ~Out() { ++in_the_test; }
  } out;
  return call();
}

LaneEngineOptions Patient() {
  LaneEngineOptions options;
  options.timeout_seconds = kGenerousSeconds;
  return options;
}

std::shared_ptr<const OperationInfo> Info(int num_threads) {
  auto info = std::make_shared<OperationInfo>();
  info->plan = "a plan with a name that is too long for a short string";
  info->group = 0;
  info->num_threads = num_threads;
  info->tensor_names = {"layer/with/a/long/name/kernel", "layer/with/a/long/name/bias"};
  info->ComputeDigest();
  return info;
}

// An all-reduce, its memory, and how often it has ended.
struct Reducing {
  std::vector<float> values = std::vector<float>(50000, 1.0f);
  std::promise<Status> end;
  std::atomic<int> ends{0};

  AllReduceRequest Request() {
    AllReduceRequest request;
    request.operation = Info(2);
    const size_t half = values.size() / 2;
    request.tensors = {{values.data(), values.data(), half * sizeof(float)},
                       {values.data() + half, values.data() + half, half * sizeof(float)}};
    request.done = [this](const Status& status) {
      const InTheTest here;
      if (ends++ == 0) end.set_value(status);
    };
    return request;
  }
};

// With words.
void CheckEnd(const Status& status) {
  CHECK((status.ok() || status.code() == StatusCode::kResourceExhausted ||
         status.code() == StatusCode::kUnavailable));
  CHECK_EQ(status.ok(), status.message().empty());
}

// From the start of the engines to their end.
void LiveAndEnd(std::vector<Mesh> meshes) {
  std::vector<std::shared_ptr<LaneEngine>> engines(meshes.size());
  for (size_t rank = 0; rank < meshes.size(); ++rank) {
    const Status status = Tested(
        [&] { return LaneEngine::Start(Patient(), std::move(meshes[rank]), &engines[rank]); });
    CHECK((status.ok() || status.code() == StatusCode::kResourceExhausted));
    CHECK_EQ(engines[rank] != nullptr, status.ok());
  }
  OnEveryRank(static_cast<int>(engines.size()), [&](int rank) {
    const InTheTest here;
    LaneEngine* const engine = engines[rank].get();
    if (engine == nullptr) return;
    std::vector<Status> statuses;
    Tested([&] { engine->SetStep(1); });
    std::vector<std::string> all;
    const std::string mine(1000, 'x');
    statuses.push_back(Tested([&] { return engine->AllGather(mine, &all); }));
    std::vector<Reducing> reductions(3);
    for (Reducing& one : reductions) {
      AllReduceRequest request = one.Request();
      Tested([&] { engine->AllReduce(std::move(request)); });
    }
    for (Reducing& one : reductions) statuses.push_back(one.end.get_future().get());
    std::string message(1000, 'y');
    statuses.push_back(Tested([&] { return engine->Broadcast(0, &message); }));
    for (const Reducing& one : reductions) CHECK_EQ(one.ends, 1);
    for (const Status& status : statuses) CheckEnd(status);
  });
  for (auto& engine : engines) {
    if (engine != nullptr) Tested([&] { engine.reset(); });
  }
}

// What a message or a collective of a rank ends with, and what its request holds until then.
struct Ending {
  std::promise<Status> end;
  std::atomic<int> ends{0};
  std::shared_ptr<int> held = std::make_shared<int>();

  std::function<void(const Status&)> Done() {
    return [this, held = held](const Status& status) {
      const InTheTest here;
      if (ends++ == 0) end.set_value(status);
    };
  }
};

constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kReduce, CollectiveKind::kAllGather,
                                     CollectiveKind::kBroadcast};

// A message each way between neighbours, and every kind of collective, all concurrently.
struct Exchanging {
  static constexpr size_t kCount = 600;

  std::vector<float> input = std::vector<float>(kCount, 1.0f), received = input;
  std::vector<std::vector<float>> outputs;
  std::vector<Ending> endings = std::vector<Ending>(2 + std::size(kKinds));

  void Post(LaneEngine* engine) {
    const int rank = engine->rank(), world_size = engine->world_size();
    const auto message = [&](int peer, std::vector<float>* data, Ending* ending) {
      MessageRequest request;
      request.peer = (peer + world_size) % world_size;
      request.name = "a message with a name that is too long for a short string";
      request.content = "float32 [600], which is too long as well";
      request.data = reinterpret_cast<char*>(data->data());
      request.num_bytes = kCount * sizeof(float);
      request.done = ending->Done();
      return request;
    };
    MessageRequest send = message(rank + 1, &input, &endings[0]);
    MessageRequest receive = message(rank - 1, &received, &endings[1]);
    Tested([&] { engine->Send(std::move(send)); });
    Tested([&] { engine->Receive(std::move(receive)); });
    for (const CollectiveKind kind : kKinds) {
      outputs.emplace_back(kCount * world_size);
      CollectiveRequest request;
      request.kind = kind;
      for (int one = 0; one < world_size; ++one) request.ranks.push_back(one);
      if (kind == CollectiveKind::kReduce || kind == CollectiveKind::kBroadcast) request.root = 0;
      request.name = std::string("a collective with a long name, ") + CollectiveName(kind);
      request.content = "float32 [600], which is too long as well";
      request.input = reinterpret_cast<const char*>(input.data());
      request.output = reinterpret_cast<char*>(outputs.back().data());
      request.num_bytes = kCount * sizeof(float);
      request.done = endings[1 + outputs.size()].Done();
      Tested([&] { engine->Run(std::move(request)); });
    }
  }
};

using Engines = std::vector<std::shared_ptr<LaneEngine>>;

Engines Started(std::vector<Mesh> meshes) {
  Engines engines(meshes.size());
  for (size_t rank = 0; rank < meshes.size(); ++rank) {
    CHECK_EQ(LaneEngine::Start(Patient(), std::move(meshes[rank]), &engines[rank]),
             testing::IsOk());
  }
  return engines;
}

// On engines that run.
void ExchangeAndEnd(std::vector<Mesh> meshes) {
  std::vector<Exchanging> exchanging(meshes.size());
  {
    const Engines engines = Started(std::move(meshes));
    is_armed = true;
    OnEveryRank(static_cast<int>(engines.size()), [&](int rank) {
      const InTheTest here;
      exchanging[rank].Post(engines[rank].get());
      for (Ending& one : exchanging[rank].endings) {
        std::future<Status> end = one.end.get_future();
        // Before ranks give up for want of progress.
        const auto within = std::chrono::duration<double>(kGenerousSeconds / 2);
        const bool has_ended = end.wait_for(within) == std::future_status::ready;
        CHECK(has_ended);
        if (has_ended) CheckEnd(end.get());
      }
    });
    is_armed = false;
  }
  for (const Exchanging& of_rank : exchanging) {
    for (const Ending& one : of_rank.endings) {
      CHECK_EQ(one.ends, 1);
      CHECK_EQ(one.held.use_count(), 1);
    }
  }
}

// Lanes are added to engines that run.
void GrowAndEnd(std::vector<Mesh> meshes) {
  const int world_size = static_cast<int>(meshes.size());
  testing::Meeting meeting(world_size, 3);
  const Engines engines = Started(std::move(meshes));
  is_armed = true;
  OnEveryRank(world_size, [&](int rank) {
    const InTheTest here;
    MeshOptions options = meeting.options;
    CheckEnd(Tested([&] {
      return engines[rank]->Grow(std::move(options), std::move(meeting.listeners[rank]), Socket());
    }));
  });
  is_armed = false;
}

// The first allocation fails, then the second, and so on, whichever thread makes it; and then so
// many in a row each time.
void EveryAllocationFails(void (*body)(std::vector<Mesh>), int num_ranks) {
  for (const int in_a_row : {1, 40}) {
    const int before = testing::Failures();
    int count = 0;
    for (bool failed = true; failed && testing::Failures() == before; ++count) {
      std::vector<Mesh> meshes = ConnectAll(num_ranks, 2);
      has_failed = false;
      allocations_left = count;
      num_failing = in_a_row;
      body(std::move(meshes));
      is_armed = false;
      failed = has_failed;
    }
    CHECK(count > 30);  // else the hook is none
  }
}

TEST_CASE("EveryAllocationOfAllReducesFails") {
  const InTheTest here;
  testing::OverAll();
  EveryAllocationFails(
      [](std::vector<Mesh> meshes) {
        is_armed = true;
        LiveAndEnd(std::move(meshes));
      },
      2);
}

TEST_CASE("EveryAllocationOfMessagesFails") {
  const InTheTest here;
  testing::SetRendezvousHost("127.0.0.1", false);  // the same over whatever lanes there are
  EveryAllocationFails(ExchangeAndEnd, 2);
}

TEST_CASE("EveryAllocationOfGrowthFails") {
  const InTheTest here;
  testing::SetRendezvousHost("127.0.0.1", false);  // the same over whatever lanes there are
  EveryAllocationFails(GrowAndEnd, 2);
}

}  // namespace
}  // namespace tf_libra
