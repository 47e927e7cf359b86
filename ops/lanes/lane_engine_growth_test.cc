// Lanes that are added to an engine that runs.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/lane_engine.h"

namespace tf_libra::lane_engine_growth_test {
namespace {

using testing::AllReduce;
using testing::ConnectAll;
using testing::Count;
using testing::Engines;
using testing::Expected;
using testing::MakeEngine;
using testing::MakeEngines;
using testing::OnEveryRank;
using testing::Operation;

// Further lanes for engines that run. Ranks that do not take part have no say.
Status Grow(testing::Meeting* meeting, int rank, LaneEngine* engine) {
  return engine->Grow(meeting->options, std::move(meeting->listeners[rank]), Socket());
}

// In the middle of all-reduces, more than once; afterwards an all-reduce may use all of them.
TEST_CASE("LanesAreAdded") {
  testing::OverAll();
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
          CHECK_EQ(AllReduce(engines[rank].get(), narrow, 3, &output), testing::IsOk());
          CHECK(output == expected);
          through.Add();
        }
      });
    }
    OnEveryRank(world_size, [&](int rank) {
      for (testing::Meeting& meeting : meetings) {
        through.WaitFor(world_size);
        CHECK_EQ(Grow(&meeting, rank, engines[rank].get()), testing::IsOk());
        CHECK_EQ(engines[rank]->max_threads(), meeting.options.num_lanes);
        std::vector<std::string> all;
        CHECK_EQ(engines[rank]->AllGather("x", &all), testing::IsOk());
      }
    });
    for (std::thread& thread : training) thread.join();
    for (int num_threads = 1; num_threads <= 5; ++num_threads) {
      Operation wide = narrow;
      wide.num_threads = num_threads;
      OnEveryRank(world_size, [&](int rank) {
        std::vector<char> output;
        CHECK_EQ(AllReduce(engines[rank].get(), wide, 3, &output), testing::IsOk());
        CHECK(output == expected);
      });
    }
    testing::Meeting fewer(world_size, 5);
    CHECK_EQ(Grow(&fewer, 0, engines[0].get()),
             testing::StatusIs(StatusCode::kInvalidArgument, "more lanes"));
  }
}

// It is gone, or gives up: the others need not wait for it until the deadline.
TEST_CASE("RankThatIsLostWhileLanesAreAdded") {
  testing::OverAll();
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
        CHECK_EQ(status,
                 testing::StatusIs(StatusCode::kUnavailable, "while lanes 2 to 3 are added: "));
        if (says_why) {
          CHECK_EQ(status.message(), testing::Contains("gave up"));
        } else {
          CHECK_EQ(status.message(), testing::Contains("is gone"));
        }
        CHECK_EQ(AllReduce(engines[rank].get(), Operation()).message(), status.message());
      });
    }
  }
}

testing::Meeting MeetingOn(const std::vector<int>& hosts, int num_lanes) {
  testing::Meeting meeting(static_cast<int>(hosts.size()), num_lanes);
  meeting.options.hosts = hosts;
  return meeting;
}

// Engines of one lane whose ranks met on hosts `first`, which all grow to two on hosts `now`: how,
// [rank]. `body` uses them then.
void GrowOn(const std::vector<int>& first, const std::vector<int>& now,
            const std::function<void(LaneEngine*, const Status&)>& body) {
  const int world_size = static_cast<int>(first.size());
  testing::Meeting meeting = MeetingOn(first, 1), again = MeetingOn(first, 2);
  again.options.hosts = now;
  OnEveryRank(world_size, [&](int rank) {
    Mesh mesh;
    CHECK_EQ(meeting.Connect(rank, &mesh), testing::IsOk());
    const auto engine = MakeEngine(testing::Patient(), std::move(mesh));
    body(engine.get(), Grow(&again, rank, engine.get()));
  });
}

// Lanes run on the grid of the first meeting. Also if the grids of some ranks are alike, all ranks
// end, with the same reason.
TEST_CASE("AddedLanesOnOtherHostsAreRejected") {
  testing::SetRendezvousHost("127.0.0.1", false);
  const struct {
    std::vector<int> first, now;
    std::string reason;
  } cases[] = {
      {{0, 0, 1, 1}, {}, "the ranks' hosts are not known"},
      {{0, 0, 1, 1}, {0, 0, kUnknownHost, 1}, "rank 2's host is not known"},
      {{0, kUnknownHost, 1, 1}, {0, 0, 1, 1}, "rank 1's host is known"},
      {{0, 0, 1, 1}, {0, 1, 0, 1}, "rank 1's host is another"},
      {{0, 0, 1, 1}, {0, 1, 2, 3}, "rank 1's host is another"},
      {{0, 0, 1, 1, 2, 2}, {0, 0, 1, 2, 1, 2}, "rank 3's host is another"},
  };
  for (const auto& one : cases) {
    GrowOn(one.first, one.now, [&one](LaneEngine* engine, const Status& status) {
      CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition, one.reason));
      CHECK_EQ(status.message(), testing::Contains("while lanes 2 to 2 are added"));
      CHECK_EQ(AllReduce(engine, Operation()).message(), status.message());
    });
  }
}

// Numbers of hosts mean nothing but which ranks share one.
TEST_CASE("AddedLanesOnTheSameHostsAreUsed") {
  testing::SetRendezvousHost("127.0.0.1", false);
  const std::vector<std::vector<int>> cases[] = {
      {{0, 0, 1, 1}, {7, 7, 3, 3}},
      {{0, kUnknownHost, 1, 1}, {}},
      {{0, kUnknownHost, 1, 1}, {0, 0, 1, kUnknownHost}},
  };
  Operation wide;
  wide.counts = {1000};
  wide.num_threads = 2;
  wide.reduction = Reduction::kSum;
  for (const auto& one : cases) {
    GrowOn(one[0], one[1], [&wide](LaneEngine* engine, const Status& status) {
      CHECK_EQ(status, testing::IsOk());
      CHECK_EQ(AllReduce(engine, wide), testing::IsOk());
    });
  }
}

// By Ctrl-C, say.
TEST_CASE("AbortWhileLanesAreAdded") {
  testing::OverAll();
  const Engines engines = MakeEngines(ConnectAll(2, 1));
  testing::Meeting meeting(2, 2);
  std::thread user([&] { engines[0]->Abort(Status(StatusCode::kUnavailable, "Ctrl-C")); });
  CHECK_EQ(Grow(&meeting, 0, engines[0].get()),
           testing::StatusIs(StatusCode::kUnavailable, "Ctrl-C"));
  user.join();
}

}  // namespace
}  // namespace tf_libra::lane_engine_growth_test
