// How an engine ends: by its own rank, by another one, or without it, in a process forked from its.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/lane_engine.h"

namespace tf_libra::lane_engine_end_test {
namespace {

using testing::AllReduce;
using testing::Call;
using testing::ConnectAll;
using testing::Count;
using testing::Engines;
using testing::Expected;
using testing::MakeEngines;
using testing::OnEveryRank;
using testing::Operation;
using testing::ReduceUntilItEnds;
using testing::Small;

TEST_CASE("EngineDestroyedInMidReduce") {
  testing::OverAll();
  for (int round = 0; round < 10; ++round) {
    Engines engines = MakeEngines(ConnectAll(3, 2));
    Count through;
    OnEveryRank(3, [&](int rank) {
      if (rank == 1) {
        for (int i = 0; i < round; ++i)
          CHECK_EQ(AllReduce(engines[1].get(), Small()), testing::IsOk());
        engines[1].reset();
        return;
      }
      const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
      CHECK_EQ(status, testing::StatusIs(StatusCode::kUnavailable,
                                         "rank 1 gave up: the engine was closed"));
      // From now on, and for every call.
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

// Engines of all ranks but the last; what connects that one is the test's.
Engines MakeAllButLast(int world_size, Mesh* last) {
  std::vector<Mesh> meshes = ConnectAll(world_size, 2);
  *last = std::move(meshes.back());
  meshes.pop_back();
  return MakeEngines(std::move(meshes));
}

// As when its process is killed: every connection closes, without a word.
TEST_CASE("ProcessKilledInMidReduce") {
  testing::OverAll();
  for (int round = 0; round < 10; ++round) {
    Mesh killed;
    const Engines engines = MakeAllButLast(3, &killed);
    OnEveryRank(3, [&](int rank) {
      if (rank == 2) {
        killed = Mesh();
        return;
      }
      Count through;
      const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
      CHECK_EQ(status, testing::StatusIs(StatusCode::kUnavailable, "rank 2"));
    });
  }
}

// Rank 1 itself sees no more of it than that rank 0 gives up.
TEST_CASE("TheCauseIsPassedOn") {
  testing::OverAll();
  Mesh killed;
  const Engines engines = MakeAllButLast(3, &killed);
  OnEveryRank(3, [&](int rank) {
    if (rank == 2) {
      killed.control[0] = Socket();
      for (auto& lane : killed.lanes) lane.column[0] = Connection();
      return;
    }
    Count through;
    const Status status = ReduceUntilItEnds(engines[rank].get(), Small(), &through);
    CHECK_EQ(status, testing::StatusIs(StatusCode::kUnavailable, "rank 2"));
    if (rank == 1) CHECK_EQ(status.message(), testing::Contains("rank 2 is gone"));
  });
}

// One connection of one lane breaks, here in the middle of large all-reduces on all lanes.
TEST_CASE("OneLaneBreaks") {
  testing::OverAll();
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
      CHECK_EQ(status,
               testing::StatusIs(StatusCode::kUnavailable, "rank " + std::to_string(1 - rank)));
    });
  }
}

TEST_CASE("AbortWhileLanesWork") {
  testing::OverAll();
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
        CHECK_EQ(status, testing::StatusIs(StatusCode::kUnavailable,
                                           "rank 1 gave up: interrupted by the user"));
      }
    });
  }
}

// Ranks that wait for control messages and ranks that all-reduce hear of the same end.
TEST_CASE("AbortReachesWhoeverWaits") {
  testing::OverAll();
  const Engines engines = MakeEngines(ConnectAll(3, 2));
  OnEveryRank(4, [&](int part) {
    std::vector<std::string> all;
    if (part == 0) {
      CHECK_EQ(engines[0]->AllGather("x", &all).message(), testing::Contains("no more coffee"));
    } else if (part == 1) {
      CHECK_EQ(AllReduce(engines[0].get(), Operation()).message(),
               testing::Contains("no more coffee"));
    } else if (part == 2) {
      CHECK_EQ(AllReduce(engines[1].get(), Operation()).message(),
               testing::Contains("no more coffee"));
    } else {
      engines[2]->Abort(Status(StatusCode::kUnavailable, "no more coffee"));
    }
  });
}

// No peer answers: the first one waits in the lanes, the others in the queue.
TEST_CASE("DestructionEndsTheQueue") {
  testing::OverAll();
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
    CHECK_EQ(call->Wait(), testing::StatusIs(StatusCode::kUnavailable, "the engine was closed"));
  }
}

// At any moment, one all-reduce ending and the next one beginning: every `done` comes once.
TEST_CASE("DestructionAtAnyMoment") {
  testing::OverAll();
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
TEST_CASE("ForkedChildLeavesTheParentAlone") {
  testing::OverAll();
  Engines engines = MakeEngines(ConnectAll(2, 2));
  Operation operation;
  operation.counts = {1000};
  operation.num_threads = 2;
  OnEveryRank(
      2, [&](int rank) { CHECK_EQ(AllReduce(engines[rank].get(), operation), testing::IsOk()); });
  const int before = testing::Failures();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // not inherited; a child that hangs is a failure
    const char* const why = "not in one forked from it";
    CHECK_EQ(AllReduce(engines[0].get(), operation),
             testing::StatusIs(StatusCode::kFailedPrecondition, why));
    std::vector<std::string> all;
    CHECK_EQ(engines[0]->AllGather("x", &all),
             testing::StatusIs(StatusCode::kFailedPrecondition, why));
    engines[0]->Abort(Status(StatusCode::kUnavailable, "the child has no say"));
    engines.clear();
    _exit(testing::Failures() == before ? 0 : 1);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
  OnEveryRank(2, [&](int rank) {
    std::vector<char> output;
    CHECK_EQ(AllReduce(engines[rank].get(), operation, 1, &output), testing::IsOk());
    CHECK(output == Expected(operation, 2, 1));
  });
}

// A process that was forked, such as one that loads data, outlives the rank that forked it.
TEST_CASE("ForkedChildDoesNotHideADeath") {
  testing::OverAll();
  Mesh killed;
  const Engines engines = MakeAllButLast(2, &killed);
  int hold[2];
  CHECK_EQ(pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    close(hold[1]);
    char byte;
    _exit(read(hold[0], &byte, 1) == 0 ? 0 : 1);  // until the parent is through
  }
  close(hold[0]);
  killed = Mesh();
  CHECK_EQ(AllReduce(engines[0].get(), Small()),
           testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
  close(hold[1]);
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
}

// What the child opens gets numbers that its copies of the connections had.
TEST_CASE("ForkedChildClosesNothingOfItsOwn") {
  testing::OverAll();
  Engines engines = MakeEngines(ConnectAll(2, 2));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
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
}  // namespace tf_libra::lane_engine_end_test
