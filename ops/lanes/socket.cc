#include "ops/lanes/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "ops/lanes/descriptors.h"

namespace tf_libra {
namespace {

Status SystemError(StatusCode code, const std::string& what) {
  const int error = errno;
  if (IsOutOfDescriptors(error)) return OutOfDescriptors(what, error);
  return Status(code, what + ": " + ErrnoText(error));
}

// Address as the system calls take it.
struct Endpoint {
  union {
    sockaddr any;
    sockaddr_in ip;
    sockaddr_in6 ip6;
    sockaddr_un local;
  };
  socklen_t length = 0;
};

// The descriptors that Sockets own, a bit for each: what a forked child closes. No locks, since
// another thread may hold them when a process forks. Pages beyond the first are made when a number
// is as high, and stay.
constexpr int kPageDescriptors = 1 << 12;
struct Page {
  std::atomic<uint64_t> words[kPageDescriptors / 64];
};
Page first_page;
std::atomic<Page*> more_pages[std::numeric_limits<int>::max() / kPageDescriptors];
std::atomic<int> num_pages{1};

// Null: there is none, as without memory for it.
Page* PageOf(int fd) {
  const int number = fd / kPageDescriptors;
  return number == 0 ? &first_page : more_pages[number - 1].load();
}

Page* MakePageOf(int fd) {
  if (Page* const known = PageOf(fd)) return known;
  const int number = fd / kPageDescriptors;
  Page* const made = new (std::nothrow) Page();
  Page* known = nullptr;
  if (!more_pages[number - 1].compare_exchange_strong(known, made)) {
    delete made;
    return known;
  }
  int most = num_pages;
  while (most <= number && !num_pages.compare_exchange_weak(most, number + 1)) {
  }
  return made;
}

void Own(int fd) {
  if (fd < 0) return;
  Page* const page = MakePageOf(fd);
  if (page != nullptr) page->words[fd % kPageDescriptors / 64] |= uint64_t{1} << (fd % 64);
}

// Whether it was owned: in a forked child the number may belong to another file by now.
bool Disown(int fd) {
  Page* const page = fd < 0 ? nullptr : PageOf(fd);
  if (page == nullptr) return fd >= 0;
  const uint64_t bit = uint64_t{1} << (fd % 64);
  return (page->words[fd % kPageDescriptors / 64].fetch_and(~bit) & bit) != 0;
}

void CloseAllInForkedChild() {
  for (int number = 0; number < num_pages; ++number) {
    const int first = number * kPageDescriptors;
    const Page* const page = PageOf(first);
    if (page == nullptr) continue;
    for (int at = 0; at < kPageDescriptors; ++at) {
      if (at % 64 == 0 && page->words[at / 64] == 0) {
        at += 63;
      } else if (Disown(first + at)) {
        close(first + at);
      }
    }
  }
}

Status ParseAddress(const Address& address, Endpoint* endpoint) {
  std::memset(static_cast<void*>(endpoint), 0, sizeof(*endpoint));
  if (IsUnix(address.host)) {
    const std::string name = address.host.substr(sizeof(kUnixHost) - 1);
    if (name.size() + 1 > sizeof(endpoint->local.sun_path)) {
      return Status(StatusCode::kInvalidArgument, "name of a Unix socket is too long: " + name);
    }
    endpoint->local.sun_family = AF_UNIX;
    endpoint->length = sizeof(sa_family_t);  // no name: the system chooses one
    if (!name.empty()) {
      // An abstract name begins with a zero byte and does not end with one.
      std::memcpy(endpoint->local.sun_path + 1, name.data(), name.size());
      endpoint->length += static_cast<socklen_t>(name.size() + 1);
    }
    return Status();
  }
  if (inet_pton(AF_INET, address.host.c_str(), &endpoint->ip.sin_addr) == 1) {
    endpoint->ip.sin_family = AF_INET;
    endpoint->ip.sin_port = htons(address.port);
    endpoint->length = sizeof(endpoint->ip);
    return Status();
  }
  if (inet_pton(AF_INET6, address.host.c_str(), &endpoint->ip6.sin6_addr) == 1) {
    endpoint->ip6.sin6_family = AF_INET6;
    endpoint->ip6.sin6_port = htons(address.port);
    endpoint->length = sizeof(endpoint->ip6);
    return Status();
  }
  return Status(StatusCode::kInvalidArgument,
                "address must be a numeric IPv4 or IPv6 address, got '" + address.host + "'");
}

Address FormatAddress(const Endpoint& endpoint, const std::string& host) {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  if (!IsUnix(host)) return {host, ntohs(endpoint.ip.sin_port)};
  const size_t length = endpoint.length - sizeof(sa_family_t) - 1;
  return {kUnixHost + std::string(endpoint.local.sun_path + 1, length), 0};
}

std::string Text(const Address& address) {
  if (IsUnix(address.host)) return address.host;
  const bool has_colons = address.host.find(':') != std::string::npos;  // as IPv6 has
  const std::string host = has_colons ? "[" + address.host + "]" : address.host;
  return host + ":" + std::to_string(address.port);
}

std::string CannotConnect(const Address& address) {
  return "cannot connect to " + Text(address) + ": ";
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

bool IsUnix(const std::string& host) { return host.rfind(kUnixHost, 0) == 0; }

Socket::Socket(int fd) : fd_(fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, CloseAllInForkedChild);
  static_cast<void>(registered);
  Own(fd);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (Disown(fd_)) close(fd_);
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
  const std::string where = Text({host, port});
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const auto failure = [&where](const char* what) {
    const bool taken = errno == EADDRINUSE;
    return SystemError(taken ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable,
                       what + where);
  };
  if (bind(socket.fd(), &endpoint.any, endpoint.length) != 0) return failure("cannot bind to ");
  // Of two that are bound to one port, the second to listen fails.
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

Status InterfaceAddress(const std::string& name, std::string* host) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return SystemError(StatusCode::kUnavailable, "getifaddrs");
  std::string known, ip, ip6;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const sa_family_t family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char text[INET6_ADDRSTRLEN];
    const void* address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (family == AF_INET6) {
      const auto* found = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      // It means nothing without the interface, which has another name on another host.
      if (IN6_IS_ADDR_LINKLOCAL(&found->sin6_addr)) continue;
      address = &found->sin6_addr;
    }
    inet_ntop(family, address, text, sizeof(text));
    std::string& first = family == AF_INET ? ip : ip6;
    if (name == entry->ifa_name && first.empty()) first = text;
    known += (known.empty() ? "" : ", ") + std::string(entry->ifa_name) + " (" + text + ")";
  }
  freeifaddrs(all);
  *host = ip.empty() ? ip6 : ip;
  if (!host->empty()) return Status();
  return Status(StatusCode::kInvalidArgument,
                "no network interface '" + name +
                    "' with an address that other hosts could reach; there are: " + known);
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

std::string ErrnoText(int error) { return std::generic_category().message(error); }

}  // namespace tf_libra
