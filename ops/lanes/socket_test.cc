#include "ops/lanes/socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::socket_test {
namespace {

int SocketOption(const Socket& socket, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  CHECK_EQ(getsockopt(socket.fd(), level, name, &value, &length), 0);
  return value;
}

// From its last answer until a link counts as broken, as the kernel has it.
TEST_CASE("LinksAreProbedAsOftenAsIsAsked") {
  testing::OverAll();
  Socket listener, idle;
  Address bound;
  CHECK_EQ(Listen("127.0.0.1", 0, &listener, &bound), testing::IsOk());
  CHECK_EQ(Connect(bound, After(5), &idle), testing::IsOk());
  for (const int seconds : {5, 7, 10, 13, 60, 100, 3600, 86400}) {
    EnableKeepalive(idle, seconds);
    CHECK_EQ(SocketOption(idle, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int probes = SocketOption(idle, IPPROTO_TCP, TCP_KEEPCNT);
    const int interval = SocketOption(idle, IPPROTO_TCP, TCP_KEEPINTVL);
    const int first = SocketOption(idle, IPPROTO_TCP, TCP_KEEPIDLE);
    CHECK_EQ(first + probes * interval, seconds);
    // No firewall sees it silent for minutes.
    if (seconds <= 3600) CHECK((first < 60 && interval <= 30));
  }
}

// Control messages have room for a multiple of their alignment: two descriptors instead of one.
TEST_CASE("FilesThatAreNotWantedAreClosed") {
  int fds[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const Socket ours(fds[0]), theirs(fds[1]);
  const int before = testing::NumOpen();
  for (const size_t count : {1, 2, 3, 20}) {
    char byte = 0;
    Socket file;
    CHECK_EQ(testing::SendWithFiles(theirs, "x", count), 1);
    CHECK_EQ(ReceiveFile(ours, &byte, 1, &file), 1);
    CHECK(file.valid());
    CHECK((fcntl(file.fd(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_EQ(testing::NumOpen(), before + 1);
    file = Socket();
    CHECK_EQ(testing::NumOpen(), before);
  }
}

TEST_CASE("AddressInUse") {
  testing::OverAll();
  Socket first, second;
  Address bound;
  CHECK_EQ(Listen(testing::RendezvousHost(), 0, &first, &bound), testing::IsOk());
  CHECK_EQ(Listen(bound.host, bound.port, &second, &bound),
           testing::StatusIs(StatusCode::kFailedPrecondition, "cannot bind to " + bound.host));
  CHECK_EQ(Listen("localhost", 0, &second, &bound),
           testing::StatusIs(StatusCode::kInvalidArgument, "localhost"));
  CHECK_EQ(Listen(kUnixHost + std::string(200, 'x'), 0, &second, &bound),
           testing::StatusIs(StatusCode::kInvalidArgument, "too long"));
}

TEST_CASE("TheFirstFreePortIsTaken") {
  testing::OverAll();
  Socket sockets[4];
  Address bounds[4];
  CHECK_EQ(Listen("127.0.0.1", 0, &sockets[0], &bounds[0]), testing::IsOk());
  const uint16_t taken = bounds[0].port;
  CHECK_EQ(
      ListenWithin("127.0.0.1", taken, taken, &sockets[1], &bounds[1]),
      testing::StatusIs(StatusCode::kUnavailable, "no port from " + std::to_string(taken) + " to"));
  const uint16_t last = static_cast<uint16_t>(std::min(taken + 50, 65535));
  const uint16_t first = static_cast<uint16_t>(last - 50);
  for (int i = 1; i < 4; ++i) {
    CHECK_EQ(ListenWithin("127.0.0.1", first, last, &sockets[i], &bounds[i]), testing::IsOk());
    CHECK((first <= bounds[i].port && bounds[i].port <= last));
    for (int j = 0; j < i; ++j) CHECK(bounds[i].port != bounds[j].port);
  }
  CHECK_EQ(ListenWithin("127.0.0.1", 0, 0, &sockets[1], &bounds[1]), testing::IsOk());
  CHECK_EQ(ListenWithin("localhost", first, last, &sockets[1], &bounds[1]),
           testing::StatusIs(StatusCode::kInvalidArgument, "localhost"));
}

}  // namespace
}  // namespace tf_libra::socket_test
