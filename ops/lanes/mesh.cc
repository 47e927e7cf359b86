#include "ops/lanes/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "ops/lanes/descriptors.h"

namespace tf_libra {
namespace {

constexpr int32_t kLink = -3;
constexpr int32_t kMessages = -2;
constexpr int32_t kControlLane = -1;
constexpr double kStrangerSeconds = 5;
constexpr size_t kMaxPendingStrangers = 256;
constexpr double kRetrySeconds = 0.05;
// Usually all ranks have met before anybody looks after the others.
constexpr double kLookSeconds = 1;

// The first of the numbers that connections between two ranks have; the last is num_lanes - 1.
// Within one host there is no cable that could be pulled.
int FirstConnection(const MeshOptions& options) {
  if (options.first_lane > 0) return options.first_lane;
  return IsUnix(options.addresses[options.rank].host) ? kMessages : kLink;
}

// Of the connections that are no lanes.
std::vector<Socket>* Sockets(int lane, Mesh* mesh) {
  if (lane == kLink) return &mesh->links;
  return lane == kMessages ? &mesh->messages : &mesh->control;
}

void Keep(const MeshOptions& options, int lane, int rank, Connection connection, Mesh* mesh) {
  if (lane < 0) {
    (*Sockets(lane, mesh))[rank] = std::move(connection.socket);
  } else {
    mesh->lanes[lane - options.first_lane][rank] = std::move(connection);
  }
}

bool Has(const MeshOptions& options, int lane, int rank, Mesh* mesh) {
  if (lane < 0) return (*Sockets(lane, mesh))[rank].valid();
  return mesh->lanes[lane - options.first_lane][rank].valid();
}

bool SharesMemory(const MeshOptions& options, int lane) {
  return options.share_memory && lane >= 0 && IsUnix(options.addresses[options.rank].host);
}

// Of each ring of a connection: the same on both of its sides. Large enough that a rank seldom
// waits for another one; all those of a rank together stay within a few times the processor's
// second cache, but for many ranks and lanes.
size_t RingBytes(const MeshOptions& options) {
  constexpr size_t kMostBytes = 1 << 20, kLeastBytes = 64 << 10, kTogether = 8 << 20;
  const size_t num_peers = options.addresses.size() - 1;
  size_t bytes = kMostBytes;
  while (bytes > kLeastBytes &&
         (bytes * num_peers > kMostBytes || bytes * num_peers * options.num_lanes > kTogether)) {
    bytes /= 2;
  }
  return bytes;
}

Status Interrupted(const MeshOptions& options) {
  return options.interrupted ? options.interrupted() : Status();
}

// When to look again at what goes on beside a wait.
TimePoint NextLook(const MeshOptions& options, TimePoint deadline) {
  return options.interrupted ? std::min(deadline, After(kLookSeconds)) : deadline;
}

// Until something happens on the socket, which those who use it then find out.
Status AwaitEvent(const MeshOptions& options, const Socket& socket, short event,
                  TimePoint deadline) {
  for (;;) {
    pollfd entry{socket.fd(), event, 0};
    const int ready = poll(&entry, 1, PollMilliseconds(NextLook(options, deadline)));
    if (ready > 0) return Status();
    if (Status status = Interrupted(options); !status.ok()) return status;
    if (ready == 0 && SecondsUntil(deadline) <= 0) {
      return Status(StatusCode::kDeadlineExceeded, "no answer before the deadline");
    }
  }
}

// All ranks have listened, but some may be out of reach: on an interface whose address is the same
// on every host, or behind a firewall that rejects.
Status NobodyListens(const MeshOptions& options, int rank, const Status& status) {
  std::ostringstream what;
  what << "rank " << options.rank << ", while ranks connect: nobody listens for rank " << rank
       << " any more: it has ended or given up, or its address is not reachable from here ("
       << status.message() << ")";
  return Status(StatusCode::kUnavailable, what.str());
}

// Whoever listens there is not the rank, and more time will not mend it.
Status Impostor(int rank, const char* why) {
  return Status(StatusCode::kFailedPrecondition,
                "rank " + std::to_string(rank) + "'s port is held by another program" + why);
}

// One attempt to connect and to be welcome; see handshake.h. What is certain, and not to be tried
// again, is `refused`.
Status Call(const MeshOptions& options, int rank, int lane, TimePoint deadline,
            Connection* connection, Status* refused, Status* unshared) {
  const Address& address = options.addresses[rank];
  Socket* const socket = &connection->socket;
  Status status = BeginConnect(address, socket);
  if (status.ok()) status = AwaitEvent(options, *socket, POLLOUT, deadline);
  if (status.ok()) status = ConnectFailure(address, *socket);
  if (!status.ok()) return status;
  if (!IsOfThisUser(*socket)) return *refused = Impostor(rank, ", of another user");
  Hello hello;
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.nonce = DrawNonce();
  hello.rank = options.rank;
  hello.lane = lane;
  hello.world_size = static_cast<int32_t>(options.addresses.size());
  hello.num_lanes = options.num_lanes;
  status = SendAll(*socket, &hello, sizeof(hello), deadline);
  if (status.ok()) status = AwaitEvent(options, *socket, POLLIN, deadline);
  Answer answer;
  if (status.ok()) status = ReceiveAll(*socket, answer.magic, sizeof(kMagic), deadline);
  if (!status.ok()) return status;
  if (std::memcmp(answer.magic, kMagic, sizeof(kMagic)) != 0) return *refused = Impostor(rank, "");
  status = ReceiveAll(*socket, &answer.nonce, sizeof(answer) - sizeof(kMagic), deadline);
  if (!status.ok()) return status;
  if (!SameDigest(answer.proof, Proof(options.secret, Role::kCallee, hello, rank, answer.nonce))) {
    return *refused = Impostor(rank, ", perhaps of another job");
  }
  const Digest proof = Proof(options.secret, Role::kCaller, hello, rank, answer.nonce);
  std::unique_ptr<SharedMemory> memory;
  Socket file;
  if (SharesMemory(options, lane) && unshared->ok()) {
    *unshared = SharedMemory::Make(RingBytes(options), &memory, &file);
  }
  if (!file.valid() || !SendFile(*socket, proof.data(), proof.size(), file)) {
    status = SendAll(*socket, proof.data(), proof.size(), deadline);
  }
  if (status.ok()) status = AwaitEvent(options, *socket, POLLIN, deadline);
  uint8_t welcome;
  if (status.ok()) status = ReceiveAll(*socket, &welcome, sizeof(welcome), deadline);
  if (status.ok() && welcome == kWelcomeInMemory) connection->memory = std::move(memory);
  return status;
}

// The network may drop the first packet: try again until the deadline.
Status ConnectTo(const MeshOptions& options, int rank, int lane, TimePoint deadline, Mesh* mesh) {
  for (;;) {
    Connection connection;
    Status refused;
    Status status = Call(options, rank, lane, deadline, &connection, &refused, &mesh->unshared);
    if (!refused.ok()) return refused;
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

// A connection that has not yet shown who it is.
struct Pending {
  Socket socket;
  std::unique_ptr<SharedMemory> memory;
  TimePoint deadline = After(kStrangerSeconds);
  Hello hello;
  Nonce nonce;
  Digest proof;
  size_t received = 0;  // of hello and proof together
};

bool Fits(const MeshOptions& options, const Hello& hello) {
  const int world_size = static_cast<int>(options.addresses.size());
  return std::memcmp(hello.magic, kMagic, sizeof(kMagic)) == 0 && hello.world_size == world_size &&
         hello.num_lanes == options.num_lanes && hello.rank > options.rank &&
         hello.rank < world_size && hello.lane >= FirstConnection(options) &&
         hello.lane < options.num_lanes;
}

// So few bytes always find room: nobody is waited for.
bool SendNow(const Socket& socket, const void* data, size_t size) {
  return send(socket.fd(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

bool SendAnswer(const MeshOptions& options, Pending* pending) {
  Answer answer;
  std::memcpy(answer.magic, kMagic, sizeof(kMagic));
  answer.nonce = pending->nonce = DrawNonce();
  answer.proof = Proof(options.secret, Role::kCallee, pending->hello, options.rank, answer.nonce);
  return SendNow(pending->socket, &answer, sizeof(answer));
}

enum class Hearing { kGoesOn, kWelcome, kDropped };

// Whoever has proven to know the secret, and what it has passed along. Whether it is welcome now.
bool Welcome(const MeshOptions& options, const Socket& file, Pending* pending, Status* unshared) {
  if (file.valid() && SharesMemory(options, pending->hello.lane) && unshared->ok()) {
    *unshared = SharedMemory::Take(file, RingBytes(options), &pending->memory);
  }
  const uint8_t welcome = pending->memory != nullptr ? kWelcomeInMemory : kWelcome;
  return SendNow(pending->socket, &welcome, sizeof(welcome));
}

// Reads what is there, and answers.
Hearing Hear(const MeshOptions& options, Pending* pending, Status* unshared) {
  const bool in_hello = pending->received < sizeof(Hello);
  const size_t at = in_hello ? pending->received : pending->received - sizeof(Hello);
  char* const bytes = in_hello ? reinterpret_cast<char*>(&pending->hello)
                               : reinterpret_cast<char*>(pending->proof.data());
  const size_t size = in_hello ? sizeof(Hello) : pending->proof.size();
  Socket file;  // comes with the last bytes
  const ssize_t received = ReceiveFile(pending->socket, bytes + at, size - at, &file);
  if (received <= 0) {
    const bool later = received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    return later ? Hearing::kGoesOn : Hearing::kDropped;
  }
  pending->received += static_cast<size_t>(received);
  if (at + static_cast<size_t>(received) < size) return Hearing::kGoesOn;
  if (in_hello) {
    const bool answered = Fits(options, pending->hello) && SendAnswer(options, pending);
    return answered ? Hearing::kGoesOn : Hearing::kDropped;
  }
  const Digest expected =
      Proof(options.secret, Role::kCaller, pending->hello, options.rank, pending->nonce);
  const bool welcome =
      SameDigest(pending->proof, expected) && Welcome(options, file, pending, unshared);
  return welcome ? Hearing::kWelcome : Hearing::kDropped;
}

std::vector<int> MissingRanks(const MeshOptions& options, Mesh* mesh) {
  std::vector<int> missing;
  for (int rank = options.rank + 1; rank < mesh->world_size; ++rank) {
    bool complete = true;
    for (int lane = FirstConnection(options); lane < options.num_lanes; ++lane) {
      complete = complete && Has(options, lane, rank, mesh);
    }
    if (!complete) missing.push_back(rank);
  }
  return missing;
}

std::string Join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// A connection to the listener of a rank that has not met everybody, which therefore still listens.
// It breaks when that process ends. Nothing is said on it, so the rank, if it lives, takes it for a
// stranger's and may drop it, too: whether somebody still listens is what tells the two apart.
struct Watched {
  Socket socket;  // none before, and after it broke
  TimePoint due = After(kLookSeconds);
};

// Never waits. FailedPrecondition: nobody listens for the rank any more.
Status Look(const Address& address, Watched* watched) {
  Status status;
  if (watched->socket.valid()) {
    pollfd entry{watched->socket.fd(), POLLIN, 0};
    if (poll(&entry, 1, 0) <= 0) return Status();  // it stands, or is on its way
    status = ConnectFailure(address, watched->socket);
    *watched = Watched();
  } else if (SecondsUntil(watched->due) <= 0) {
    status = BeginConnect(address, &watched->socket);
    watched->due = After(kLookSeconds);
  }
  return status.code() == StatusCode::kFailedPrecondition ? status : Status();
}

Status AcceptHigherRanks(const MeshOptions& options, const Socket& listener, TimePoint deadline,
                         Mesh* mesh) {
  std::vector<Pending> pending;
  std::vector<Watched> watched(mesh->world_size);
  for (;;) {
    const std::vector<int> missing = MissingRanks(options, mesh);
    if (missing.empty()) return Status();
    if (Status status = Interrupted(options); !status.ok()) return status;
    std::vector<pollfd> entries;
    TimePoint wake = NextLook(options, deadline);
    entries.push_back({listener.fd(), POLLIN, 0});
    for (const Pending& one : pending) {
      entries.push_back({one.socket.fd(), POLLIN, 0});
      wake = std::min(wake, one.deadline);
    }
    for (const int rank : missing) {
      Watched& one = watched[rank];
      Status status = Look(options.addresses[rank], &one);
      if (!status.ok()) return NobodyListens(options, rank, status);
      entries.push_back({one.socket.fd(), POLLIN, 0});
      if (!one.socket.valid()) wake = std::min(wake, one.due);
    }
    poll(entries.data(), entries.size(), PollMilliseconds(wake));
    if (SecondsUntil(deadline) <= 0) {
      std::ostringstream what;
      what << "rank " << options.rank << " waited " << options.timeout_seconds << " s for rank(s) "
           << Join(missing) << " to connect";
      return Status(StatusCode::kDeadlineExceeded, what.str());
    }
    std::vector<Pending> still_pending;
    for (size_t i = 0; i < pending.size(); ++i) {
      Pending& one = pending[i];
      const Hearing heard =
          entries[i + 1].revents != 0 ? Hear(options, &one, &mesh->unshared) : Hearing::kGoesOn;
      if (heard == Hearing::kGoesOn && SecondsUntil(one.deadline) > 0) {
        still_pending.push_back(std::move(one));
      } else if (heard == Hearing::kWelcome) {
        // Perhaps the same rank and lane again: its first attempt broke off on the way.
        Keep(options, one.hello.lane, one.hello.rank,
             {std::move(one.socket), std::move(one.memory)}, mesh);
      }
    }
    pending = std::move(still_pending);
    if (entries[0].revents != 0) {
      Socket socket;
      Status status = Accept(listener, &socket);
      if (status.code() == StatusCode::kResourceExhausted && !pending.empty()) {
        pending.erase(pending.begin());  // a stranger's may be had
      } else if (!status.ok()) {
        return status;
      }
      if (socket.valid() && IsOfThisUser(socket)) {
        Pending one;
        one.socket = std::move(socket);
        // A rank speaks as soon as it is connected: the longest silent is the least likely one.
        if (pending.size() == kMaxPendingStrangers) pending.erase(pending.begin());
        pending.push_back(std::move(one));
      }
    }
  }
}

}  // namespace

Status ConnectMesh(const MeshOptions& options, Socket listener, Mesh* mesh) {
  const TimePoint deadline = After(options.timeout_seconds);
  const int world_size = static_cast<int>(options.addresses.size());
  const int to_each = options.num_lanes - FirstConnection(options);
  std::ostringstream what;
  what << "rank " << options.rank << ", to connect to " << world_size - 1 << " other rank(s) by "
       << to_each << " connections each,";
  if (Status status = ReserveDescriptors((world_size - 1) * to_each, what.str()); !status.ok()) {
    return status;
  }
  Mesh result;
  result.rank = options.rank;
  result.world_size = world_size;
  result.control.resize(result.world_size);
  result.messages.resize(result.world_size);
  result.links.resize(result.world_size);
  result.lanes.resize(options.num_lanes - options.first_lane);
  for (auto& lane : result.lanes) lane.resize(result.world_size);
  // Lower ranks listen before anybody connects and accept after having connected themselves:
  // rank 0 accepts at once, so the chain always moves.
  for (int rank = 0; rank < options.rank; ++rank) {
    for (int lane = FirstConnection(options); lane < options.num_lanes; ++lane) {
      Status status = ConnectTo(options, rank, lane, deadline, &result);
      if (!status.ok()) return status;
    }
  }
  if (Status status = AcceptHigherRanks(options, listener, deadline, &result); !status.ok()) {
    return status;
  }
  for (const Socket& link : result.links) {
    if (link.valid()) WatchLink(link, options.liveness_seconds);
  }
  *mesh = std::move(result);
  return Status();
}

}  // namespace tf_libra
