#include "ops/lanes/control_plane.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::OnEveryRank;

// Where all are to answer within half of it.
constexpr double kWaitSeconds = 4;

std::unique_ptr<ControlPlane> PlaneOf(Mesh* mesh, ControlOptions options = {}) {
  auto plane = std::make_unique<ControlPlane>(std::move(mesh->tree), std::move(mesh->control),
                                              std::move(options));
  CHECK_EQ(plane->Start(), testing::IsOk());
  return plane;
}

// The control planes of all ranks, [rank].
std::vector<std::unique_ptr<ControlPlane>> Planes(int world_size,
                                                  const ControlOptions& options = {}) {
  std::vector<Mesh> meshes = testing::ConnectAll(world_size, 1);
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (Mesh& mesh : meshes) {
    planes.push_back(PlaneOf(&mesh, options));
  }
  return planes;
}

// Rank 0's control plane, and this test's own ends of its connections, [rank].
struct Scripted {
  std::vector<Mesh> meshes;
  std::unique_ptr<ControlPlane> plane;

  explicit Scripted(int world_size) : meshes(testing::ConnectAll(world_size, 1)) {
    plane = PlaneOf(&meshes[0]);
  }

  Socket& End(int rank) { return meshes[rank].control[0]; }

  void Send(int rank, const std::string& bytes) {
    CHECK_EQ(SendAll(End(rank), bytes.data(), bytes.size(), After(kGenerousSeconds)),
             testing::IsOk());
  }

  Status AllGather(double seconds = kGenerousSeconds, const std::string& mine = "") {
    std::vector<std::string> all;
    return plane->AllGather(mine, seconds, &all);
  }
};

constexpr uint32_t kData = 1, kAbort = 2, kGone = 3, kProbe = 4, kAlive = 5;
constexpr int kAll = -1;

std::string Header(uint32_t kind, uint32_t num_bytes, int origin = 1, int target = kAll) {
  const uint32_t header[5] = {0x4442494cu, kind, num_bytes, static_cast<uint32_t>(origin),
                              static_cast<uint32_t>(target)};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header));
}

std::string Message(uint32_t kind, const std::string& text, int origin = 1) {
  return Header(kind, static_cast<uint32_t>(text.size()), origin) + text;
}

std::string Content(int rank, int round) {
  const size_t sizes[] = {0, 1, 11, 12, 13, 4096, 70001, 3 << 20, 0, 5 << 20};
  std::string content(sizes[(rank * 3 + round) % 10], static_cast<char>('a' + rank));
  for (size_t i = 0; i < content.size(); i += 97) content[i] = static_cast<char>(i / 97 + round);
  return content;
}

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

TEST_CASE("FarewellEndsWhatOthersWaitFor") {
  testing::OverBoth();
  const auto planes = Planes(3);
  OnEveryRank(3, [&](int rank) {
    if (rank == 2) {
      planes[2]->BroadcastAbort("the disk is full");
      planes[2]->BroadcastAbort("a second reason is not said");
      return;
    }
    std::vector<std::string> all;
    const Status status = planes[rank]->AllGather("x", kGenerousSeconds, &all);
    CHECK_EQ(status,
             testing::StatusIs(StatusCode::kUnavailable, "rank 2 gave up: the disk is full"));
  });
  const auto others = Planes(2);
  others[0]->BroadcastAbort("no plan");
  std::string message;
  CHECK_EQ(others[1]->Broadcast(0, kGenerousSeconds, &message),
           testing::StatusIs(StatusCode::kUnavailable, "rank 0 gave up: no plan"));
}

// Rank 1 is merely late; rank 2 is dead, which is known immediately.
TEST_CASE("DeadPeerIsNoticedWhileAnotherIsLate") {
  testing::OverBoth();
  for (const bool spoke_before : {false, true}) {
    Scripted script(3);
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

// Every rank that waits says for whom: those that are missing, not those that wait as well.
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

// Rank 1 has said its own, and is stopped: what ranks 0 and 5 and all behind them say to each other
// it keeps back. The test plays it, without an answer to anything.
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
    Scripted script(2);
    script.Send(1, bytes);
    script.End(1) = Socket();
    CHECK_EQ(script.AllGather(), testing::StatusIs(StatusCode::kUnavailable, "rank 1 is gone"));
  }
}

// The connections stay open, so only the header is rejected; reading 4 GiB would show.
TEST_CASE("OddHeadersAreRefusedUnread") {
  testing::OverBoth();
  for (const std::string& bytes :
       {Header(kData, 0xffffffffu), Header(kData, ControlPlane::kMaxMessageBytes + 1),
        Header(kAbort, 1 << 20), Header(kGone, 1 << 20), Header(kProbe, 1, 1, 0),
        Message(kData, "good").replace(0, 1, "X"), Message(7, "kind"),
        // From this rank itself, from no rank, and to no rank.
        Message(kData, "own", 0), Message(kGone, "own", 0), Message(kData, "none", -1),
        Message(kData, "none", 2), Header(kData, 0, 1, 0), Header(kProbe, 0, 1, 1),
        Header(kAlive, 0, 1, 2), Header(kProbe, 0, 1, kAll)}) {
    Scripted script(2);
    script.Send(1, bytes);
    CHECK_EQ(script.AllGather(), testing::StatusIs(StatusCode::kFailedPrecondition, "rank 1"));
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < (2 << 20));  // kilobytes
}

TEST_CASE("TooLargeAMessageIsNotSent") {
  testing::OverBoth();
  Scripted script(2);
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

// A reason that is too long ends with a whole character, however many bytes that has.
TEST_CASE("FarewellsAreCutBetweenCharacters") {
  constexpr size_t kMost = ControlFrame::kMaxWordsBytes;
  for (const std::string character : {"x", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (size_t size = kMost - 1; size <= kMost + 1; ++size) {
      const std::string before(size - character.size(), '-');
      auto planes = Planes(2);
      planes[1]->BroadcastAbort(before + character);
      const std::string all = "rank 1 gave up: " + before + character;
      const std::string cut =
          "rank 1 gave up: " + (character == "x" ? all.substr(16, kMost) : before);
      CHECK_EQ(planes[0]->WaitForAborts(kGenerousSeconds), size <= kMost ? all : cut);
    }
  }
  auto planes = Planes(2);
  planes[1]->BroadcastAbort("no UTF-8: \xFF");
  CHECK_EQ(planes[0]->WaitForAborts(kGenerousSeconds), "rank 1 gave up: no UTF-8: \xEF\xBF\xBD");
}

TEST_CASE("FarewellsAreHeard") {
  testing::OverBoth();
  {  // behind a message whose wait has ended
    Scripted script(3);
    script.Send(1, Message(kData, "late") + Message(kAbort, "enough"));
    CHECK_EQ(script.plane->WaitForAborts(kGenerousSeconds), "rank 1 gave up: enough");
  }
  {  // a connection that closed without a word says as much
    Scripted script(3);
    script.End(2) = Socket();
    CHECK_EQ(script.plane->WaitForAborts(kGenerousSeconds), testing::Contains("rank 2 is gone"));
  }
  {  // no rank sends
    Scripted script(3);
    CHECK_EQ(script.plane->WaitForAborts(kShortSeconds), "");
  }
  {  // there is no other rank
    Scripted script(1);
    CHECK_EQ(script.plane->WaitForAborts(kGenerousSeconds), "");
  }
}

// A rank between others, that passes on what they say, or one at the end of all: whether it gives
// up or is gone, all hear of it in the same words, also who has no connection to it, and waits for
// another one.
TEST_CASE("AllHearOfWhoIsLost") {
  testing::OverBoth();
  constexpr int kWorld = 22;
  for (const int lost : {0, 1, kWorld - 1}) {
    for (const bool says_why : {false, true}) {
      auto planes = Planes(kWorld);
      const std::string name = "rank " + std::to_string(lost);
      OnEveryRank(kWorld, [&](int rank) {
        if (rank != lost) {
          const std::string heard = planes[rank]->WaitForAborts(kGenerousSeconds);
          CHECK_EQ(heard,
                   testing::Contains(name + (says_why ? " gave up: no more data" : " is gone: ")));
          CHECK_EQ(planes[rank]->PeerStatus(), testing::StatusIs(StatusCode::kUnavailable, name));
          std::vector<std::string> all;
          CHECK_EQ(planes[rank]->AllGather("x", kGenerousSeconds, &all),
                   testing::StatusIs(StatusCode::kUnavailable, name));
        } else if (says_why) {
          planes[lost]->BroadcastAbort("no more data");
        } else {
          planes[lost].reset();
        }
      });
    }
  }
}

// Messages that no call has requested yet are read up to a limit; a later call gets all of them.
TEST_CASE("NobodyRunsAway") {
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

// Of answers that a neighbour does not read few wait for it, however often it asks.
TEST_CASE("NeighbourThatProbesAndDoesNotRead") {
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

// While rank 0 waits for another rank, a neighbour says more than it may: from behind another edge
// nothing is to come by it, and it is not read; if something is, it is named.
TEST_CASE("NeighbourThatRunsAwayWhileAnotherIsMissing") {
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

// While a collective waits in another thread, it gets what it waits for.
TEST_CASE("HearingDoesNotStealMessages") {
  testing::OverBoth();
  Scripted script(2);
  const std::string content = Content(1, 4);
  const std::string message = Message(kData, content);
  std::thread speaker([&] {
    std::string answer(Message(kData, "mine").size(), '\0');
    for (int round = 0; round < 20; ++round) {
      // The answer shows that the collective has begun, and so that it is the one who reads.
      CHECK_EQ(ReceiveAll(script.End(1), answer.data(), answer.size(), After(kGenerousSeconds)),
               testing::IsOk());
      script.Send(1, message.substr(0, round + 1));
      CHECK_EQ(script.plane->WaitForAborts(0.01), "");
      script.Send(1, message.substr(round + 1));
    }
  });
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> all;
    CHECK_EQ(script.plane->AllGather("mine", kGenerousSeconds, &all), testing::IsOk());
    CHECK(all[1] == content);
  }
  speaker.join();
}

// A message that is under way is not continued with the text of an abort message.
TEST_CASE("FarewellDoesNotCutIntoAMessage") {
  testing::OverBoth();
  for (int round = 0; round < 10; ++round) {
    Scripted script(2);
    const std::string content = Content(0, 7);
    const std::string whole = Message(kData, content, 0);
    std::thread sender([&] { CHECK(!script.AllGather(kGenerousSeconds, content).ok()); });
    std::string received(1, '\0');  // once it is here, the message is under way
    CHECK_EQ(ReceiveAll(script.End(1), received.data(), 1, After(kGenerousSeconds)),
             testing::IsOk());
    std::thread reader([&] {
      std::vector<char> bytes(1 << 16);
      for (;;) {
        const ssize_t size = recv(script.End(1).fd(), bytes.data(), bytes.size(), 0);
        if (size > 0) {
          received.append(bytes.data(), static_cast<size_t>(size));
        } else if (size == 0 || errno != EAGAIN) {
          break;
        } else {
          pollfd entry{script.End(1).fd(), POLLIN, 0};
          poll(&entry, 1, -1);
        }
      }
    });
    script.plane->BroadcastAbort("farewell");
    script.plane->Shutdown();
    sender.join();
    reader.join();
    const std::string begun = received.substr(0, whole.size());
    CHECK(begun == whole.substr(0, begun.size()));
  }
}

TEST_CASE("ShutdownWakesWhoeverWaits") {
  testing::OverBoth();
  Scripted script(3);
  std::thread waiter([&] { CHECK(!script.AllGather().ok()); });
  char byte;
  CHECK_EQ(ReceiveAll(script.End(2), &byte, 1, After(kGenerousSeconds)), testing::IsOk());
  script.plane->Shutdown();
  waiter.join();
}

}  // namespace
}  // namespace tf_libra
