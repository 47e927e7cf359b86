// Stream sockets with deadlines: TCP between hosts, Unix sockets within one. Every wait ends with
// data, with an error, or at its deadline.
#ifndef TF_LIBRA_OPS_LANES_SOCKET_H_
#define TF_LIBRA_OPS_LANES_SOCKET_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "ops/lanes/address.h"
#include "ops/lanes/clock.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Owns a file descriptor. Connected sockets are non-blocking and send without delay.
// A process that is forked keeps none: its copies would hide from the peers that this one died.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Wakes the threads that wait on this socket, here and at the peer. Safe from any thread.
  void Shutdown();

 private:
  int fd_ = -1;
};

// Lets the kernel probe a TCP connection on which nothing is under way: if the other host, or what
// lies between, does not answer for so many seconds (whole ones, five at least), the connection
// breaks. A process that is slow, or stopped, is answered for by its kernel. No firewall sees a
// connection that is silent for long, and forgets it. (A connection with data under way is not
// probed in this way, and TCP_USER_TIMEOUT would also end connections to peers that are merely slow
// to read: so two hosts have links, which carry nothing.)
void EnableKeepalive(const Socket& idle, double liveness_seconds);

// Returns why a watched connection has broken; only the first call learns it.
std::string WhyLinkBroke(const Socket& idle);

// Returns whether the other end of a Unix socket belongs to this process's user; TCP has no users.
bool IsOfThisUser(const Socket& socket);

// Binds to `host` alone and listens; FailedPrecondition: another process listens there; port 0, or
// no name behind kUnixHost, lets the system choose. `bound` receives the address.
Status Listen(const std::string& host, uint16_t port, Socket* listener, Address* bound);
// Listens at the first free port from `first` to `last`. Unavailable: there is none.
Status ListenWithin(const std::string& host, uint16_t first, uint16_t last, Socket* listener,
                    Address* bound);

// FailedPrecondition: no process listens there; ResourceExhausted: no descriptor is to be had;
// Unavailable, DeadlineExceeded: it may be the network.
Status Connect(const Address& address, TimePoint deadline, Socket* socket);
// The same without waiting: unless it fails immediately, the socket becomes writable, or breaks.
Status BeginConnect(const Address& address, Socket* socket);
// Returns the failure of a connect that has failed; only the first call learns it.
Status ConnectFailure(const Address& address, const Socket& socket);

// Takes one waiting connection; leaves `socket` invalid if there is none.
Status Accept(const Socket& listener, Socket* socket);

// Whole buffers, or an error. Unavailable: the peer is gone; DeadlineExceeded: it is silent.
Status SendAll(const Socket& socket, const void* data, size_t size, TimePoint deadline);
Status ReceiveAll(const Socket& socket, void* data, size_t size, TimePoint deadline);

// Over a Unix socket, with a copy of a file's descriptor. So few bytes that they find room, or none
// are sent.
bool SendFile(const Socket& socket, const void* data, size_t size, const Socket& file);
// As recv(2), of what is there. `file`, which owns none before, becomes the owner of the first file
// that comes with it; others are closed.
ssize_t ReceiveFile(const Socket& socket, void* data, size_t size, Socket* file);

// "connection reset by peer" and the like, for the current errno.
std::string ErrnoText(int error);
// Returns true if an error of a call on such a socket only means that no bytes can move now.
bool WouldBlock(int error);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_SOCKET_H_
