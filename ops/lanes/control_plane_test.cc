#include "ops/lanes/control_plane.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/control_plane_testing.h"

namespace tf_libra::control_plane_test {
namespace {

using testing::Content;
using testing::Header;
using testing::kAbort;
using testing::kAlive;
using testing::kAll;
using testing::kData;
using testing::kGenerousSeconds;
using testing::kGone;
using testing::kProbe;
using testing::kShortSeconds;
using testing::kWaitSeconds;
using testing::Message;
using testing::OnEveryRank;
using testing::PlaneOf;
using testing::Planes;
using testing::ScriptedPeer;

TEST_CASE("MessagesOfAllSizes") {
  testing::OverBoth();
  for (const int world_size : {1, 2, 3, 7}) {
    const auto planes = Planes(world_size);
    const int num_rounds = world_size < 4 ? 6 : 2;
    OnEveryRank(world_size, [&](int rank) {
      for (int round = 0; round < num_rounds; ++round) {
        std::vector<std::string> all;
        CHECK_EQ(planes[rank]->AllGather(Content(rank, round), kGenerousSeconds, &all),
                 testing::IsOk());
        CHECK_EQ(all.size(), static_cast<size_t>(world_size));
        for (int other = 0; other < world_size; ++other) {
          CHECK(all[other] == Content(other, round));
        }
        const int root = round % world_size;
        std::string message = rank == root ? Content(root, round + 3) : "mine does not count";
        CHECK_EQ(planes[rank]->Broadcast(root, kGenerousSeconds, &message), testing::IsOk());
        CHECK(message == Content(root, round + 3));
      }
    });
  }
}

// Rank 1 is late. Rank 2 is dead, which the root notices immediately.
TEST_CASE("DeadPeerIsNoticedWhileAnotherIsLate") {
  testing::OverBoth();
  for (const bool spoke_before : {false, true}) {
    ScriptedPeer script(3);
    if (spoke_before) script.Send(2, Message(kData, "here", 2));
    std::thread death([&] { script.End(2) = Socket(); });
    // More than fits into the buffers of a connection: rank 2 cannot have had it all.
    CHECK_EQ(script.AllGather(kGenerousSeconds, std::string(48 << 20, 'x')),
             testing::StatusIs(StatusCode::kUnavailable, "rank 2"));
    death.join();
  }
}

TEST_CASE("DeadRootIsNoticed") {
  testing::OverBoth();
  auto meshes = testing::ConnectAll(2, 1);
  const auto plane = PlaneOf(&meshes[1]);
  std::thread death([&] { meshes[0].control[1] = Socket(); });
  std::string message;
  CHECK_EQ(plane->Broadcast(0, kGenerousSeconds, &message),
           testing::StatusIs(StatusCode::kUnavailable, "rank 0"));
  death.join();
}

// Every waiting rank names the missing ranks, and not those that wait as well.
TEST_CASE("MissingRanksAreNamedByAll") {
  testing::OverBoth();
  const std::vector<std::vector<int>> cases = {{0}, {1}, {2}, {5}, {1, 5}, {2, 3}};
  std::vector<std::thread> threads;  // concurrent, since every case waits
  for (const std::vector<int>& missing : cases) {
    threads.emplace_back([&missing] {
      const auto planes = Planes(6);
      std::string named;
      for (const int rank : missing) named += (named.empty() ? "" : ", ") + std::to_string(rank);
      OnEveryRank(6, [&](int rank) {
        if (std::count(missing.begin(), missing.end(), rank) > 0) return;
        std::vector<std::string> all;
        const Status status = planes[rank]->AllGather("x", kWaitSeconds, &all);
        CHECK_EQ(status.message(), testing::Contains("waited 4 s for rank(s) " + named));
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto planes = Planes(2);
  std::string message;
  CHECK_EQ(planes[1]->Broadcast(0, kShortSeconds, &message),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 0"));
}

// Rank 1 has sent its own message and is stopped, so it does not forward messages between rank 0
// and rank 5's subtree. The test plays rank 1 and answers nothing.
TEST_CASE("StoppedRankIsNamedByAll") {
  testing::OverBoth();
  std::vector<Mesh> meshes = testing::ConnectAll(6, 1);
  std::vector<std::unique_ptr<ControlPlane>> planes(6);
  const std::string said = Message(kData, "mine");
  for (const int rank : {0, 5}) {
    CHECK_EQ(SendAll(meshes[1].control[rank], said.data(), said.size(), After(kGenerousSeconds)),
             testing::IsOk());
  }
  for (const int rank : {0, 2, 3, 4, 5}) planes[rank] = PlaneOf(&meshes[rank]);
  OnEveryRank(6, [&](int rank) {
    if (rank == 1) return;
    std::vector<std::string> all;
    const Status status = planes[rank]->AllGather("x", kWaitSeconds, &all);
    CHECK_EQ(status.message(), testing::Contains("waited 4 s for rank(s) 1"));
  });
}

// The peer answers only once the warning has come, so the collective ends well.
TEST_CASE("LateRankIsWarnedAboutOnce") {
  testing::OverBoth();
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  const std::string answer = Message(kData, "late");
  std::vector<std::string> warnings;
  ControlOptions options;
  options.stall_warning_seconds = kShortSeconds / 4;
  options.warn = [&](const std::string& ranks) {
    warnings.push_back(ranks);
    CHECK_EQ(SendAll(meshes[1].control[0], answer.data(), answer.size(), After(kGenerousSeconds)),
             testing::IsOk());
  };
  const auto plane = PlaneOf(&meshes[0], options);
  std::vector<std::string> all;
  CHECK_EQ(plane->AllGather("", kGenerousSeconds, &all), testing::IsOk());
  CHECK_EQ(all[1], std::string("late"));
  CHECK_EQ(warnings.size(), size_t{1});
  CHECK_EQ(warnings[0], std::string("1"));
}

TEST_CASE("PeerDiesWithinAMessage") {
  testing::OverBoth();
  for (const std::string& bytes : {Header(kData, 100) + "ten bytes.", std::string("LIB")}) {
    ScriptedPeer script(2);
    script.Send(1, bytes);
    script.End(1) = Socket();
    CHECK_EQ(script.AllGather(), testing::StatusIs(StatusCode::kUnavailable, "rank 1 is gone"));
  }
}

// The connections stay open, so only the header can be the reason. Reading 4 GiB would show in the
// resident size.
TEST_CASE("InvalidHeadersAreRejectedUnread") {
  testing::OverBoth();
  for (const std::string& bytes :
       {Header(kData, 0xffffffffu), Header(kData, ControlPlane::kMaxMessageBytes + 1),
        Header(kAbort, 1 << 20), Header(kGone, 1 << 20), Header(kProbe, 1, 1, 0),
        Message(kData, "good").replace(0, 1, "X"), Message(7, "kind"),
        // From this rank itself, from no rank, and to no rank.
        Message(kData, "own", 0), Message(kGone, "own", 0), Message(kData, "none", -1),
        Message(kData, "none", 2), Header(kData, 0, 1, 0), Header(kProbe, 0, 1, 1),
        Header(kAlive, 0, 1, 2), Header(kProbe, 0, 1, kAll)}) {
    ScriptedPeer script(2);
    script.Send(1, bytes);
    CHECK_EQ(script.AllGather(), testing::StatusIs(StatusCode::kFailedPrecondition, "rank 1"));
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < (2 << 20));  // kilobytes
}

TEST_CASE("TooLargeMessageIsNotSent") {
  testing::OverBoth();
  ScriptedPeer script(2);
  std::string message(ControlPlane::kMaxMessageBytes + 1, 'x');
  CHECK_EQ(script.AllGather(kGenerousSeconds, message),
           testing::StatusIs(StatusCode::kInvalidArgument, std::to_string(message.size())));
  CHECK_EQ(script.plane->Broadcast(0, kGenerousSeconds, &message),
           testing::StatusIs(StatusCode::kInvalidArgument, std::to_string(message.size())));
  script.Send(1, Message(kData, "hello"));
  std::vector<std::string> all;
  CHECK_EQ(script.plane->AllGather("the connection is as good as new", kGenerousSeconds, &all),
           testing::IsOk());
  CHECK_EQ(all[1], "hello");
}

// Messages that no call has requested yet are read up to a limit; a later call gets all of them.
TEST_CASE("UnrequestedMessagesAreBounded") {
  testing::OverBoth();
  ControlOptions options;
  options.max_waiting_bytes = 8 << 20;
  const std::string large(6 << 20, 'x');
  {
    const auto planes = Planes(2, options);
    std::string message = large;
    Status status;
    for (int i = 0; i < 30 && status.ok(); ++i) {
      status = planes[0]->Broadcast(0, kWaitSeconds, &message);
    }
    CHECK_EQ(status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
  }
  const auto planes = Planes(6, options);  // rank 1 passes it on to rank 5
  OnEveryRank(6, [&](int rank) {
    for (int i = 0; i < 4; ++i) {
      std::string message = rank == 0 ? large : "";
      CHECK_EQ(planes[rank]->Broadcast(0, kGenerousSeconds, &message), testing::IsOk());
      CHECK_EQ(message.size(), large.size());
    }
    std::vector<std::string> all;  // by one connection comes more than is let wait
    CHECK_EQ(planes[rank]->AllGather(rank < 3 ? large : "", kGenerousSeconds, &all),
             testing::IsOk());
    for (size_t other = 0; other < all.size(); ++other) {
      CHECK_EQ(all[other].size(), other < 3 ? large.size() : size_t{0});
    }
  });
}

// Few answers wait for a neighbour that does not read them, however many probes it sends.
TEST_CASE("AnswersToANeighbourThatDoesNotReadAreBounded") {
  testing::OverBoth();
  constexpr size_t kProbes = 200'000;
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  Socket& end = meshes[1].control[0];
  const int small = 1 << 16;  // so that the connection itself holds few
  for (const Socket* socket : {&meshes[0].control[1], &end}) {
    setsockopt(socket->fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  }
  const auto plane = PlaneOf(&meshes[0]);
  std::string probes;
  for (size_t i = 0; i < kProbes; ++i) probes += Header(kProbe, 0, 1, 0);
  probes += Message(kData, "asked");
  std::thread asked([&] {
    std::string message;
    CHECK_EQ(plane->Broadcast(1, kGenerousSeconds, &message), testing::IsOk());
    message = "last";
    CHECK_EQ(plane->Broadcast(0, kGenerousSeconds, &message), testing::IsOk());
  });
  CHECK_EQ(SendAll(end, probes.data(), probes.size(), After(kGenerousSeconds)), testing::IsOk());
  const std::string answer = Header(kAlive, 0, 0, 1);
  std::string received(answer.size(), '\0');
  size_t num_answers = 0;
  for (bool is_answer = true; is_answer; num_answers += is_answer) {
    CHECK_EQ(ReceiveAll(end, received.data(), received.size(), After(kGenerousSeconds)),
             testing::IsOk());
    is_answer = received == answer;
  }
  CHECK(received == Header(kData, 4, 0));
  CHECK((num_answers > 0 && num_answers < kProbes / 2));
  asked.join();
}

// While rank 0 waits for another rank, a neighbour sends more than it may. If the missing rank is
// behind another edge, rank 0 stops reading from the neighbour. If it is behind this edge, rank 0
// names the neighbour.
TEST_CASE("NeighbourMayNotSendAheadOfAMissingRank") {
  testing::OverBoth();
  ControlOptions options;
  options.max_waiting_bytes = 1 << 20;
  const std::string message = Message(kData, std::string(1 << 18, 'x'));
  for (const int world_size : {3, 6}) {
    std::vector<Mesh> meshes = testing::ConnectAll(world_size, 1);
    const auto plane = PlaneOf(&meshes[0], options);
    std::atomic<bool> is_over{false};
    size_t num_sent = 0;
    std::thread neighbour([&] {
      while (!is_over) {
        const size_t at = num_sent % message.size();
        const ssize_t sent = send(meshes[1].control[0].fd(), message.data() + at,
                                  message.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) num_sent += static_cast<size_t>(sent);
        if (sent < 0) poll(nullptr, 0, 1);
      }
    });
    std::vector<std::string> all;
    const bool is_relay = world_size == 6;  // rank 5 is behind it
    const Status status =
        plane->AllGather("", is_relay ? kGenerousSeconds : 2 * kShortSeconds, &all);
    is_over = true;
    neighbour.join();
    if (is_relay) {
      CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition,
                                         "rank 1 sends messages of rank 1 that do not wait"));
    } else {
      CHECK_EQ(status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 2"));
      CHECK(num_sent < 32u << 20);  // most of it in the buffers of the connection
    }
  }
}

}  // namespace
}  // namespace tf_libra::control_plane_test
