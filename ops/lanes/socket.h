// Stream sockets with deadlines: TCP between hosts, Unix sockets within one. Every wait ends: with
// data, with an error, or at its deadline.
#ifndef TF_LIBRA_OPS_LANES_SOCKET_H_
#define TF_LIBRA_OPS_LANES_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "ops/lanes/clock.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Owns a file descriptor. Connected sockets are non-blocking and send without delay.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.Release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  // Wakes whoever waits on this socket, here and at the peer. Safe from any thread.
  void Shutdown();

 private:
  int fd_ = -1;
};

// Where a rank can be reached. `host` is a numeric IPv4 address, or, for ranks of one host,
// kUnixHost followed by the name of a Unix socket in Linux's abstract namespace: no file, no port,
// and less CPU time per byte than TCP over loopback (docs/benchmarks.md).
struct Address {
  std::string host;
  uint16_t port = 0;
};
inline constexpr char kUnixHost[] = "unix:";

// Binds to `host` alone and listens; port 0, or no name behind kUnixHost, lets the system choose.
// `bound` receives the address.
Status Listen(const std::string& host, uint16_t port, Socket* listener, Address* bound);

Status Connect(const Address& address, TimePoint deadline, Socket* socket);

// Takes one waiting connection; leaves `socket` invalid if there is none.
Status Accept(const Socket& listener, Socket* socket);

// Whole buffers, or an error. Unavailable: the peer is gone; DeadlineExceeded: it is silent.
Status SendAll(const Socket& socket, const void* data, size_t size, TimePoint deadline);
Status ReceiveAll(const Socket& socket, void* data, size_t size, TimePoint deadline);

// The IPv4 address of a network interface such as "eth0".
Status InterfaceAddress(const std::string& name, std::string* host);

// "connection reset by peer" and the like, for the current errno.
std::string ErrnoText(int error);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_SOCKET_H_
