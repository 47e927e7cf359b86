#include "ops/lanes/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "ops/lanes/descriptors.h"
#include "ops/lanes/forked_descriptors.h"

namespace tf_libra {
namespace {

std::string CannotConnect(const Address& address) {
  return "cannot connect to " + AddressText(address) + ": ";
}

// A full queue of waiting connections is another error (Unix), or none but silence (TCP).
Status ConnectError(const Address& address, int error) {
  return Status(error == ECONNREFUSED ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                CannotConnect(address) + ErrnoText(error));
}

int PendingError(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

void ConfigureConnected(int fd, sa_family_t family) {
  if (family == AF_UNIX) {
    // TCP's buffers grow by themselves, these do not; the system caps the requested size. Larger
    // ones mean fewer turns between the ranks.
    const int bytes = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Status WaitFor(int fd, short events, TimePoint deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, PollMilliseconds(deadline));
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR) return SystemError(StatusCode::kUnavailable, "poll");
    if (SecondsUntil(deadline) <= 0) {
      return Status(StatusCode::kDeadlineExceeded, "no answer before the deadline");
    }
  }
}

// Bytes, and room for one file with them. Alignment leaves room for a second one: the receiver
// closes what is not wanted.
struct MessageWithFile {
  MessageWithFile(void* data, size_t size) : run{data, size} {
    message.msg_iov = &run;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  MessageWithFile(const MessageWithFile&) = delete;
  MessageWithFile& operator=(const MessageWithFile&) = delete;

  iovec run;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
};

}  // namespace

Socket::Socket(int fd) : fd_(fd) { OwnDescriptor(fd); }

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (DisownDescriptor(fd_)) close(fd_);
}

bool IsOfThisUser(const Socket& socket) {
  sockaddr own{};
  socklen_t length = sizeof(own);
  if (getsockname(socket.fd(), &own, &length) != 0) return false;
  if (own.sa_family != AF_UNIX) return true;
  ucred peer{};
  length = sizeof(peer);
  return getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.uid == geteuid();
}

void Socket::Shutdown() {
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

void EnableKeepalive(const Socket& idle, double liveness_seconds) {
  // One wait before the first probe, and one behind each: a fifth of the time, but short ones,
  // since firewalls forget what is silent for minutes; and no more than the system has probes for.
  constexpr int kMostProbes = 127, kLongestWaitSeconds = 30;
  const int on = 1;
  const int seconds = std::max(5, static_cast<int>(std::min(liveness_seconds, 1e6)));
  const int interval_seconds = std::max(std::min(seconds / 5, kLongestWaitSeconds),
                                        (seconds + kMostProbes) / (kMostProbes + 1));
  const int probes = seconds / interval_seconds - 1;
  const int idle_seconds = seconds - probes * interval_seconds;
  setsockopt(idle.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(idle.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
  setsockopt(idle.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof(interval_seconds));
  setsockopt(idle.fd(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

std::string WhyLinkBroke(const Socket& idle) {
  const int error = PendingError(idle);
  return error == 0 ? "the link to it is broken" : ErrnoText(error);
}

Status Listen(const std::string& host, uint16_t port, Socket* listener, Address* bound) {
  Endpoint endpoint;
  if (Status status = ParseAddress({host, port}, &endpoint); !status.ok()) return status;
  Socket socket(::socket(endpoint.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError(StatusCode::kUnavailable, "socket");
  const std::string where = AddressText({host, port});
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto failure = [&where](const char* what) {
    const bool taken = errno == EADDRINUSE;
    return SystemError(taken ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                       what + where);
  };
  if (bind(socket.fd(), &endpoint.any, endpoint.length) != 0) return failure("cannot bind to ");
  // If two sockets are bound to one port, the second one to listen fails.
  if (listen(socket.fd(), SOMAXCONN) != 0) return failure("cannot listen on ");
  endpoint.length = sizeof(endpoint);
  getsockname(socket.fd(), &endpoint.any, &endpoint.length);
  *bound = FormatAddress(endpoint, host);
  *listener = std::move(socket);
  return Status();
}

Status ListenWithin(const std::string& host, uint16_t first, uint16_t last, Socket* listener,
                    Address* bound) {
  for (int port = first; port <= last; ++port) {
    const Status status = Listen(host, static_cast<uint16_t>(port), listener, bound);
    if (status.code() != StatusCode::kFailedPrecondition) return status;
  }
  return Status(StatusCode::kUnavailable, "no port from " + std::to_string(first) + " to " +
                                              std::to_string(last) + " is free on " + host);
}

Status BeginConnect(const Address& address, Socket* result) {
  Endpoint target;
  if (Status status = ParseAddress(address, &target); !status.ok()) return status;
  Socket socket(::socket(target.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError(StatusCode::kUnavailable, "socket");
  ConfigureConnected(socket.fd(), target.any.sa_family);
  if (connect(socket.fd(), &target.any, target.length) != 0 && errno != EINPROGRESS) {
    return ConnectError(address, errno);
  }
  *result = std::move(socket);
  return Status();
}

Status ConnectFailure(const Address& address, const Socket& socket) {
  const int error = PendingError(socket);
  return error == 0 ? Status() : ConnectError(address, error);
}

Status Connect(const Address& address, TimePoint deadline, Socket* result) {
  Socket socket;
  if (Status status = BeginConnect(address, &socket); !status.ok()) return status;
  if (Status status = WaitFor(socket.fd(), POLLOUT, deadline); !status.ok()) {
    return Status(status.code(), CannotConnect(address) + status.message());
  }
  if (Status status = ConnectFailure(address, socket); !status.ok()) return status;
  *result = std::move(socket);
  return Status();
}

Status Accept(const Socket& listener, Socket* socket) {
  Endpoint peer;
  peer.length = sizeof(peer);
  const int fd = accept4(listener.fd(), &peer.any, &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // A connection that was reset while it waited, or whose network has failed since (Linux reports
    // that here), is the stranger's trouble, not ours.
    constexpr int kOfStranger[] = {ECONNABORTED, ENETDOWN,     EPROTO,      ENOPROTOOPT, EHOSTDOWN,
                                   ENONET,       EHOSTUNREACH, ENETUNREACH, EOPNOTSUPP,  EPERM};
    if (WouldBlock(errno) ||
        std::find(std::begin(kOfStranger), std::end(kOfStranger), errno) != std::end(kOfStranger)) {
      *socket = Socket();
      return Status();
    }
    return SystemError(StatusCode::kUnavailable, "accept");
  }
  ConfigureConnected(fd, peer.any.sa_family);
  *socket = Socket(fd);
  return Status();
}

Status SendAll(const Socket& socket, const void* data, size_t size, TimePoint deadline) {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(socket.fd(), next, size, MSG_NOSIGNAL);
    if (sent > 0) {
      next += sent;
      size -= static_cast<size_t>(sent);
    } else if (sent < 0 && WouldBlock(errno)) {
      if (Status status = WaitFor(socket.fd(), POLLOUT, deadline); !status.ok()) return status;
    } else if (sent < 0) {
      return Status(StatusCode::kUnavailable, ErrnoText(errno));
    }
  }
  return Status();
}

Status ReceiveAll(const Socket& socket, void* data, size_t size, TimePoint deadline) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t received = recv(socket.fd(), next, size, 0);
    if (received > 0) {
      next += received;
      size -= static_cast<size_t>(received);
    } else if (received == 0) {
      return Status(StatusCode::kUnavailable, "connection closed by the peer");
    } else if (WouldBlock(errno)) {
      if (Status status = WaitFor(socket.fd(), POLLIN, deadline); !status.ok()) return status;
    } else {
      return Status(StatusCode::kUnavailable, ErrnoText(errno));
    }
  }
  return Status();
}

bool SendFile(const Socket& socket, const void* data, size_t size, const Socket& file) {
  MessageWithFile with_file(const_cast<void*>(data), size);
  msghdr& message = with_file.message;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = file.fd();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

ssize_t ReceiveFile(const Socket& socket, void* data, size_t size, Socket* file) {
  MessageWithFile with_file(data, size);
  msghdr& message = with_file.message;
  const ssize_t received = recvmsg(socket.fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len < CMSG_LEN(sizeof(int))) {
      continue;
    }
    // All of them are open in this process by now.
    const size_t num_files = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < num_files; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
      Socket received_file(fd);
      if (!file->valid()) *file = std::move(received_file);
    }
  }
  return received;
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace tf_libra
