#include "ops/lanes/control.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

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

// The control planes of all ranks, [rank].
std::vector<std::unique_ptr<ControlPlane>> Planes(int world_size) {
  std::vector<Mesh> meshes = testing::ConnectAll(world_size, 1);
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (Mesh& mesh : meshes) {
    planes.push_back(std::make_unique<ControlPlane>(mesh.rank, std::move(mesh.control)));
  }
  return planes;
}

// Rank 0's control plane, and this test's own ends of its connections, [rank].
struct Scripted {
  std::vector<Mesh> meshes;
  std::unique_ptr<ControlPlane> plane;

  explicit Scripted(int world_size) : meshes(testing::ConnectAll(world_size, 1)) {
    plane = std::make_unique<ControlPlane>(0, std::move(meshes[0].control));
  }

  Socket& End(int rank) { return meshes[rank].control[0]; }

  void Send(int rank, const std::string& bytes) {
    CHECK_OK(SendAll(End(rank), bytes.data(), bytes.size(), After(kGenerousSeconds)));
  }

  Status AllGather(double seconds = kGenerousSeconds, const std::string& mine = "") {
    std::vector<std::string> all;
    return plane->AllGather(mine, seconds, &all);
  }
};

constexpr uint32_t kData = 1, kFarewell = 2;

std::string Message(uint32_t kind, uint32_t num_bytes, const std::string& text) {
  const uint32_t header[3] = {0x4342494cu, kind, num_bytes};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header)) + text;
}

std::string Message(uint32_t kind, const std::string& text) {
  return Message(kind, static_cast<uint32_t>(text.size()), text);
}

std::string Content(int rank, int round) {
  const size_t sizes[] = {0, 1, 11, 12, 13, 4096, 70001, 3 << 20, 0, 5 << 20};
  std::string content(sizes[(rank * 3 + round) % 10], static_cast<char>('a' + rank));
  for (size_t i = 0; i < content.size(); i += 97) content[i] = static_cast<char>(i / 97 + round);
  return content;
}

void MessagesOfAllSizes() {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    const auto planes = Planes(world_size);
    OnEveryRank(world_size, [&](int rank) {
      for (int round = 0; round < 6; ++round) {
        std::vector<std::string> all;
        CHECK_OK(planes[rank]->AllGather(Content(rank, round), kGenerousSeconds, &all));
        CHECK_EQ(all.size(), static_cast<size_t>(world_size));
        for (int other = 0; other < world_size; ++other) {
          CHECK_TRUE(all[other] == Content(other, round));
        }
        const int root = round % world_size;
        std::string message = rank == root ? Content(root, round + 3) : "mine does not count";
        CHECK_OK(planes[rank]->Broadcast(root, kGenerousSeconds, &message));
        CHECK_TRUE(message == Content(root, round + 3));
      }
    });
  }
}

void FarewellEndsWhatOthersWaitFor() {
  const auto planes = Planes(3);
  OnEveryRank(3, [&](int rank) {
    if (rank == 2) {
      planes[2]->Farewell("the disk is full");
      planes[2]->Farewell("a second reason is not said");
      return;
    }
    std::vector<std::string> all;
    const Status status = planes[rank]->AllGather("x", kGenerousSeconds, &all);
    CHECK_STATUS(status, StatusCode::kUnavailable, "rank 2 gave up: the disk is full");
  });
  const auto others = Planes(2);
  others[0]->Farewell("no plan");
  std::string message;
  CHECK_STATUS(others[1]->Broadcast(0, kGenerousSeconds, &message), StatusCode::kUnavailable,
               "rank 0 gave up: no plan");
}

// Rank 1 is merely late; rank 2 is dead, which is known at once.
void DeadPeerIsNoticedWhileAnotherIsLate() {
  for (const bool spoke_before : {false, true}) {
    Scripted script(3);
    if (spoke_before) script.Send(2, Message(kData, "here"));
    std::thread death([&] { script.End(2) = Socket(); });
    // More than fits into the buffers of a connection: rank 2 cannot have had it all.
    CHECK_STATUS(script.AllGather(kGenerousSeconds, std::string(48 << 20, 'x')),
                 StatusCode::kUnavailable, "rank 2");
    death.join();
  }
}

void DeadRootIsNoticed() {
  auto meshes = testing::ConnectAll(2, 1);
  ControlPlane plane(1, std::move(meshes[1].control));
  std::thread death([&] { meshes[0].control[1] = Socket(); });
  std::string message;
  CHECK_STATUS(plane.Broadcast(0, kGenerousSeconds, &message), StatusCode::kUnavailable, "rank 0");
  death.join();
}

// Every rank that waits says for whom: the one that is missing, not one that waits as well.
void MissingRankIsNamedByAll() {
  for (int missing = 0; missing < 3; ++missing) {
    const auto planes = Planes(3);
    OnEveryRank(3, [&](int rank) {
      if (rank == missing) return;
      std::vector<std::string> all;
      const Status status = planes[rank]->AllGather("x", kShortSeconds, &all);
      CHECK_STATUS(status, StatusCode::kDeadlineExceeded, "for rank(s) " + std::to_string(missing));
    });
  }
  const auto planes = Planes(2);
  std::string message;
  CHECK_STATUS(planes[1]->Broadcast(0, kShortSeconds, &message), StatusCode::kDeadlineExceeded,
               "for rank(s) 0");
}

// The peer answers only once the warning has come, so the collective ends well.
void LateRankIsWarnedAboutOnce() {
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  const std::string answer = Message(kData, "late");
  std::vector<std::string> warnings;
  ControlPlane plane(0, std::move(meshes[0].control),
                     {kShortSeconds / 4, [&](const std::string& ranks) {
                        warnings.push_back(ranks);
                        CHECK_OK(SendAll(meshes[1].control[0], answer.data(), answer.size(),
                                         After(kGenerousSeconds)));
                      }});
  std::vector<std::string> all;
  CHECK_OK(plane.AllGather("", kGenerousSeconds, &all));
  CHECK_EQ(all[1], std::string("late"));
  CHECK_EQ(warnings.size(), size_t{1});
  CHECK_EQ(warnings[0], std::string("1"));
}

void PeerDiesWithinAMessage() {
  for (const std::string& bytes : {Message(kData, 100, "ten bytes."), std::string("LIB")}) {
    Scripted script(2);
    script.Send(1, bytes);
    script.End(1) = Socket();
    CHECK_STATUS(script.AllGather(), StatusCode::kUnavailable, "rank 1 is gone");
  }
}

// The connections stay open, so it is the header alone that is refused; and 4 GiB would show.
void OversizedHeadersAreRefusedUnread() {
  for (const std::string& bytes :
       {Message(kData, 0xffffffffu, ""), Message(kData, ControlPlane::kMaxMessageBytes + 1, ""),
        Message(kFarewell, 1 << 20, ""), Message(kData, 4, "good").replace(0, 1, "X"),
        Message(7, 4, "kind")}) {
    Scripted script(2);
    script.Send(1, bytes);
    CHECK_STATUS(script.AllGather(), StatusCode::kFailedPrecondition, "rank 1");
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  CHECK_TRUE(usage.ru_maxrss < (2 << 20));  // kilobytes
}

void TooLargeAMessageIsNotSent() {
  Scripted script(2);
  std::string message(ControlPlane::kMaxMessageBytes + 1, 'x');
  CHECK_STATUS(script.AllGather(kGenerousSeconds, message), StatusCode::kInvalidArgument,
               std::to_string(message.size()));
  CHECK_STATUS(script.plane->Broadcast(0, kGenerousSeconds, &message), StatusCode::kInvalidArgument,
               std::to_string(message.size()));
  script.Send(1, Message(kData, "hello"));
  std::vector<std::string> all;
  CHECK_OK(script.plane->AllGather("the connection is as good as new", kGenerousSeconds, &all));
  CHECK_EQ(all[1], "hello");
}

void FarewellsAreHeard() {
  {  // behind a message that nobody waits for any more
    Scripted script(3);
    script.Send(1, Message(kData, "late") + Message(kFarewell, "enough"));
    CHECK_EQ(script.plane->HearFarewells(kGenerousSeconds), "rank 1 gave up: enough");
  }
  {  // a connection that closed without a word says as much
    Scripted script(3);
    script.End(2) = Socket();
    CHECK_CONTAINS(script.plane->HearFarewells(kGenerousSeconds), "rank 2 is gone");
  }
  {  // nobody speaks
    Scripted script(3);
    CHECK_EQ(script.plane->HearFarewells(kShortSeconds), "");
  }
  {  // nobody else is there
    Scripted script(1);
    CHECK_EQ(script.plane->HearFarewells(kGenerousSeconds), "");
  }
}

// While a collective waits in another thread, it is that thread that reads from the peers.
void HearingDoesNotStealMessages() {
  Scripted script(2);
  const std::string content = Content(1, 4);
  const std::string message = Message(kData, content);
  std::thread speaker([&] {
    std::string answer(Message(kData, "mine").size(), '\0');
    for (int round = 0; round < 20; ++round) {
      // The answer shows that the collective has begun, and so that it is the one who reads.
      CHECK_OK(ReceiveAll(script.End(1), answer.data(), answer.size(), After(kGenerousSeconds)));
      script.Send(1, message.substr(0, round + 1));
      CHECK_EQ(script.plane->HearFarewells(0.01), "");
      script.Send(1, message.substr(round + 1));
    }
  });
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> all;
    CHECK_OK(script.plane->AllGather("mine", kGenerousSeconds, &all));
    CHECK_TRUE(all[1] == content);
  }
  speaker.join();
}

// A message that is under way is not continued with the words of a farewell.
void FarewellDoesNotCutIntoAMessage() {
  for (int round = 0; round < 10; ++round) {
    Scripted script(2);
    const std::string content = Content(0, 7);
    const std::string whole = Message(kData, content);
    std::thread sender([&] { CHECK_TRUE(!script.AllGather(kGenerousSeconds, content).ok()); });
    std::string received(1, '\0');  // once it is here, the message is under way
    CHECK_OK(ReceiveAll(script.End(1), received.data(), 1, After(kGenerousSeconds)));
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
    script.plane->Farewell("farewell");
    script.plane->Shutdown();
    sender.join();
    reader.join();
    const std::string begun = received.substr(0, whole.size());
    CHECK_TRUE(begun == whole.substr(0, begun.size()));
  }
}

void ShutdownWakesWhoeverWaits() {
  Scripted script(3);
  std::thread waiter([&] { CHECK_TRUE(!script.AllGather().ok()); });
  char byte;
  CHECK_OK(ReceiveAll(script.End(2), &byte, 1, After(kGenerousSeconds)));
  script.plane->Shutdown();
  waiter.join();
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  using namespace tf_libra;
  return testing::RunTestsOverBoth(
      {{"MessagesOfAllSizes", MessagesOfAllSizes},
       {"FarewellEndsWhatOthersWaitFor", FarewellEndsWhatOthersWaitFor},
       {"DeadPeerIsNoticedWhileAnotherIsLate", DeadPeerIsNoticedWhileAnotherIsLate},
       {"DeadRootIsNoticed", DeadRootIsNoticed},
       {"MissingRankIsNamedByAll", MissingRankIsNamedByAll},
       {"LateRankIsWarnedAboutOnce", LateRankIsWarnedAboutOnce},
       {"PeerDiesWithinAMessage", PeerDiesWithinAMessage},
       {"OversizedHeadersAreRefusedUnread", OversizedHeadersAreRefusedUnread},
       {"TooLargeAMessageIsNotSent", TooLargeAMessageIsNotSent},
       {"FarewellsAreHeard", FarewellsAreHeard},
       {"HearingDoesNotStealMessages", HearingDoesNotStealMessages},
       {"FarewellDoesNotCutIntoAMessage", FarewellDoesNotCutIntoAMessage},
       {"ShutdownWakesWhoeverWaits", ShutdownWakesWhoeverWaits}},
      argc, argv);
}
