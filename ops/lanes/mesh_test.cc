#include "ops/lanes/mesh.h"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/mesh_testing.h"

namespace tf_libra::mesh_test {
namespace {

using testing::CheckConnections;
using testing::ConnectAll;
using testing::ConnectedStranger;
using testing::HelloBytes;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::Meeting;
using testing::OnEveryRank;

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

// A rank connects again after its first attempt broke off.
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

// The missing rank listens and does nothing else.
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

// A rank's process ends after it has begun to listen and before it connects, and before or after
// the first liveness check of the others. They notice long before their deadline.
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

// A rank ends during the liveness check of another one: the connection seems to be established, and
// the peer's kernel drops it without a message.
TEST_CASE("RankThatEndsDuringALivenessCheck") {
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

// A late rank finds the liveness checks of the others in the queue of its listener.
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

// A slow rank whose listener's queue is full is not taken for a dead one.
TEST_CASE("FullListenerIsNotTakenForADeadOne") {
  testing::OverAll();
  Meeting meeting(2, 1, 3);  // time enough to look at it more than once
  CHECK_EQ(listen(meeting.listeners[1].fd(), 0), 0);
  std::vector<Socket> strangers(3);
  Status last;
  for (Socket& socket : strangers) last = BeginConnect(meeting.options.addresses[1], &socket);
  if (IsUnix(testing::RendezvousHost()))
    CHECK_EQ(last, testing::StatusIs(StatusCode::kUnavailable, "unix:"));
  Mesh mesh;
  CHECK_EQ(meeting.Connect(0, &mesh),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
}

// Runs over IPv6 once per kind of connection: a kind of its own in every test would only add to the
// run time.
TEST_CASE("AllMeetOverIPv6") {
  testing::OverAll();
  Socket listener;
  Address bound;
  if (!Listen("::1", 0, &listener, &bound).ok()) return;  // a machine without it
  const std::string host = std::exchange(testing::RendezvousHost(), "::1");
  MeetInManyNumbers();
  CHECK_EQ(Listen(bound.host, bound.port, &listener, &bound),
           testing::StatusIs(StatusCode::kFailedPrecondition,
                             "cannot bind to [::1]:" + std::to_string(bound.port)));
  testing::RendezvousHost() = host;
}

TEST_CASE("InvalidAddressIsRejected") {
  testing::OverAll();
  Meeting meeting(2, 1);
  meeting.options.addresses[0].host = "rank-0.example";
  Mesh mesh;
  CHECK_EQ(meeting.Connect(1, &mesh),
           testing::StatusIs(StatusCode::kInvalidArgument, "'rank-0.example'"));
}

TEST_CASE("ListenersCloseOnceTheMeshIsConnected") {
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

// Waits until the peer has acknowledged all bytes.
void AwaitAcknowledgement(const Socket& socket) {
  int left = 1;
  while (left > 0 && ioctl(socket.fd(), SIOCOUTQ, &left) == 0) poll(nullptr, 0, 1);
}

// Drops all incoming packets, like a firewall that has forgotten the connection.
void Forget(const Socket& socket) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  CHECK_EQ(setsockopt(socket.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
}

// Returns every connection between this rank and a peer.
std::vector<Socket*> AllTo(Mesh* mesh, int peer) {
  std::vector<Socket*> sockets = {&mesh->control[peer], &mesh->messages[peer].socket,
                                  &mesh->links[peer]};
  for (GridPeers& lane : mesh->lanes) sockets.push_back(&lane.column[peer].socket);
  return sockets;
}

// Both ends probe, also on lanes that are added later. A connection whose packets are dropped
// breaks; a connection whose peer does not read stays.
TEST_CASE("EveryConnectionIsProbedWhileIdle") {
  testing::SetRendezvousHost("127.0.0.1", false);
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

}  // namespace
}  // namespace tf_libra::mesh_test
