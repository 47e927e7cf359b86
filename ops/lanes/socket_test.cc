#include "ops/lanes/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

int SocketOption(const Socket& socket, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  CHECK_EQ(getsockopt(socket.fd(), level, name, &value, &length), 0);
  return value;
}

// From its last answer until a link counts as broken, as the kernel has it.
void LinksAreProbedAsOftenAsIsAsked() {
  Socket listener, idle;
  Address bound;
  CHECK_OK(Listen("127.0.0.1", 0, &listener, &bound));
  CHECK_OK(Connect(bound, After(5), &idle));
  for (const int seconds : {5, 7, 10, 13, 60, 3600}) {
    WatchLink(idle, seconds);
    CHECK_EQ(SocketOption(idle, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int probes = SocketOption(idle, IPPROTO_TCP, TCP_KEEPCNT);
    const int interval = SocketOption(idle, IPPROTO_TCP, TCP_KEEPINTVL);
    CHECK_EQ(SocketOption(idle, IPPROTO_TCP, TCP_KEEPIDLE) + probes * interval, seconds);
  }
}

void AddressInUse() {
  Socket first, second;
  Address bound;
  CHECK_OK(Listen(testing::MeetingPlace(), 0, &first, &bound));
  CHECK_STATUS(Listen(bound.host, bound.port, &second, &bound), StatusCode::kFailedPrecondition,
               "cannot bind to " + bound.host);
  CHECK_STATUS(Listen("localhost", 0, &second, &bound), StatusCode::kInvalidArgument, "localhost");
  CHECK_STATUS(Listen(kUnixHost + std::string(200, 'x'), 0, &second, &bound),
               StatusCode::kInvalidArgument, "too long");
}

void TheFirstFreePortIsTaken() {
  Socket sockets[4];
  Address bounds[4];
  CHECK_OK(Listen("127.0.0.1", 0, &sockets[0], &bounds[0]));
  const uint16_t taken = bounds[0].port;
  CHECK_STATUS(ListenWithin("127.0.0.1", taken, taken, &sockets[1], &bounds[1]),
               StatusCode::kUnavailable, "no port from " + std::to_string(taken) + " to");
  const uint16_t last = static_cast<uint16_t>(std::min(taken + 50, 65535));
  const uint16_t first = static_cast<uint16_t>(last - 50);
  for (int i = 1; i < 4; ++i) {
    CHECK_OK(ListenWithin("127.0.0.1", first, last, &sockets[i], &bounds[i]));
    CHECK_TRUE(first <= bounds[i].port && bounds[i].port <= last);
    for (int j = 0; j < i; ++j) CHECK_TRUE(bounds[i].port != bounds[j].port);
  }
  CHECK_OK(ListenWithin("127.0.0.1", 0, 0, &sockets[1], &bounds[1]));
  CHECK_STATUS(ListenWithin("localhost", first, last, &sockets[1], &bounds[1]),
               StatusCode::kInvalidArgument, "localhost");
}

void InterfaceAddresses() {
  std::string host;
  CHECK_OK(InterfaceAddress("lo", &host));
  CHECK_EQ(host, "127.0.0.1");
  const Status status = InterfaceAddress("no-such-interface", &host);
  CHECK_STATUS(status, StatusCode::kInvalidArgument, "'no-such-interface'");
  CHECK_CONTAINS(status.message(), "lo");
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  using namespace tf_libra;
  return testing::RunTestsOverAll(
      {{"LinksAreProbedAsOftenAsIsAsked", LinksAreProbedAsOftenAsIsAsked},
       {"AddressInUse", AddressInUse},
       {"TheFirstFreePortIsTaken", TheFirstFreePortIsTaken},
       {"InterfaceAddresses", InterfaceAddresses}},
      argc, argv);
}
