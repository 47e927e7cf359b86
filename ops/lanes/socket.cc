#include "ops/lanes/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace tf_libra {
namespace {

Status SystemError(StatusCode code, const std::string& what) {
  return Status(code, what + ": " + ErrnoText(errno));
}

Status ParseAddress(const std::string& host, uint16_t port, sockaddr_in* address) {
  std::memset(address, 0, sizeof(*address));
  address->sin_family = AF_INET;
  address->sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address->sin_addr) != 1) {
    return Status(StatusCode::kInvalidArgument,
                  "address must be a numeric IPv4 address, got '" + host + "'");
  }
  return Status();
}

// Unacknowledged data and silence of a peer whose cable was pulled both end the connection; a
// peer that is merely slow answers its kernel's probes.
void ConfigureConnected(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const int idle_seconds = 10, interval_seconds = 5, probes = 4;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof(idle_seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof(interval_seconds));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

Status WaitFor(int fd, short events, TimePoint deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, PollMilliseconds(deadline));
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR) return SystemError(StatusCode::kUnavailable, "poll");
    if (ready == 0 && SecondsUntil(deadline) <= 0) {
      return Status(StatusCode::kDeadlineExceeded, "no answer before the deadline");
    }
  }
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.Release();
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

int Socket::Release() { return std::exchange(fd_, -1); }

void Socket::Shutdown() {
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

Status Listen(const std::string& host, uint16_t port, Socket* listener, Address* bound) {
  sockaddr_in address;
  if (Status status = ParseAddress(host, port, &address); !status.ok()) return status;
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError(StatusCode::kUnavailable, "socket");
  const std::string where = host + ":" + std::to_string(port);
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return SystemError(StatusCode::kUnavailable, "cannot bind to " + where);
  }
  if (listen(socket.fd(), SOMAXCONN) != 0) {
    return SystemError(StatusCode::kUnavailable, "cannot listen on " + where);
  }
  socklen_t length = sizeof(address);
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  bound->host = host;
  bound->port = ntohs(address.sin_port);
  *listener = std::move(socket);
  return Status();
}

Status Connect(const Address& address, TimePoint deadline, Socket* result) {
  sockaddr_in target;
  if (Status status = ParseAddress(address.host, address.port, &target); !status.ok()) {
    return status;
  }
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError(StatusCode::kUnavailable, "socket");
  const std::string what = "cannot connect to " + address.host + ":" + std::to_string(address.port);
  if (connect(socket.fd(), reinterpret_cast<sockaddr*>(&target), sizeof(target)) != 0) {
    if (errno != EINPROGRESS) return SystemError(StatusCode::kUnavailable, what);
    if (Status status = WaitFor(socket.fd(), POLLOUT, deadline); !status.ok()) {
      return Status(status.code(), what + ": " + status.message());
    }
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      errno = error;
      return SystemError(StatusCode::kUnavailable, what);
    }
  }
  ConfigureConnected(socket.fd());
  *result = std::move(socket);
  return Status();
}

Status Accept(const Socket& listener, Socket* socket) {
  const int fd = accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // A connection that was reset while it waited is the stranger's trouble, not ours.
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR) {
      *socket = Socket();
      return Status();
    }
    return SystemError(StatusCode::kUnavailable, "accept");
  }
  ConfigureConnected(fd);
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
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (Status status = WaitFor(socket.fd(), POLLOUT, deadline); !status.ok()) return status;
    } else if (sent < 0 && errno != EINTR) {
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
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (Status status = WaitFor(socket.fd(), POLLIN, deadline); !status.ok()) return status;
    } else if (errno != EINTR) {
      return Status(StatusCode::kUnavailable, ErrnoText(errno));
    }
  }
  return Status();
}

Status InterfaceAddress(const std::string& name, std::string* host) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return SystemError(StatusCode::kUnavailable, "getifaddrs");
  std::string known;
  bool found = false;
  for (const ifaddrs* entry = all; entry != nullptr && !found; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if (name == entry->ifa_name) {
      char text[INET_ADDRSTRLEN];
      const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
      inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
      *host = text;
      found = true;
    }
    known += (known.empty() ? "" : ", ") + std::string(entry->ifa_name);
  }
  freeifaddrs(all);
  if (found) return Status();
  return Status(StatusCode::kInvalidArgument,
                "no network interface '" + name + "' with an IPv4 address; there are: " + known);
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace tf_libra
