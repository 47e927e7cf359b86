// Addresses at which ranks listen: TCP, and Unix sockets within a host.
#ifndef TF_LIBRA_OPS_LANES_ADDRESS_H_
#define TF_LIBRA_OPS_LANES_ADDRESS_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "ops/lanes/status.h"

namespace tf_libra {

// Where a rank can be reached. `host` is a numeric IPv4 or IPv6 address, or, for ranks of one host,
// kUnixHost followed by the name of a Unix socket in Linux's abstract namespace: no file, no port,
// and less CPU time per byte than TCP over loopback (docs/benchmarks.md).
struct Address {
  std::string host;
  uint16_t port = 0;
};
inline constexpr char kUnixHost[] = "unix:";
bool IsUnix(const std::string& host);

// The form of an address that system calls take.
struct Endpoint {
  union {
    sockaddr any;
    sockaddr_in ip;
    sockaddr_in6 ip6;
    sockaddr_un local;
  };
  socklen_t length = 0;
};

// InvalidArgument: the host is neither a numeric address nor a Unix socket.
Status ParseAddress(const Address& address, Endpoint* endpoint);
// The address of an endpoint that was bound at `host`.
Address FormatAddress(const Endpoint& endpoint, const std::string& host);
// "10.0.0.1:80", "[::1]:80" or "unix:NAME", as errors name it.
std::string AddressText(const Address& address);

// The IPv4 address of a network interface such as "eth0", or else its IPv6 address, though none
// that only its link knows.
Status InterfaceAddress(const std::string& name, std::string* host);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ADDRESS_H_
