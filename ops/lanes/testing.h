// Helpers for tests of the lanes: expectations of a status, and ranks that are threads of one
// process.
#ifndef TF_LIBRA_OPS_LANES_TESTING_H_
#define TF_LIBRA_OPS_LANES_TESTING_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"
#include "ops/testing/checks.h"

namespace tf_libra {

inline doctest::String toString(const Status& status) {
  return ("code " + std::to_string(static_cast<int>(status.code())) + ": " + status.message())
      .c_str();
}

namespace testing {

// Deadline of waits that must succeed, however slow the machine is.
constexpr double kGenerousSeconds = 60;
// Deadline of waits that must time out.
constexpr double kShortSeconds = 0.4;

// Expectation of a status: CHECK_EQ(status, StatusIs(code, "part of its message")).
struct StatusIs {
  StatusCode code;
  std::string part;
  StatusIs(StatusCode code, std::string part) : code(code), part(std::move(part)) {}
};

inline StatusIs IsOk() { return StatusIs(StatusCode::kOk, ""); }

inline bool operator==(const Status& status, const StatusIs& is) {
  return status.code() == is.code && status.message().find(is.part) != std::string::npos;
}

inline doctest::String toString(const StatusIs& is) {
  return ("code " + std::to_string(static_cast<int>(is.code)) + " with '" + is.part + "'").c_str();
}

// Address at which the ranks of the running test listen: loopback, or a Unix socket.
inline std::string& RendezvousHost() {
  static std::string host = "127.0.0.1";
  return host;
}

// Returns whether they then share memory, if they can.
inline bool& SharingMemory() {
  static bool sharing = false;
  return sharing;
}

// Calls `body(rank)` in a thread per rank and waits for all.
inline void OnEveryRank(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

inline void SetRendezvousHost(const char* host, bool sharing_memory) {
  RendezvousHost() = host;
  SharingMemory() = sharing_memory;
}

// The first thing that a test does which is to run over TCP, and again over Unix sockets.
inline void OverBoth() {
  SUBCASE("over TCP") { SetRendezvousHost("127.0.0.1", false); }
  SUBCASE("over Unix sockets") { SetRendezvousHost(kUnixHost, false); }
}

// And then through shared memory: what lanes carry.
inline void OverAll() {
  OverBoth();
  SUBCASE("in memory") { SetRendezvousHost(kUnixHost, true); }
}

// Listeners and options of `world_size` ranks at the RendezvousHost.
struct Meeting {
  std::vector<Socket> listeners;
  MeshOptions options;  // all but the rank

  Meeting(int world_size, int num_lanes, double timeout_seconds = kGenerousSeconds)
      : listeners(world_size) {
    options.addresses.resize(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      CHECK_EQ(Listen(RendezvousHost(), 0, &listeners[rank], &options.addresses[rank]),
               testing::IsOk());
    }
    options.secret.fill(0xce);
    options.num_lanes = num_lanes;
    options.share_memory = SharingMemory();
    options.timeout_seconds = timeout_seconds;
  }

  Status Connect(int rank, Mesh* mesh) {
    MeshOptions mine = options;
    mine.rank = rank;
    return ConnectMesh(mine, std::move(listeners[rank]), mesh);
  }
};

// The ends of all ranks' connections, [rank].
inline std::vector<Mesh> ConnectAll(int world_size, int num_lanes) {
  Meeting meeting(world_size, num_lanes);
  std::vector<Mesh> meshes(world_size);
  OnEveryRank(world_size,
              [&](int rank) { CHECK_EQ(meeting.Connect(rank, &meshes[rank]), testing::IsOk()); });
  return meshes;
}

// Whole buffers over a lane's connection, as a rank would move them that a test plays.
inline Status Move(const Connection& connection, RingEnd* end, bool sending, void* data,
                   size_t size) {
  const TimePoint deadline = After(kGenerousSeconds);
  if (end == nullptr) {
    return sending ? SendAll(connection.socket, data, size, deadline)
                   : ReceiveAll(connection.socket, data, size, deadline);
  }
  const int fd = connection.socket.fd();
  char* next = static_cast<char*>(data);
  bool closed = false;
  while (size > 0) {
    size_t there = 0;
    CHECK(end->Look(&there));
    if (const size_t count = std::min(there, size); count > 0) {
      std::memcpy(sending ? end->here() : next, sending ? next : end->here(), count);
      if (end->Advance(count)) send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      next += count;
      size -= count;
      continue;
    }
    if (closed) return Status(StatusCode::kUnavailable, "closed");
    end->Await(1);
    CHECK(end->Look(&there));
    if (there > 0) continue;
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, PollMilliseconds(deadline)) == 0) {
      return Status(StatusCode::kDeadlineExceeded, "silent");
    }
    char bytes[64];
    closed = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) == 0;
  }
  return Status();
}

// Headers and parts.
inline Status Send(const Connection& connection, const void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->outgoing_parts() : nullptr;
  return Move(connection, end, true, const_cast<void*>(data), size);
}

inline Status Receive(const Connection& connection, void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->incoming_parts() : nullptr;
  return Move(connection, end, false, data, size);
}

inline Status SendSum(const Connection& connection, const void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->outgoing_sums() : nullptr;
  return Move(connection, end, true, const_cast<void*>(data), size);
}

inline Status ReceiveSum(const Connection& connection, void* data, size_t size) {
  RingEnd* const end = connection.memory ? connection.memory->incoming_sums() : nullptr;
  return Move(connection, end, false, data, size);
}

// Open descriptors of this process.
inline int NumOpen() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

// Bytes over a Unix socket, with `count` descriptors of one file in one control message.
inline ssize_t SendWithFiles(const Socket& socket, const std::string& bytes, size_t count) {
  const Socket file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<int> files(count, file.fd());
  iovec run{const_cast<char*>(bytes.data()), bytes.size()};
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
  msghdr message{};
  message.msg_iov = &run;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(header), files.data(), count * sizeof(int));
  return sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// One exchange, and nothing of it is watched before or after.
inline ExchangeResult RunWatched(ExchangeOptions options, std::vector<char>* scratch) {
  std::unique_ptr<EpollSet> watch;
  ExchangeResult result;
  result.status = EpollSet::Make(*options.peers, options.names, options.links, &watch);
  if (!result.status.ok()) return result;
  options.watch = watch.get();
  return RunExchange(options, scratch);
}

// A header, as it stands on the wire or in the ring.
inline std::string HeaderBytes(const Connection& connection, const ExchangeHeader& header) {
  std::string bytes;
  if (connection.memory != nullptr) {
    bytes.resize(BytesToHeaderEnd(connection.memory->outgoing_parts()->position()));
    std::memcpy(&bytes[bytes.size() - kHeaderRoom], &header, sizeof(header));
  } else {
    bytes.assign(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  return bytes;
}

inline Status ReceiveHeader(const Connection& connection, ExchangeHeader* header) {
  if (connection.memory == nullptr) return Receive(connection, header, sizeof(*header));
  std::string bytes(BytesToHeaderEnd(connection.memory->incoming_parts()->position()), ' ');
  const Status status = Receive(connection, &bytes[0], bytes.size());
  std::memcpy(header, &bytes[bytes.size() - kHeaderRoom], sizeof(*header));
  return status;
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_TESTING_H_
