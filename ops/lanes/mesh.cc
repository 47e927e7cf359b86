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

constexpr int32_t kLink = -2;
constexpr int32_t kControlLane = -1;
constexpr double kStrangerSeconds = 5;
constexpr size_t kMaxPendingStrangers = 256;
constexpr double kRetrySeconds = 0.05;
// Usually all ranks have met before anybody looks after the others.
constexpr double kLookSeconds = 1;

// What the connecting side sends first. Fixed size, plain integers of one byte order: all
// machines of a job are of one kind, which the ranks compare before training.
struct Hello {
  char magic[8];
  std::array<uint8_t, JobSecret::kHalf> secret;
  int32_t rank;
  int32_t lane;
  int32_t world_size;
  int32_t num_lanes;
};
static_assert(sizeof(Hello) == 56, "Hello goes over the wire as it is");

constexpr char kMagic[8] = {'T', 'F', 'L', 'I', 'B', 'R', 'A', '1'};

using Secret = std::array<uint8_t, JobSecret::kHalf>;

// Takes the same time wherever the first difference is.
bool SameSecret(const Secret& left, const Secret& right) {
  uint8_t difference = 0;
  for (size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == 0;
}

// The first of the numbers that connections between two ranks have; the last is num_lanes - 1.
// Within one host there is no cable that could be pulled.
int FirstConnection(const MeshOptions& options) {
  if (options.first_lane > 0) return options.first_lane;
  return IsUnix(options.addresses[options.rank].host) ? kControlLane : kLink;
}

Socket* Slot(const MeshOptions& options, Mesh* mesh, int lane, int rank) {
  if (lane == kLink) return &mesh->links[rank];
  return lane == kControlLane ? &mesh->control[rank]
                              : &mesh->lanes[lane - options.first_lane][rank];
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

// One attempt to connect, up to the first byte of an answer.
Status Call(const MeshOptions& options, int rank, const Hello& hello, TimePoint deadline,
            Socket* socket) {
  const Address& address = options.addresses[rank];
  Status status = BeginConnect(address, socket);
  if (status.ok()) status = AwaitEvent(options, *socket, POLLOUT, deadline);
  if (status.ok()) status = ConnectFailure(address, *socket);
  if (status.ok()) status = SendAll(*socket, &hello, sizeof(hello), deadline);
  if (status.ok()) status = AwaitEvent(options, *socket, POLLIN, deadline);
  return status;
}

// The network may drop the first packet: try again until the deadline.
Status ConnectTo(const MeshOptions& options, int rank, int lane, TimePoint deadline,
                 Socket* result) {
  Hello hello;
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.secret = options.secret.caller;
  hello.rank = options.rank;
  hello.lane = lane;
  hello.world_size = static_cast<int32_t>(options.addresses.size());
  hello.num_lanes = options.num_lanes;
  for (;;) {
    Socket socket;
    Secret answer;
    Status status = Call(options, rank, hello, deadline, &socket);
    if (status.ok()) status = ReceiveAll(socket, answer.data(), answer.size(), deadline);
    if (status.ok() && !SameSecret(answer, options.secret.callee)) {
      return Status(StatusCode::kFailedPrecondition,
                    "rank " + std::to_string(rank) + "'s port is held by another program");
    }
    if (status.ok()) {
      *result = std::move(socket);
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
  Hello hello;
  size_t received = 0;
  TimePoint deadline;
};

// Reads what is there. Returns false when the connection is to be dropped.
bool ReadHello(Pending* pending) {
  char* bytes = reinterpret_cast<char*>(&pending->hello);
  const ssize_t received =
      recv(pending->socket.fd(), bytes + pending->received, sizeof(Hello) - pending->received, 0);
  if (received > 0) {
    pending->received += static_cast<size_t>(received);
    return true;
  }
  return received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

bool Welcome(const MeshOptions& options, const Hello& hello) {
  const int world_size = static_cast<int>(options.addresses.size());
  return std::memcmp(hello.magic, kMagic, sizeof(kMagic)) == 0 &&
         SameSecret(hello.secret, options.secret.caller) && hello.world_size == world_size &&
         hello.num_lanes == options.num_lanes && hello.rank > options.rank &&
         hello.rank < world_size && hello.lane >= FirstConnection(options) &&
         hello.lane < options.num_lanes;
}

std::vector<int> MissingRanks(const MeshOptions& options, Mesh* mesh) {
  std::vector<int> missing;
  for (int rank = options.rank + 1; rank < mesh->world_size; ++rank) {
    bool complete = true;
    for (int lane = FirstConnection(options); lane < options.num_lanes; ++lane) {
      complete = complete && Slot(options, mesh, lane, rank)->valid();
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
      if (entries[i + 1].revents != 0 && !ReadHello(&one)) continue;
      if (one.received < sizeof(Hello)) {
        if (SecondsUntil(one.deadline) > 0) still_pending.push_back(std::move(one));
        continue;
      }
      if (!Welcome(options, one.hello)) continue;
      Socket* slot = Slot(options, mesh, one.hello.lane, one.hello.rank);
      const Secret& answer = options.secret.callee;
      if (!SendAll(one.socket, answer.data(), answer.size(), deadline).ok()) continue;
      // Perhaps the same rank and lane again: its first attempt broke off on the way.
      *slot = std::move(one.socket);
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
      if (socket.valid()) {
        Pending one;
        one.socket = std::move(socket);
        one.deadline = After(kStrangerSeconds);
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
  result.links.resize(result.world_size);
  result.lanes.resize(options.num_lanes - options.first_lane);
  for (auto& lane : result.lanes) lane.resize(result.world_size);
  // Lower ranks listen before anybody connects and accept after having connected themselves:
  // rank 0 accepts at once, so the chain always moves.
  for (int rank = 0; rank < options.rank; ++rank) {
    for (int lane = FirstConnection(options); lane < options.num_lanes; ++lane) {
      Socket* const slot = Slot(options, &result, lane, rank);
      Status status = ConnectTo(options, rank, lane, deadline, slot);
      if (!status.ok()) return status;
    }
  }
  if (Status status = AcceptHigherRanks(options, listener, deadline, &result); !status.ok()) {
    return status;
  }
  for (const Socket& link : result.links) {
    if (link.valid()) WatchLink(link);
  }
  *mesh = std::move(result);
  return Status();
}

}  // namespace tf_libra
