#include "ops/lanes/connector.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "ops/lanes/connect_polling.h"
#include "ops/lanes/connection_ids.h"
#include "ops/lanes/descriptors.h"
#include "ops/lanes/handshake.h"
#include "ops/lanes/shared_memory.h"
#include "ops/lanes/socket.h"

namespace tf_libra {
namespace {

// Ranks that one connects to at a time.
constexpr int kMaxConnecting = 8;
constexpr double kRetrySeconds = 0.05;

// Waits for any event on the socket; the caller finds out which one.
Status AwaitEvent(const MeshOptions& options, const Socket& socket, short event,
                  TimePoint deadline) {
  for (;;) {
    pollfd entry{socket.fd(), event, 0};
    const int ready = poll(&entry, 1, PollMilliseconds(NextLook(options, deadline)));
    if (ready > 0) return Status();
    if (ready < 0 && errno != EINTR) return OutOfDescriptors("poll", errno);
    if (Status status = Interrupted(options); !status.ok()) return status;
    if (SecondsUntil(deadline) <= 0) {
      return Status(StatusCode::kDeadlineExceeded, "no answer before the deadline");
    }
  }
}

// As ReceiveAll: a peer that falls silent halfway is waited for no longer than others are.
Status Receive(const MeshOptions& options, const Socket& socket, void* data, size_t size,
               TimePoint deadline) {
  char* next = static_cast<char*>(data);
  while (size > 0) {
    if (Status status = AwaitEvent(options, socket, POLLIN, deadline); !status.ok()) return status;
    const ssize_t received = recv(socket.fd(), next, size, MSG_DONTWAIT);
    if (received < 0 && WouldBlock(errno) && SecondsUntil(deadline) > 0) continue;
    if (received <= 0) {
      return Status(StatusCode::kUnavailable,
                    received == 0 ? "connection closed by the peer" : ErrnoText(errno));
    }
    next += received;
    size -= static_cast<size_t>(received);
  }
  return Status();
}

// The process that listens there is not the rank, and more time will not change that.
Status Impostor(int rank, const char* why) {
  return Status(StatusCode::kFailedPrecondition,
                "rank " + std::to_string(rank) + "'s port is held by another program" + why);
}

// One attempt to connect and to be welcome; see handshake.h. A certain failure, which a retry
// cannot change, is returned in `rejected`.
Status Call(const MeshOptions& options, int rank, int lane, TimePoint deadline,
            Connection* connection, Status* rejected, Status* unshared) {
  const Address& address = AddressOf(options, rank);
  Socket* const socket = &connection->socket;
  Status status = BeginConnect(address, socket);
  if (status.ok()) EnableKeepalive(*socket, options.liveness_seconds);
  if (status.ok()) status = AwaitEvent(options, *socket, POLLOUT, deadline);
  if (status.ok()) status = ConnectFailure(address, *socket);
  if (!status.ok()) return status;
  if (!IsOfThisUser(*socket)) return *rejected = Impostor(rank, ", of another user");
  Hello hello;
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.nonce = DrawNonce();
  hello.rank = options.rank;
  hello.lane = lane;
  hello.world_size = static_cast<int32_t>(options.addresses.size());
  hello.num_lanes = options.num_lanes;
  status = SendAll(*socket, &hello, sizeof(hello), deadline);
  Answer answer;
  if (status.ok()) status = Receive(options, *socket, answer.magic, sizeof(kMagic), deadline);
  if (!status.ok()) return status;
  if (std::memcmp(answer.magic, kMagic, sizeof(kMagic)) != 0) return *rejected = Impostor(rank, "");
  status = Receive(options, *socket, &answer.nonce, sizeof(answer) - sizeof(kMagic), deadline);
  if (!status.ok()) return status;
  if (!SameDigest(answer.proof, Proof(options.secret, Role::kCallee, hello, rank, answer.nonce))) {
    return *rejected = Impostor(rank, ", perhaps of another job");
  }
  const Digest proof = Proof(options.secret, Role::kCaller, hello, rank, answer.nonce);
  std::unique_ptr<SharedMemory> memory;
  Socket file;
  if (SharesMemory(options, lane, rank) && unshared->ok()) {
    *unshared = SharedMemory::Make(RingBytes(options), &memory, &file);
  }
  if (!file.valid() || !SendFile(*socket, proof.data(), proof.size(), file)) {
    status = SendAll(*socket, proof.data(), proof.size(), deadline);
  }
  uint8_t welcome;
  if (status.ok()) status = Receive(options, *socket, &welcome, sizeof(welcome), deadline);
  if (status.ok() && welcome == kWelcomeInMemory) connection->memory = std::move(memory);
  return status;
}

// The network may drop the first packet: try again until the deadline.
Status ConnectTo(const MeshOptions& options, int rank, int lane, TimePoint deadline,
                 Status* unshared, Mesh* mesh) {
  for (;;) {
    Connection connection;
    Status rejected;
    Status status = Call(options, rank, lane, deadline, &connection, &rejected, unshared);
    if (!rejected.ok()) return rejected;
    if (status.ok()) {
      Keep(options, lane, rank, std::move(connection), mesh);
      return Status();
    }
    if (Status interrupted = Interrupted(options); !interrupted.ok()) return interrupted;
    if (status.code() == StatusCode::kInvalidArgument ||
        status.code() == StatusCode::kResourceExhausted) {
      return status;  // stays wrong
    }
    if (status.code() == StatusCode::kFailedPrecondition) {
      return NobodyListens(options, rank, status);
    }
    if (SecondsUntil(deadline) <= kRetrySeconds) {
      std::ostringstream what;
      what << "rank " << options.rank << " cannot reach rank " << rank << " within "
           << options.timeout_seconds << " s: " << status.message();
      return Status(StatusCode::kDeadlineExceeded, what.str());
    }
    poll(nullptr, 0, static_cast<int>(kRetrySeconds * 1e3));
  }
}

}  // namespace

MeshConnector::MeshConnector(const MeshOptions& options, TimePoint deadline, Mesh* mesh)
    : options_(options), deadline_(deadline), mesh_(mesh) {
  options_.interrupted = [this, &options] {
    return stops_ ? Status(StatusCode::kUnavailable, "the ranks do not meet")
                  : Interrupted(options);
  };
}

MeshConnector::~MeshConnector() {
  stops_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void MeshConnector::Start() {
  const int num_threads = std::min(kMaxConnecting, options_.rank / 2);
  try {
    while (static_cast<int>(threads_.size()) < num_threads) {
      threads_.emplace_back([this] { Run(); });
    }
  } catch (const std::system_error&) {
  }
  if (threads_.empty()) Run();
}

Status MeshConnector::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return is_over(); });
  if (!unshared_.ok() && mesh_->unshared.ok()) mesh_->unshared = unshared_;
  return status_;
}

void MeshConnector::Run() noexcept {
  Status unshared;
  for (int rank = next_++; rank < options_.rank && !failed_ && !stops_; rank = next_++) {
    Status status;
    try {
      status = ConnectToRank(rank, &unshared);
    } catch (...) {
      status = CaughtStatus("a rank cannot be connected to");
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!unshared.ok()) unshared_ = unshared;
    if (status.ok()) {
      ++num_connected_;
    } else if (!failed_) {
      status_ = status;
      failed_ = true;
    }
    changed_.notify_all();
  }
}

Status MeshConnector::ConnectToRank(int rank, Status* unshared) {
  for (int lane = FirstConnection(options_); lane < options_.num_lanes; ++lane) {
    if (!Wants(options_, *mesh_, lane, rank)) continue;
    Status status = ConnectTo(options_, rank, lane, deadline_, unshared, mesh_);
    if (!status.ok()) return status;
  }
  return Status();
}

}  // namespace tf_libra
