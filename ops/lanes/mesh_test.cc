#include "ops/lanes/mesh.h"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::Meeting;
using testing::OnEveryRank;

// Every pair of ranks says on every connection which one it is.
void CheckConnections(std::vector<Mesh>* meshes, int num_lanes) {
  const int world_size = static_cast<int>(meshes->size());
  OnEveryRank(world_size, [&](int rank) {
    Mesh& mesh = (*meshes)[rank];
    CHECK_EQ(mesh.rank, rank);
    CHECK_EQ(mesh.world_size, world_size);
    CHECK_EQ(mesh.lanes.size(), static_cast<size_t>(num_lanes));
    for (const bool sending : {true, false}) {
      for (int lane = -1; lane < num_lanes; ++lane) {
        for (int peer = 0; peer < world_size; ++peer) {
          Socket& socket = lane < 0 ? mesh.control[peer] : mesh.lanes[lane].column[peer].socket;
          if (peer == rank || (lane < 0 && !mesh.tree.IsNeighbour(peer))) {
            CHECK(!socket.valid());
            continue;
          }
          int said[2] = {rank, lane};
          if (sending) {
            CHECK_EQ(SendAll(socket, said, sizeof(said), After(kGenerousSeconds)), testing::IsOk());
          } else {
            CHECK_EQ(ReceiveAll(socket, said, sizeof(said), After(kGenerousSeconds)),
                     testing::IsOk());
            CHECK_EQ(said[0], peer);
            CHECK_EQ(said[1], lane);
          }
        }
      }
    }
  });
}

void MeetInManyNumbers() {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    for (const int num_lanes : {1, 2, 4}) {
      std::vector<Mesh> meshes = ConnectAll(world_size, num_lanes);
      CheckConnections(&meshes, num_lanes);
    }
  }
}

TEST_CASE("AllMeet") {
  testing::OverAll();
  MeetInManyNumbers();
}

// What a rank says first, as it goes over the wire.
std::string HelloBytes(int32_t rank, int32_t lane, int32_t world_size, int32_t num_lanes) {
  std::string hello = "TFLIBRA3" + std::string(32, 'n');
  for (const int32_t field : {rank, lane, world_size, num_lanes}) {
    hello.append(reinterpret_cast<const char*>(&field), sizeof(field));
  }
  return hello;
}

Socket ConnectedStranger(const Address& address, const std::string& says) {
  Socket socket;
  CHECK_EQ(Connect(address, After(kGenerousSeconds), &socket), testing::IsOk());
  // As much as one call takes; a rank may hang up in the middle.
  send(socket.fd(), says.data(), says.size(), MSG_NOSIGNAL);
  return socket;
}

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

// A rank whose first attempt broke off comes again.
TEST_CASE("SecondAttemptTakesThePlaceOfTheFirst") {
  testing::OverAll();
  Meeting meeting(2, 1);
  {
    Socket broken = ConnectedStranger(meeting.options.addresses[0], HelloBytes(1, -1, 2, 1));
  }
  std::vector<Mesh> meshes(2);
  std::thread rank0([&] { CHECK_EQ(meeting.Connect(0, &meshes[0]), testing::IsOk()); });
  CHECK_EQ(meeting.Connect(1, &meshes[1]), testing::IsOk());
  rank0.join();
  CheckConnections(&meshes, 1);
}

// A job's rank at the address of another job's.
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

// Says hello as rank 1 of two, on its control connection, and returns what rank 0 answers.
Answer SayHello(const Socket& socket, Hello* hello) {
  const std::string bytes = HelloBytes(1, -1, 2, 1);
  std::memcpy(hello, bytes.data(), bytes.size());
  CHECK_EQ(SendAll(socket, hello, sizeof(*hello), After(kGenerousSeconds)), testing::IsOk());
  Answer answer;
  CHECK_EQ(ReceiveAll(socket, &answer, sizeof(answer), After(kGenerousSeconds)), testing::IsOk());
  return answer;
}

// Returns whether rank 0 welcomes who shows this; else it hangs up.
bool IsWelcome(const Socket& socket, const Digest& proof) {
  CHECK_EQ(SendAll(socket, proof.data(), proof.size(), After(kGenerousSeconds)), testing::IsOk());
  uint8_t welcome;
  return ReceiveAll(socket, &welcome, 1, After(kGenerousSeconds)).ok();
}

// Bytes seen on other connections, or shown by rank 0 itself, open none.
TEST_CASE("ProofsAreOfNoUseElsewhere") {
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

// Another user of the host, who even knows the secret.
TEST_CASE("AnotherUserIsAStranger") {
  testing::OverAll();
  if (!IsUnix(testing::MeetingPlace()) || geteuid() != 0) return;
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

// It listens and goes no further.
TEST_CASE("MissingRank") {
  testing::OverAll();
  for (int missing = 0; missing < 3; ++missing) {
    Meeting meeting(3, 2, kShortSeconds);
    std::vector<Mesh> meshes(3);
    std::vector<Status> statuses(3);
    OnEveryRank(3, [&](int rank) {
      if (rank != missing) statuses[rank] = meeting.Connect(rank, &meshes[rank]);
    });
    std::string said;
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == missing) continue;
      CHECK(!statuses[rank].ok());
      CHECK_EQ(statuses[rank].message(), testing::Contains("rank " + std::to_string(rank)));
      // Who is the last to give up may find that the other one has.
      if (statuses[rank].code() == StatusCode::kDeadlineExceeded) {
        CHECK_EQ(statuses[rank].message(),
                 testing::Contains((missing < rank ? "cannot reach rank " : "for rank(s) ") +
                                   std::to_string(missing)));
      }
      said += statuses[rank].message() + "\n";
    }
    CHECK_EQ(said, testing::Contains((missing == 0 ? "cannot reach rank " : "for rank(s) ") +
                                     std::to_string(missing)));
  }
}

// Waits until a process connects to this listener.
void AwaitConnection(const Socket& listener) {
  pollfd entry{listener.fd(), POLLIN, 0};
  CHECK_EQ(poll(&entry, 1, static_cast<int>(kGenerousSeconds * 1e3)), 1);
}

// A rank's process ends after it has begun to listen and before it connects: the others learn of it
// long before their deadline. It ends before their first check of it, or after.
TEST_CASE("RankThatEndsBeforeItConnects") {
  testing::OverAll();
  for (const bool watched : {false, true}) {
    for (int lost = 0; lost < 3; ++lost) {
      Meeting meeting(3, 2, 1e4);
      std::vector<Status> statuses(3);
      std::vector<Mesh> meshes(3);
      OnEveryRank(3, [&](int rank) {
        if (rank != lost) {
          statuses[rank] = meeting.Connect(rank, &meshes[rank]);
          return;
        }
        if (watched) AwaitConnection(meeting.listeners[lost]);
        meeting.listeners[lost] = Socket();
      });
      std::string said;
      for (int rank = 0; rank < 3; ++rank) {
        if (rank == lost) continue;
        CHECK_EQ(statuses[rank],
                 testing::StatusIs(StatusCode::kUnavailable, "rank " + std::to_string(rank)));
        said += statuses[rank].message() + "\n";
      }
      CHECK_EQ(said, testing::Contains("nobody listens for rank " + std::to_string(lost) +
                                       " any more: "));
      CHECK_EQ(said, testing::Contains("(cannot connect to "));
    }
  }
}

// The look at a rank falls into the moment at which that ends, and its connection seems to stand:
// the other end is forgotten without a word.
TEST_CASE("RankThatEndsAsItIsLookedAt") {
  testing::OverAll();
  Meeting meeting(2, 1, 1e4);
  std::vector<Status> statuses(2);
  Mesh mesh;
  OnEveryRank(2, [&](int rank) {
    if (rank == 0) {
      statuses[0] = meeting.Connect(0, &mesh);
      return;
    }
    AwaitConnection(meeting.listeners[1]);
    Socket look;
    CHECK_EQ(Accept(meeting.listeners[1], &look), testing::IsOk());
    // Closed in this state it sends nothing. Without the right to this option, as over Unix
    // sockets, it breaks immediately, and that is found, too.
    const int on = 1;
    setsockopt(look.fd(), IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on));
    meeting.listeners[1] = Socket();
  });
  CHECK_EQ(statuses[0],
           testing::StatusIs(StatusCode::kUnavailable, "nobody listens for rank 1 any more: "));
}

// Who is late finds those among the strangers at its listener who look after it.
TEST_CASE("LateRankIsWaitedFor") {
  testing::OverAll();
  for (int late = 1; late < 3; ++late) {
    Meeting meeting(3, 2);
    std::vector<Mesh> meshes(3);
    OnEveryRank(3, [&](int rank) {
      if (rank == late) AwaitConnection(meeting.listeners[late]);
      CHECK_EQ(meeting.Connect(rank, &meshes[rank]), testing::IsOk());
    });
    CheckConnections(&meshes, 2);
  }
}

// A rank that is slow, with so many strangers at its listener that it takes no more of them.
TEST_CASE("FullListenerIsNotTakenForADeadOne") {
  testing::OverAll();
  Meeting meeting(2, 1, 3);  // time enough to look at it more than once
  CHECK_EQ(listen(meeting.listeners[1].fd(), 0), 0);
  std::vector<Socket> strangers(3);
  Status last;
  for (Socket& socket : strangers) last = BeginConnect(meeting.options.addresses[1], &socket);
  if (IsUnix(testing::MeetingPlace()))
    CHECK_EQ(last, testing::StatusIs(StatusCode::kUnavailable, "unix:"));
  Mesh mesh;
  CHECK_EQ(meeting.Connect(0, &mesh),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
}

// Rank 0's address belongs to a program that answers what it likes.
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

// Runs over IPv6 once per kind of connection: a kind of its own in every test would only add to the
// run time.
TEST_CASE("AllMeetOverIPv6") {
  testing::OverAll();
  Socket listener;
  Address bound;
  if (!Listen("::1", 0, &listener, &bound).ok()) return;  // a machine without it
  const std::string place = std::exchange(testing::MeetingPlace(), "::1");
  MeetInManyNumbers();
  CHECK_EQ(Listen(bound.host, bound.port, &listener, &bound),
           testing::StatusIs(StatusCode::kFailedPrecondition,
                             "cannot bind to [::1]:" + std::to_string(bound.port)));
  testing::MeetingPlace() = place;
}

TEST_CASE("AddressThatIsNone") {
  testing::OverAll();
  Meeting meeting(2, 1);
  meeting.options.addresses[0].host = "rank-0.example";
  Mesh mesh;
  CHECK_EQ(meeting.Connect(1, &mesh),
           testing::StatusIs(StatusCode::kInvalidArgument, "'rank-0.example'"));
}

TEST_CASE("NobodyConnectsOnceTheMeshIsUp") {
  testing::OverAll();
  Meeting meeting(3, 1);
  std::vector<Mesh> meshes(3);
  OnEveryRank(3,
              [&](int rank) { CHECK_EQ(meeting.Connect(rank, &meshes[rank]), testing::IsOk()); });
  for (const Address& address : meeting.options.addresses) {
    Socket socket;
    CHECK_EQ(Connect(address, After(kGenerousSeconds), &socket),
             testing::StatusIs(StatusCode::kFailedPrecondition, address.host));
  }
}

// Until the peer has acknowledged all that was sent.
void AwaitAcknowledgement(const Socket& socket) {
  int left = 1;
  while (left > 0 && ioctl(socket.fd(), SIOCOUTQ, &left) == 0) poll(nullptr, 0, 1);
}

// As a firewall that has forgotten a connection: drops all packets that come.
void Forget(const Socket& socket) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  CHECK_EQ(setsockopt(socket.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

// Every kind of connection that two ranks have.
std::vector<Socket*> AllTo(Mesh* mesh, int peer) {
  std::vector<Socket*> sockets = {&mesh->control[peer], &mesh->messages[peer].socket,
                                  &mesh->links[peer]};
  for (GridPeers& lane : mesh->lanes) sockets.push_back(&lane.column[peer].socket);
  return sockets;
}

// On both sides, also of lanes that are added. One whose packets are dropped breaks, and one whose
// peer does not read what is under way stays.
TEST_CASE("EveryConnectionIsProbedWhileIdle") {
  testing::MeetAt("127.0.0.1", false);
  std::vector<Mesh> meshes(2), added(2);
  for (const int first_lane : {0, 2}) {
    Meeting meeting(2, 2 + first_lane);
    meeting.options.first_lane = first_lane;
    meeting.options.liveness_seconds = 5;
    OnEveryRank(2, [&](int rank) {
      CHECK_EQ(meeting.Connect(rank, &(first_lane == 0 ? meshes : added)[rank]), testing::IsOk());
    });
  }
  std::vector<Socket*> ends[2];
  for (int rank = 0; rank < 2; ++rank) {
    ends[rank] = AllTo(&meshes[rank], 1 - rank);
    for (GridPeers& lane : added[rank].lanes) {
      ends[rank].push_back(&lane.column[1 - rank].socket);
    }
    CHECK_EQ(ends[rank].size(), 7u);
    for (const Socket* end : ends[rank]) {
      AwaitAcknowledgement(*end);
      const auto option = [end](int level, int name) {
        int value = 0;
        socklen_t length = sizeof(value);
        CHECK_EQ(getsockopt(end->fd(), level, name, &value, &length), 0);
        return value;
      };
      CHECK_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
      CHECK_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE) +
                   option(IPPROTO_TCP, TCP_KEEPCNT) * option(IPPROTO_TCP, TCP_KEEPINTVL),
               5);
      CHECK_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
    }
  }
  const std::string bytes(1 << 16, 'x');
  const Socket& unread = *ends[0].back();
  while (send(unread.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
  }
  for (size_t i = 0; i + 1 < ends[0].size(); ++i) {
    for (const auto& end : ends) Forget(*end[i]);
  }
  for (size_t i = 0; i + 1 < ends[0].size(); ++i) {
    pollfd entry{ends[0][i]->fd(), 0, 0};  // its end alone
    CHECK_EQ(poll(&entry, 1, static_cast<int>(kGenerousSeconds * 1e3)), 1);
    CHECK_EQ(WhyLinkBroke(*ends[0][i]), ErrnoText(ETIMEDOUT));
  }
  pollfd entry{unread.fd(), 0, 0};
  CHECK_EQ(poll(&entry, 1, 0), 0);
}

// Descriptors that come with a greeting are not taken, whatever it says: strangers, who stay, leave
// this process none.
TEST_CASE("FilesOfStrangersAreNotTaken") {
  testing::MeetAt(kUnixHost, true);
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

// More strangers than are waited for at a time, none of whom says a word.
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
}  // namespace tf_libra
