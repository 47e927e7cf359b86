// Aborts of a rank, and lost ranks, as the control plane spreads them.
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/control_plane.h"
#include "ops/lanes/control_plane_testing.h"

namespace tf_libra::control_plane_abort_test {
namespace {

using testing::Content;
using testing::kAbort;
using testing::kData;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::Message;
using testing::OnEveryRank;
using testing::Planes;
using testing::ScriptedPeer;

TEST_CASE("AbortEndsPendingCollectives") {
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

// A reason that is too long is cut between two UTF-8 characters.
TEST_CASE("AbortReasonsAreCutBetweenCharacters") {
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

TEST_CASE("AbortsAreReceived") {
  testing::OverBoth();
  {  // behind a message whose wait has ended
    ScriptedPeer script(3);
    script.Send(1, Message(kData, "late") + Message(kAbort, "enough"));
    CHECK_EQ(script.plane->WaitForAborts(kGenerousSeconds), "rank 1 gave up: enough");
  }
  {  // a connection that closed without a word says as much
    ScriptedPeer script(3);
    script.End(2) = Socket();
    CHECK_EQ(script.plane->WaitForAborts(kGenerousSeconds), testing::Contains("rank 2 is gone"));
  }
  {  // no rank sends
    ScriptedPeer script(3);
    CHECK_EQ(script.plane->WaitForAborts(kShortSeconds), "");
  }
  {  // there is no other rank
    ScriptedPeer script(1);
    CHECK_EQ(script.plane->WaitForAborts(kGenerousSeconds), "");
  }
}

// The lost rank is the root, a relay or a leaf, and aborts or disappears. All ranks learn of it in
// the same words, including ranks that have no connection to it and wait for another rank.
TEST_CASE("EveryRankLearnsOfALostRank") {
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

// A collective that waits in another thread receives its messages.
TEST_CASE("WaitForAbortsLeavesMessagesToCollectives") {
  testing::OverBoth();
  ScriptedPeer script(2);
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

// The text of an abort does not interrupt a message that is being sent.
TEST_CASE("AbortDoesNotInterruptAMessage") {
  testing::OverBoth();
  for (int round = 0; round < 10; ++round) {
    ScriptedPeer script(2);
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

TEST_CASE("ShutdownEndsPendingCollectives") {
  testing::OverBoth();
  ScriptedPeer script(3);
  std::thread waiter([&] { CHECK(!script.AllGather().ok()); });
  char byte;
  CHECK_EQ(ReceiveAll(script.End(2), &byte, 1, After(kGenerousSeconds)), testing::IsOk());
  script.plane->Shutdown();
  waiter.join();
}

}  // namespace
}  // namespace tf_libra::control_plane_abort_test
