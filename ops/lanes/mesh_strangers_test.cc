// Connections to a mesh by processes that are none of its ranks.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/mesh.h"
#include "ops/lanes/mesh_testing.h"

namespace tf_libra::mesh_strangers_test {
namespace {

using testing::CheckConnections;
using testing::ConnectedStranger;
using testing::HelloBytes;
using testing::kGenerousSeconds;
using testing::Meeting;
using testing::OnEveryRank;

std::vector<std::string> StrangeWords(const Meeting& meeting) {
  const int lanes = meeting.options.num_lanes;
  std::vector<std::string> words = {
      "",
      "x",
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      std::string(56, '\0'),
      std::string(1 << 20, 'x'),
      HelloBytes(1, 0, 3, lanes).replace(3, 1, "?"),
      HelloBytes(1, 0, 3, lanes).substr(0, 55),
      HelloBytes(1, 0, 3, lanes),                         // and no proof
      HelloBytes(1, 0, 3, lanes) + std::string(32, 'p'),  // and one that is none
  };
  for (const int32_t odd : {-2, 3, 1 << 30, INT32_MIN}) {
    words.push_back(HelloBytes(odd, 0, 3, lanes));
    words.push_back(HelloBytes(1, odd, 3, lanes));
    words.push_back(HelloBytes(1, 0, odd == 3 ? 4 : odd, lanes));
    words.push_back(HelloBytes(1, 0, 3, odd));
  }
  words.push_back(HelloBytes(0, 0, 3, lanes));  // rank 0 is who is called
  return words;
}

TEST_CASE("StrangersBeforeAndDuring") {
  testing::OverAll();
  constexpr int kLanes = 2;
  for (int round = 0; round < 5; ++round) {
    Meeting meeting(3, kLanes);
    const std::vector<std::string> words = StrangeWords(meeting);
    std::vector<Socket> early;
    for (const std::string& says : words) {
      early.push_back(ConnectedStranger(meeting.options.addresses[0], says));
    }
    std::vector<Mesh> meshes(3);
    std::atomic<bool> up{false};
    std::thread crowd([&] {
      std::vector<Socket> late;
      for (size_t i = 0; !up; ++i) {
        Socket socket;
        // Fails once rank 0 has met all ranks.
        if (!Connect(meeting.options.addresses[0], After(kGenerousSeconds), &socket).ok()) break;
        const std::string& says = words[i % words.size()];
        send(socket.fd(), says.data(), says.size(), MSG_NOSIGNAL);
        if (i % 2 == 0) late.push_back(std::move(socket));
        if (late.size() > 100) late.clear();
      }
    });
    OnEveryRank(3,
                [&](int rank) { CHECK_EQ(meeting.Connect(rank, &meshes[rank]), testing::IsOk()); });
    up = true;
    crowd.join();
    CheckConnections(&meshes, kLanes);
  }
}

// A rank connects to the address of another job.
TEST_CASE("WrongSecret") {
  testing::OverAll();
  for (const size_t byte : {0, 63}) {
    Meeting meeting(2, 1, 2);  // within which the stranger comes
    Meeting stranger = Meeting(2, 1, kGenerousSeconds);
    stranger.options.addresses = meeting.options.addresses;
    stranger.options.secret[byte] ^= 1;
    OnEveryRank(2, [&](int rank) {
      Mesh mesh;
      const Status status = (rank == 0 ? meeting : stranger).Connect(rank, &mesh);
      if (rank == 0) {
        CHECK_EQ(status, testing::StatusIs(StatusCode::kDeadlineExceeded, "rank(s) 1"));
      } else {
        CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition,
                                           "rank 0's port is held by another"));
      }
    });
  }
}

// Sends the hello of rank 1 of two, for its control connection, and returns rank 0's answer.
Answer SayHello(const Socket& socket, Hello* hello) {
  const std::string bytes = HelloBytes(1, -1, 2, 1);
  std::memcpy(hello, bytes.data(), bytes.size());
  CHECK_EQ(SendAll(socket, hello, sizeof(*hello), After(kGenerousSeconds)), testing::IsOk());
  Answer answer;
  CHECK_EQ(ReceiveAll(socket, &answer, sizeof(answer), After(kGenerousSeconds)), testing::IsOk());
  return answer;
}

// Returns whether rank 0 accepts the proof; otherwise it hangs up.
bool IsWelcome(const Socket& socket, const Digest& proof) {
  CHECK_EQ(SendAll(socket, proof.data(), proof.size(), After(kGenerousSeconds)), testing::IsOk());
  uint8_t welcome;
  return ReceiveAll(socket, &welcome, 1, After(kGenerousSeconds)).ok();
}

// Proofs of another connection, and rank 0's own, are rejected.
TEST_CASE("ProofsHoldForOneConnection") {
  testing::OverAll();
  Meeting meeting(2, 1);
  Mesh mesh;
  std::thread rank0([&] { CHECK_EQ(meeting.Connect(0, &mesh), testing::IsOk()); });
  const JobSecret& secret = meeting.options.secret;
  const auto stranger = [&](Hello* hello, Answer* answer) {
    Socket socket;
    CHECK_EQ(Connect(meeting.options.addresses[0], After(kGenerousSeconds), &socket),
             testing::IsOk());
    *answer = SayHello(socket, hello);
    return socket;
  };
  Hello hello;
  Answer first, second;
  Socket one = stranger(&hello, &first), other = stranger(&hello, &second);
  CHECK(first.nonce != second.nonce);
  CHECK(first.proof == Proof(secret, Role::kCallee, hello, 0, first.nonce));
  const Digest seen = Proof(secret, Role::kCaller, hello, 0, first.nonce);
  CHECK(!IsWelcome(other, seen));  // that of another connection
  CHECK(IsWelcome(one, seen));
  Hello elsewhere = hello;
  elsewhere.lane = 0;
  Socket third = stranger(&hello, &first);
  CHECK(!IsWelcome(third, Proof(secret, Role::kCaller, elsewhere, 0, first.nonce)));
  third = stranger(&hello, &first);
  CHECK(!IsWelcome(third, Proof(secret, Role::kCaller, hello, 1, first.nonce)));
  third = stranger(&hello, &first);
  CHECK(!IsWelcome(third, first.proof));
  Mesh rank1;
  CHECK_EQ(meeting.Connect(1, &rank1), testing::IsOk());
  rank0.join();
}

// A process of another user on the host, which knows the secret, is rejected.
TEST_CASE("AnotherUserIsAStranger") {
  testing::OverAll();
  if (!IsUnix(testing::RendezvousHost()) || geteuid() != 0) return;
  Meeting meeting(2, 1);
  const int before = testing::Failures();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    CHECK_EQ(setuid(54321), 0);
    Mesh mesh;
    CHECK_EQ(meeting.Connect(1, &mesh),
             testing::StatusIs(StatusCode::kFailedPrecondition,
                               "rank 0's port is held by another program, of another user"));
    Socket socket;
    CHECK_EQ(Connect(meeting.options.addresses[0], After(kGenerousSeconds), &socket),
             testing::IsOk());
    char byte;  // hung up, without a word
    const std::string hello = HelloBytes(1, -1, 2, 1);
    send(socket.fd(), hello.data(), hello.size(), MSG_NOSIGNAL);
    CHECK_EQ(ReceiveAll(socket, &byte, 1, After(kGenerousSeconds)),
             testing::StatusIs(StatusCode::kUnavailable, ""));
    _exit(testing::Failures() == before ? 0 : 1);
  }
  std::vector<Mesh> meshes(2);
  std::thread rank0([&] { CHECK_EQ(meeting.Connect(0, &meshes[0]), testing::IsOk()); });
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
  CHECK_EQ(meeting.Connect(1, &meshes[1]), testing::IsOk());
  rank0.join();
}

// Another program listens at rank 0's address and sends arbitrary answers.
TEST_CASE("PortHeldByAnotherProgram") {
  testing::OverAll();
  for (const std::string& answer : {std::string(8, 'x'), std::string(100, 'x'), std::string()}) {
    const bool answers = !answer.empty();
    Meeting meeting(2, 1, answers ? kGenerousSeconds : 2);
    std::thread program([&] {
      pollfd entry{meeting.listeners[0].fd(), POLLIN, 0};
      poll(&entry, 1, -1);
      Socket socket;
      CHECK_EQ(Accept(meeting.listeners[0], &socket), testing::IsOk());
      CHECK_EQ(SendAll(socket, answer.data(), answer.size(), After(kGenerousSeconds)),
               testing::IsOk());
      char byte;
      size_t count = 0;
      while (ReceiveAll(socket, &byte, 1, After(kGenerousSeconds)).ok()) ++count;
      CHECK_EQ(count, 56u);  // what rank 1 said, and it hung up
    });
    Mesh mesh;
    const Status status = meeting.Connect(1, &mesh);
    CHECK_EQ(status, testing::StatusIs(
                         answers ? StatusCode::kFailedPrecondition : StatusCode::kDeadlineExceeded,
                         "rank 0"));
    program.join();
  }
}

// Descriptors that come with a hello are not accepted, whatever it contains: strangers that stay
// connected add no descriptors to this process.
TEST_CASE("DescriptorsOfStrangersAreNotAccepted") {
  testing::SetRendezvousHost(kUnixHost, true);
  Meeting meeting(2, 1);
  Mesh meshes[2];
  const int before = testing::NumOpen();
  std::thread rank0([&] { CHECK_EQ(meeting.Connect(0, &meshes[0]), testing::IsOk()); });
  std::vector<Socket> strangers;
  for (int i = 0; i < 20; ++i) {
    Socket socket;
    CHECK_EQ(Connect(meeting.options.addresses[0], After(kGenerousSeconds), &socket),
             testing::IsOk());
    // On the lane, which may share memory; and the files come before any proof.
    const std::string hello = HelloBytes(1, 0, 2, 1);
    for (size_t at = 0; at < hello.size(); ++at) {
      CHECK_EQ(testing::SendWithFiles(socket, hello.substr(at, 1), 2), 1);
    }
    Answer answer;  // all of it has been read
    CHECK_EQ(ReceiveAll(socket, &answer, sizeof(answer), After(kGenerousSeconds)), testing::IsOk());
    strangers.push_back(std::move(socket));
  }
  // Each has two ends in this process.
  const int most = before + 2 * static_cast<int>(strangers.size()) + 2;
  CHECK(testing::NumOpen() <= most);
  CHECK_EQ(meeting.Connect(1, &meshes[1]), testing::IsOk());
  rank0.join();
}

// More silent strangers than the listener serves at a time.
TEST_CASE("ManySilentStrangers") {
  testing::OverAll();
  Meeting meeting(2, 1);
  std::vector<Socket> strangers;
  for (int i = 0; i < 400; ++i) {
    strangers.push_back(ConnectedStranger(meeting.options.addresses[0], ""));
  }
  std::vector<Mesh> meshes(2);
  OnEveryRank(2,
              [&](int rank) { CHECK_EQ(meeting.Connect(rank, &meshes[rank]), testing::IsOk()); });
  CheckConnections(&meshes, 1);
}

}  // namespace
}  // namespace tf_libra::mesh_strangers_test
