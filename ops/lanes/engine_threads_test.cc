// Threads of an engine that cannot start, and callbacks on its threads that destroy it or throw.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/engine_shutdown.h"
#include "ops/lanes/engine_testing.h"
#include "ops/lanes/lane_engine.h"

namespace tf_libra::engine_threads_test {
namespace {

using testing::ConnectAll;
using testing::Engines;
using testing::OnEveryRank;
using testing::Patient;

// An all-reduce, its memory, and how often it has ended.
struct Reducing {
  std::vector<float> values = std::vector<float>(50000, 1.0f);
  std::promise<Status> end;
  std::atomic<int> ends{0};

  AllReduceRequest Request() {
    testing::Operation operation;
    operation.counts = {values.size()};
    operation.num_threads = 2;
    AllReduceRequest request;
    request.operation = operation.Info();
    request.tensors = {{values.data(), values.data(), values.size() * sizeof(float)}};
    request.done = [this](const Status& status) {
      if (ends++ == 0) end.set_value(status);
    };
    return request;
  }
};

// Runs `body` in a process of its own, which may then start `more` threads.
void WithFewThreads(int more, void (*body)()) {
  const int before = testing::Failures();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    // The limit is per user, and the superuser has none: switch to a user with no other processes.
    const bool can_be_another = geteuid() == 0 && setuid(54321) == 0;
    const rlim_t most = can_be_another ? 1 + static_cast<rlim_t>(more) : 0;
    const rlimit limit{most, most};
    CHECK_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
    body();
    _exit(testing::Failures() == before ? 0 : 1);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
}

TEST_CASE("ThreadThatCannotStart") {
  testing::OverAll();
  for (const int more : {0, 1}) {
    // A forked child has no copies of connections, so it makes its own, without threads.
    WithFewThreads(more, [] {
      Mesh mesh;
      testing::Meeting meeting(1, 3);
      CHECK_EQ(meeting.Connect(0, &mesh), testing::IsOk());
      std::shared_ptr<LaneEngine> engine;
      const Status status = LaneEngine::Start(Patient(), std::move(mesh), &engine);
      CHECK_EQ(status, testing::StatusIs(StatusCode::kResourceExhausted, "of 3 cannot start: "));
      CHECK(engine == nullptr);
    });
  }
}

// The last one who uses the engine is called at the end of an all-reduce, on a lane.
TEST_CASE("LastUseIsOnALane") {
  testing::OverAll();
  for (int round = 0; round < 20; ++round) {
    std::promise<void> destroyed;
    std::vector<Mesh> meshes = ConnectAll(1, 2);
    LaneEngineOptions options = Patient();
    // Goes with the engine's options, which go with the engine.
    const auto gone = [&destroyed](int* number) {
      delete number;
      destroyed.set_value();
    };
    options.warn = [token = std::shared_ptr<int>(new int, gone)](const std::string&) {};
    std::shared_ptr<LaneEngine> engine;
    CHECK_EQ(LaneEngine::Start(options, std::move(meshes[0]), &engine), testing::IsOk());
    options = LaneEngineOptions();
    Reducing first, second;
    std::promise<void> let_go;
    AllReduceRequest request = first.Request();
    request.done = [&,
                    held = std::make_shared<std::shared_ptr<LaneEngine>>(engine)](const Status&) {
      let_go.get_future().wait();
      held->reset();
    };
    LaneEngine* const raw = engine.get();
    raw->AllReduce(std::move(request));
    raw->AllReduce(second.Request());
    engine.reset();
    let_go.set_value();
    destroyed.get_future().wait();
    CHECK_EQ(second.ends, 1);  // well, where the lanes were quick
  }
}

// Not even a thread that would end the engine can start.
TEST_CASE("ClosingWithoutThreads") {
  testing::OverAll();
  WithFewThreads(2, [] {
    Mesh mesh;
    testing::Meeting meeting(1, 2);
    CHECK_EQ(meeting.Connect(0, &mesh), testing::IsOk());
    std::shared_ptr<LaneEngine> engine;
    const Status started = LaneEngine::Start(Patient(), std::move(mesh), &engine);
    if (!started.ok()) return;  // not the superuser, who could have been another
    Reducing late;
    const std::shared_ptr<LaneEngine> used = engine;
    CHECK_EQ(EndWithin(std::move(engine), "it ends"),
             testing::StatusIs(StatusCode::kResourceExhausted, "left behind"));
    used->AllReduce(late.Request());
    CHECK_EQ(late.end.get_future().get(), testing::StatusIs(StatusCode::kUnavailable, "it ends"));
  });
}

// The next all-reduce is under way at the other rank, and begun by the lane that throws only then:
// it is too late for it, over any connection.
TEST_CASE("WhatFollowsAnAllReduceThrows") {
  testing::OverAll();
  for (int round = 0; round < 20; ++round) {
    std::vector<Mesh> meshes = ConnectAll(2, 2);
    std::vector<std::shared_ptr<LaneEngine>> engines(2);
    for (int rank = 0; rank < 2; ++rank) {
      CHECK_EQ(LaneEngine::Start(Patient(), std::move(meshes[rank]), &engines[rank]),
               testing::IsOk());
    }
    std::promise<void> other_has_both;
    OnEveryRank(2, [&](int rank) {
      Reducing first, second;
      AllReduceRequest request = first.Request();
      if (rank == 1) {
        request.done = [&](const Status& status) {
          CHECK_EQ(status, testing::IsOk());
          other_has_both.get_future().wait();
          throw std::runtime_error("the user's trouble");
        };
      }
      engines[rank]->AllReduce(std::move(request));
      engines[rank]->AllReduce(second.Request());
      if (rank == 0) other_has_both.set_value();
      const Status status = second.end.get_future().get();
      CHECK(!status.ok());
      CHECK_EQ(status.message(),
               testing::Contains("the callback of an all-reduce failed: the user's trouble"));
    });
  }
}

// Its collective has ended all the same, and does not end again: also where a rank is alone, for
// which all is over before the call returns.
TEST_CASE("WhatFollowsACollectiveThrows") {
  testing::SetRendezvousHost("127.0.0.1", false);  // the same over whatever lanes there are
  for (const int world_size : {1, 2}) {
    std::atomic<int> ends{0};
    {
      const Engines engines = testing::MakeEngines(ConnectAll(world_size, 1));
      OnEveryRank(world_size, [&](int rank) {
        std::vector<float> values(10, 1.0f);
        const auto collective = [&](const std::string& name) {
          CollectiveRequest request;
          for (int one = 0; one < world_size; ++one) request.ranks.push_back(one);
          request.input = reinterpret_cast<const char*>(values.data());
          request.output = reinterpret_cast<char*>(values.data());
          request.num_bytes = values.size() * sizeof(float);
          request.name = name;
          return request;
        };
        // Who sets what is waited for may still be at it when the wait is over.
        const auto ended = std::make_shared<std::promise<void>>();
        CollectiveRequest first = collective("x");
        first.done = [&ends, rank, world_size, ended](const Status& status) {
          CHECK_EQ(status, testing::IsOk());
          if (++ends <= world_size) ended->set_value();
          // On one rank: another's trouble might be heard of before one's own.
          if (rank == 0) throw std::runtime_error("the user's trouble");
        };
        engines[rank]->Run(std::move(first));
        ended->get_future().wait();
        if (rank > 0) return;  // takes no part in the next
        const auto late = std::make_shared<std::promise<Status>>();
        CollectiveRequest second = collective("y");
        second.done = [late](const Status& status) { late->set_value(status); };
        engines[rank]->Run(std::move(second));
        CHECK_EQ(late->get_future().get(),
                 testing::StatusIs(StatusCode::kInternal,
                                   "the callback of a message failed: the user's trouble"));
      });
    }
    CHECK_EQ(ends, world_size);
  }
}

}  // namespace
}  // namespace tf_libra::engine_threads_test
