#include "ops/lanes/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
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
// Ranks that one connects to at a time.
constexpr int kMaxConnecting = 8;
// Usually all ranks have met before anybody looks after the others.
constexpr double kLookSeconds = 1;

bool OnOneHost(const MeshOptions& options, int rank) {
  return !options.hosts.empty() && options.hosts[rank] == options.hosts[options.rank];
}

// Where this rank reaches another one.
const Address& AddressOf(const MeshOptions& options, int rank) {
  const bool is_local = OnOneHost(options, rank) && !options.local_addresses.empty() &&
                        !options.local_addresses[rank].host.empty() &&
                        !options.local_addresses[options.rank].host.empty();
  return is_local ? options.local_addresses[rank] : options.addresses[rank];
}

bool IsLocal(const MeshOptions& options, int rank) { return IsUnix(AddressOf(options, rank).host); }

// The first of the numbers that connections between two ranks have; the last is
// num_lanes - 1.
int FirstConnection(const MeshOptions& options) {
  return options.first_lane > 0 ? options.first_lane : kLink;
}

// Whether two ranks have the connection of this number. Within one host there
// is no cable that could be pulled.
bool Wants(const MeshOptions& options, const Mesh& mesh, int lane, int rank) {
  if (lane == kLink) return !IsLocal(options, rank);
  if (lane == kControlLane) return mesh.tree.IsNeighbour(rank);
  return lane == kMessages || mesh.grid.Meets(rank);
}

// Of the connections that are no lanes.
std::vector<Socket>* Sockets(int lane, Mesh* mesh) {
  if (lane == kLink) return &mesh->links;
  return lane == kMessages ? &mesh->messages : &mesh->control;
}

// A lane's to a rank that it connects.
Connection* OfLane(const MeshOptions& options, int lane, int rank, Mesh* mesh) {
  GridPeers& peers = mesh->lanes[lane - options.first_lane];
  const auto find = [rank](const std::vector<int>& ranks, std::vector<Connection>* connections) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    return found == ranks.end() ? nullptr : &(*connections)[found - ranks.begin()];
  };
  Connection* const in_row = find(mesh->grid.row(), &peers.row);
  return in_row != nullptr ? in_row : find(mesh->grid.column(), &peers.column);
}

void Keep(const MeshOptions& options, int lane, int rank, Connection connection, Mesh* mesh) {
  if (lane < 0) {
    (*Sockets(lane, mesh))[rank] = std::move(connection.socket);
  } else {
    *OfLane(options, lane, rank, mesh) = std::move(connection);
  }
}

bool Has(const MeshOptions& options, int lane, int rank, Mesh* mesh) {
  if (lane < 0) return (*Sockets(lane, mesh))[rank].valid();
  return OfLane(options, lane, rank, mesh)->valid();
}

bool SharesMemory(const MeshOptions& options, int lane, int rank) {
  return options.share_memory && lane >= 0 && IsLocal(options, rank);
}

// Of each ring of a connection: the same on both of its sides. Large enough
// that a rank seldom waits for another one; all those of a rank together stay
// within a few times the processor's second cache, but for many ranks and
// lanes.
size_t RingBytes(const MeshOptions& options) {
  constexpr size_t kMostBytes = 1 << 20, kLeastBytes = 64 << 10, kTogether = 8 << 20;
  size_t num_peers = 0;
  for (int rank = 0; rank < static_cast<int>(options.addresses.size()); ++rank) {
    num_peers += rank != options.rank && IsLocal(options, rank);
  }
  size_t bytes = kMostBytes;
  while (bytes > kLeastBytes &&
         (bytes * num_peers > kMostBytes || bytes * num_peers * options.num_lanes > kTogether)) {
    bytes /= 2;
  }
  return bytes;
}

int RanksPerHost(const MeshOptions& options, const Grid& grid) {
  const int world_size = static_cast<int>(options.addresses.size());
  if (grid.has_rows()) return static_cast<int>(grid.row().size());
  const std::set<int> hosts(options.hosts.begin(), options.hosts.end());
  // Ranks of one host need not say so.
  const bool on_one = hosts.size() == 1 || world_size == 1 || IsUnix(options.addresses[0].host);
  if (on_one) return world_size;
  return static_cast<int>(hosts.size()) == world_size ? 1 : 0;
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

// All ranks have listened, but some may be out of reach: on an interface whose
// address is the same on every host, or behind a firewall that rejects.
Status NobodyListens(const MeshOptions& options, int rank, const Status& status) {
  std::ostringstream what;
  what << "rank " << options.rank << ", while ranks connect: nobody listens for rank " << rank
       << " any more: it has ended or given up, or its address is not "
          "reachable from here ("
       << status.message() << ")";
  return Status(StatusCode::kUnavailable, what.str());
}

// Whoever listens there is not the rank, and more time will not mend it.
Status Impostor(int rank, const char* why) {
  return Status(StatusCode::kFailedPrecondition,
                "rank " + std::to_string(rank) + "'s port is held by another program" + why);
}

// One attempt to connect and to be welcome; see handshake.h. What is certain,
// and not to be tried again, is `refused`.
Status Call(const MeshOptions& options, int rank, int lane, TimePoint deadline,
            Connection* connection, Status* refused, Status* unshared) {
  const Address& address = AddressOf(options, rank);
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
  if (SharesMemory(options, lane, rank) && unshared->ok()) {
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
Status ConnectTo(const MeshOptions& options, int rank, int lane, TimePoint deadline,
                 Status* unshared, Mesh* mesh) {
  for (;;) {
    Connection connection;
    Status refused;
    Status status = Call(options, rank, lane, deadline, &connection, &refused, unshared);
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

// Connects to all lower ranks, several at a time, while others go on.
class Connecting {
 public:
  // Everything outlives this. Of `mesh` only what lower ranks have is touched.
  Connecting(const MeshOptions& options, TimePoint deadline, Mesh* mesh)
      : options_(options), deadline_(deadline), mesh_(mesh) {
    options_.interrupted = [this, &options] {
      return stops_ ? Status(StatusCode::kUnavailable, "the ranks do not meet")
                    : Interrupted(options);
    };
  }
  ~Connecting() {
    stops_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

  // Where few are to be connected to, or no thread can start, it is done before
  // this returns.
  void Start() {
    const int num_threads = std::min(kMaxConnecting, options_.rank / 2);
    try {
      while (static_cast<int>(threads_.size()) < num_threads) {
        threads_.emplace_back([this] { Run(); });
      }
    } catch (const std::system_error&) {
    }
    if (threads_.empty()) Run();
  }

  bool has_failed() const { return failed_; }
  bool is_over() const { return num_connected_ == options_.rank || failed_; }

  // Until it is over.
  Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return is_over(); });
    if (!unshared_.ok() && mesh_->unshared.ok()) mesh_->unshared = unshared_;
    return status_;
  }

 private:
  void Run() noexcept {
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

  Status ConnectToRank(int rank, Status* unshared) {
    for (int lane = FirstConnection(options_); lane < options_.num_lanes; ++lane) {
      if (!Wants(options_, *mesh_, lane, rank)) continue;
      Status status = ConnectTo(options_, rank, lane, deadline_, unshared, mesh_);
      if (!status.ok()) return status;
    }
    return Status();
  }

  MeshOptions options_;
  const TimePoint deadline_;
  Mesh* const mesh_;
  std::vector<std::thread> threads_;
  std::atomic<int> next_{0}, num_connected_{0};
  std::atomic<bool> stops_{false}, failed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  Status status_, unshared_;
};

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

bool Fits(const MeshOptions& options, const Mesh& mesh, const Hello& hello) {
  const int world_size = static_cast<int>(options.addresses.size());
  return std::memcmp(hello.magic, kMagic, sizeof(kMagic)) == 0 && hello.world_size == world_size &&
         hello.num_lanes == options.num_lanes && hello.rank > options.rank &&
         hello.rank < world_size && hello.lane >= FirstConnection(options) &&
         hello.lane < options.num_lanes && Wants(options, mesh, hello.lane, hello.rank);
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

// Whoever has proven to know the secret, and what it has passed along. Whether
// it is welcome now.
bool Welcome(const MeshOptions& options, const Socket& file, Pending* pending, Status* unshared) {
  if (file.valid() && SharesMemory(options, pending->hello.lane, pending->hello.rank) &&
      unshared->ok()) {
    *unshared = SharedMemory::Take(file, RingBytes(options), &pending->memory);
  }
  const uint8_t welcome = pending->memory != nullptr ? kWelcomeInMemory : kWelcome;
  return SendNow(pending->socket, &welcome, sizeof(welcome));
}

// Reads what is there, and answers.
Hearing Hear(const MeshOptions& options, Pending* pending, Mesh* mesh) {
  const bool in_hello = pending->received < sizeof(Hello);
  const size_t at = in_hello ? pending->received : pending->received - sizeof(Hello);
  char* const bytes = in_hello ? reinterpret_cast<char*>(&pending->hello)
                               : reinterpret_cast<char*>(pending->proof.data());
  const size_t size = in_hello ? sizeof(Hello) : pending->proof.size();
  Socket file;  // comes with the last bytes
  const ssize_t received = ReceiveFile(pending->socket, bytes + at, size - at, &file);
  if (received <= 0) {
    const bool later = received < 0 && WouldBlock(errno);
    return later ? Hearing::kGoesOn : Hearing::kDropped;
  }
  pending->received += static_cast<size_t>(received);
  if (at + static_cast<size_t>(received) < size) return Hearing::kGoesOn;
  if (in_hello) {
    const bool answered = Fits(options, *mesh, pending->hello) && SendAnswer(options, pending);
    return answered ? Hearing::kGoesOn : Hearing::kDropped;
  }
  const Digest expected =
      Proof(options.secret, Role::kCaller, pending->hello, options.rank, pending->nonce);
  const bool welcome =
      SameDigest(pending->proof, expected) && Welcome(options, file, pending, &mesh->unshared);
  return welcome ? Hearing::kWelcome : Hearing::kDropped;
}

std::vector<int> MissingRanks(const MeshOptions& options, Mesh* mesh) {
  std::vector<int> missing;
  for (int rank = options.rank + 1; rank < mesh->world_size; ++rank) {
    bool complete = true;
    for (int lane = FirstConnection(options); lane < options.num_lanes; ++lane) {
      complete = complete && (!Wants(options, *mesh, lane, rank) || Has(options, lane, rank, mesh));
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

// A connection to the listener of a rank that has not met everybody, which
// therefore still listens. It breaks when that process ends. Nothing is said on
// it, so the rank, if it lives, takes it for a stranger's and may drop it, too:
// whether somebody still listens is what tells the two apart.
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

// Takes one connection, if there is any.
Status TakeIn(const Socket& listener, std::vector<Pending>* pending) {
  Socket socket;
  Status status = Accept(listener, &socket);
  if (status.code() == StatusCode::kResourceExhausted && !pending->empty()) {
    pending->erase(pending->begin());  // a stranger's may be had
  } else if (!status.ok()) {
    return status;
  }
  if (!socket.valid() || !IsOfThisUser(socket)) return Status();
  Pending one;
  one.socket = std::move(socket);
  // A rank speaks as soon as it is connected: the longest silent is the least
  // likely one.
  if (pending->size() == kMaxPendingStrangers) pending->erase(pending->begin());
  pending->push_back(std::move(one));
  return Status();
}

Status AcceptHigherRanks(const MeshOptions& options, const Socket* const (&listeners)[2],
                         TimePoint deadline, Connecting* connecting, Mesh* mesh) {
  std::vector<Pending> pending;
  std::vector<Watched> watched(mesh->world_size);
  for (;;) {
    const std::vector<int> missing = MissingRanks(options, mesh);
    if (missing.empty() || connecting->has_failed()) return connecting->Wait();
    if (Status status = Interrupted(options); !status.ok()) return status;
    std::vector<pollfd> entries;
    TimePoint wake = NextLook(options, deadline);
    for (const Socket* listener : listeners) entries.push_back({listener->fd(), POLLIN, 0});
    for (const Pending& one : pending) {
      entries.push_back({one.socket.fd(), POLLIN, 0});
      wake = std::min(wake, one.deadline);
    }
    for (const int rank : missing) {
      Watched& one = watched[rank];
      Status status = Look(AddressOf(options, rank), &one);
      if (!status.ok()) return NobodyListens(options, rank, status);
      entries.push_back({one.socket.fd(), POLLIN, 0});
      if (!one.socket.valid()) wake = std::min(wake, one.due);
    }
    if (!connecting->is_over()) wake = std::min(wake, After(kRetrySeconds));
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
      const Hearing heard = entries[i + std::size(listeners)].revents != 0
                                ? Hear(options, &one, mesh)
                                : Hearing::kGoesOn;
      if (heard == Hearing::kGoesOn && SecondsUntil(one.deadline) > 0) {
        still_pending.push_back(std::move(one));
      } else if (heard == Hearing::kWelcome) {
        // Perhaps the same rank and lane again: its first attempt broke off on
        // the way.
        Keep(options, one.hello.lane, one.hello.rank,
             {std::move(one.socket), std::move(one.memory)}, mesh);
      }
    }
    pending = std::move(still_pending);
    for (size_t i = 0; i < std::size(listeners); ++i) {
      if (entries[i].revents == 0) continue;
      if (Status status = TakeIn(*listeners[i], &pending); !status.ok()) return status;
    }
  }
}

}  // namespace

Status ConnectMesh(const MeshOptions& options, Socket listener, Mesh* mesh, Socket local_listener) {
  const TimePoint deadline = After(options.timeout_seconds);
  const int world_size = static_cast<int>(options.addresses.size());
  Mesh result;
  result.rank = options.rank;
  result.world_size = world_size;
  result.control.resize(world_size);
  result.messages.resize(world_size);
  result.links.resize(world_size);
  result.tree = Tree(options.rank, world_size, options.hosts);
  result.grid = Grid(options.rank, world_size, options.hosts);
  result.ranks_per_host = RanksPerHost(options, result.grid);
  result.lanes.resize(options.num_lanes - options.first_lane);
  for (GridPeers& lane : result.lanes) {
    lane.row.resize(result.grid.row().size());
    lane.column.resize(result.grid.column().size());
  }
  int num_descriptors = 0, most = 0, least = std::numeric_limits<int>::max();
  for (int rank = 0; rank < world_size; ++rank) {
    int to_it = 0;
    for (int lane = FirstConnection(options); rank != options.rank && lane < options.num_lanes;
         ++lane) {
      to_it += Wants(options, result, lane, rank);
    }
    num_descriptors += to_it;
    most = std::max(most, to_it);
    if (rank != options.rank) least = std::min(least, to_it);
  }
  // Each lane watches its row and its column.
  num_descriptors += (result.grid.has_rows() ? 2 : 1) * static_cast<int>(result.lanes.size());
  std::ostringstream what;
  what << "rank " << options.rank << ", to connect to " << world_size - 1 << " other rank(s) by "
       << (least < most ? "up to " : "") << most << " connections each,";
  if (Status status = ReserveDescriptors(num_descriptors, what.str()); !status.ok()) {
    return status;
  }
  // Lower ranks listen before anybody connects, and accept at once, or after
  // having connected themselves: rank 0 accepts at once, so the chain always
  // moves.
  Connecting connecting(options, deadline, &result);
  connecting.Start();
  const Socket* const listeners[] = {&listener, &local_listener};
  if (Status status = AcceptHigherRanks(options, listeners, deadline, &connecting, &result);
      !status.ok()) {
    return status;
  }
  for (const Socket& link : result.links) {
    if (link.valid()) WatchLink(link, options.liveness_seconds);
  }
  *mesh = std::move(result);
  return Status();
}

}  // namespace tf_libra
