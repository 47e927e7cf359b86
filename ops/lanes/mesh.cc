#include "ops/lanes/mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "ops/lanes/connect_polling.h"
#include "ops/lanes/connection_ids.h"
#include "ops/lanes/connector.h"
#include "ops/lanes/descriptors.h"

namespace tf_libra {
namespace {

constexpr double kStrangerSeconds = 5;
constexpr size_t kMaxPendingStrangers = 256;
// Interval of liveness checks of a rank that is to connect.
constexpr double kConnectingSeconds = 0.2;

int RanksPerHost(const MeshOptions& options) {
  const int world_size = static_cast<int>(options.addresses.size());
  // Ranks of one host need not say so.
  if (world_size == 1 || IsUnix(options.addresses[0].host)) return world_size;
  std::map<int, int> counts;
  for (const int host : options.hosts) ++counts[host];
  const int first = counts.empty() ? 0 : counts.begin()->second;
  const bool is_even = std::all_of(counts.begin(), counts.end(),
                                   [first](const auto& one) { return one.second == first; });
  return is_even ? first : 0;
}

// The first rank whose host is not known; the number of ranks: there is none.
size_t FirstUnknown(const std::vector<int>& hosts) {
  return std::find(hosts.begin(), hosts.end(), kUnknownHost) - hosts.begin();
}

bool AreKnown(const std::vector<int>& hosts) {
  return !hosts.empty() && FirstUnknown(hosts) == hosts.size();
}

// Numbers of hosts in the order of their first ranks.
std::vector<int> InOrder(const std::vector<int>& hosts) {
  std::map<int, int> numbers;
  std::vector<int> in_order;
  for (const int host : hosts) {
    in_order.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  }
  return in_order;
}

MeshOptions WithKnownHosts(MeshOptions options) {
  if (AreKnown(options.hosts)) return options;
  options.hosts.clear();
  options.local_addresses.clear();
  return options;
}

// A connection whose peer has not proved its identity yet.
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

// So few bytes always find room: the call does not block.
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

// Welcomes a peer that has proven to know the secret, and takes the file that it has passed along.
// Returns whether the welcome was sent.
bool Welcome(const MeshOptions& options, const Socket& file, Pending* pending, Status* unshared) {
  if (file.valid() && unshared->ok()) {
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
  // A file may come with the last bytes of a proof; of any other that is sent along the system lets
  // go.
  Socket file;
  const bool takes_file =
      !in_hello && SharesMemory(options, pending->hello.lane, pending->hello.rank);
  const ssize_t received = takes_file
                               ? ReceiveFile(pending->socket, bytes + at, size - at, &file)
                               : recv(pending->socket.fd(), bytes + at, size - at, MSG_DONTWAIT);
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

// Returns the number of connections that each rank has yet to make, [rank].
std::vector<int> ToCome(const MeshOptions& options, const Mesh& mesh) {
  std::vector<int> to_come(mesh.world_size);
  for (int rank = options.rank + 1; rank < mesh.world_size; ++rank) {
    for (int lane = FirstConnection(options); lane < options.num_lanes; ++lane) {
      to_come[rank] += Wants(options, mesh, lane, rank);
    }
  }
  return to_come;
}

std::vector<int> MissingRanks(const std::vector<int>& to_come) {
  std::vector<int> missing;
  for (size_t rank = 0; rank < to_come.size(); ++rank) {
    if (to_come[rank] > 0) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

std::string Join(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// A connection to the listener of a rank that has not met all others, which therefore still
// listens. It breaks when that process ends. No bytes are sent on it, so a live rank takes it for a
// stranger's and may drop it, too: only a rank that is alive still listens, which distinguishes the
// two cases. A connection that is made in the moment when the listener closes may look as if it
// stood (Linux forgets the other end of it): only a probe finds out.
struct Watched {
  Socket socket;  // none before, and after it broke
  TimePoint due = After(0);
};

Status IfRefused(const Status& status) {
  return status.code() == StatusCode::kFailedPrecondition ? status : Status();
}

// Never waits. FailedPrecondition: the rank no longer listens.
Status BeginToWatch(const MeshOptions& options, int rank, Watched* watched) {
  if (watched->socket.valid() || SecondsUntil(watched->due) > 0) return Status();
  watched->due = After(kLookSeconds);
  Status status = BeginConnect(AddressOf(options, rank), &watched->socket);
  if (status.ok()) EnableKeepalive(watched->socket, options.liveness_seconds);
  return IfRefused(status);
}

// The connection has broken, or was not made. FailedPrecondition as above.
Status WhyItBroke(const Address& address, Watched* watched) {
  Status status = ConnectFailure(address, watched->socket);
  *watched = {Socket(), After(kLookSeconds)};
  return IfRefused(status);
}

// Takes one connection, if there is any.
Status TakeIn(const MeshOptions& options, const Socket& listener, std::vector<Pending>* pending) {
  Socket socket;
  Status status = Accept(listener, &socket);
  if (status.code() == StatusCode::kResourceExhausted && !pending->empty()) {
    pending->erase(pending->begin());  // a stranger's may be had
  } else if (!status.ok()) {
    return status;
  }
  if (!socket.valid() || !IsOfThisUser(socket)) return Status();
  EnableKeepalive(socket, options.liveness_seconds);
  Pending one;
  one.socket = std::move(socket);
  // A rank speaks as soon as it is connected: the longest silent is the least
  // likely one.
  if (pending->size() == kMaxPendingStrangers) pending->erase(pending->begin());
  pending->push_back(std::move(one));
  return Status();
}

Status AcceptHigherRanks(const MeshOptions& options, const Socket* const (&listeners)[2],
                         TimePoint deadline, MeshConnector* connecting, Mesh* mesh) {
  std::vector<Pending> pending;
  std::vector<Watched> watched(mesh->world_size);
  std::vector<int> to_come = ToCome(options, *mesh);
  int num_to_come = std::accumulate(to_come.begin(), to_come.end(), 0);
  // While ranks keep coming no rank is checked: if many meet on few cores, that would be most of
  // the work.
  TimePoint look = After(kLookSeconds);
  while (num_to_come > 0 && !connecting->has_failed()) {
    if (Status status = Interrupted(options); !status.ok()) return status;
    std::vector<pollfd> entries;
    TimePoint wake = NextLook(options, deadline);
    for (const Socket* listener : listeners) entries.push_back({listener->fd(), POLLIN, 0});
    for (const Pending& one : pending) {
      entries.push_back({one.socket.fd(), POLLIN, 0});
      wake = std::min(wake, one.deadline);
    }
    const bool looks = SecondsUntil(look) <= 0;
    if (!looks) wake = std::min(wake, look);
    const std::vector<int> looked_after = looks ? MissingRanks(to_come) : std::vector<int>();
    const size_t first_watched = entries.size();
    for (const int rank : looked_after) {
      Watched& one = watched[rank];
      Status status = BeginToWatch(options, rank, &one);
      if (!status.ok()) return NobodyListens(options, rank, status);
      entries.push_back({one.socket.fd(), POLLIN, 0});
      if (!one.socket.valid()) wake = std::min(wake, one.due);
    }
    if (!connecting->is_over()) wake = std::min(wake, After(kConnectingSeconds));
    if (poll(entries.data(), entries.size(), PollMilliseconds(wake)) < 0 && errno != EINTR) {
      return OutOfDescriptors("poll", errno);
    }
    if (SecondsUntil(deadline) <= 0) {
      return Status(StatusCode::kDeadlineExceeded,
                    "rank " + std::to_string(options.rank) + " " +
                        WaitedTooLong(options.timeout_seconds,
                                      "rank(s) " + Join(MissingRanks(to_come)) + " to connect"));
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
        const int lane = one.hello.lane, rank = one.hello.rank;
        // Perhaps the same rank and lane again: its first attempt broke off on
        // the way.
        const bool is_new = !Has(options, lane, rank, mesh);
        Keep(options, lane, rank, {std::move(one.socket), std::move(one.memory)}, mesh);
        to_come[rank] -= is_new;
        num_to_come -= is_new;
        look = After(kLookSeconds);
      }
    }
    pending = std::move(still_pending);
    for (size_t i = 0; i < looked_after.size(); ++i) {
      const int rank = looked_after[i];
      if (entries[first_watched + i].revents == 0 || to_come[rank] == 0) continue;
      Status status = WhyItBroke(AddressOf(options, rank), &watched[rank]);
      if (!status.ok()) return NobodyListens(options, rank, status);
    }
    for (size_t i = 0; i < std::size(listeners); ++i) {
      if (entries[i].revents == 0) continue;
      if (Status status = TakeIn(options, *listeners[i], &pending); !status.ok()) return status;
    }
  }
  return connecting->Wait();
}

}  // namespace

std::string DifferenceOfHosts(const std::vector<int>& first, const std::vector<int>& now) {
  const bool were_known = AreKnown(first), are_known = AreKnown(now);
  if (!were_known && !are_known) return "";
  if (were_known != are_known) {
    const std::vector<int>& lacking = were_known ? now : first;
    const std::string ranks = lacking.empty()
                                  ? "the ranks' hosts are"
                                  : "rank " + std::to_string(FirstUnknown(lacking)) + "'s host is";
    return ranks + (were_known ? " not known, unlike when the ranks first met"
                               : " known, unlike when the ranks first met");
  }
  const std::vector<int> one = InOrder(first), other = InOrder(now);
  const auto differ = std::mismatch(one.begin(), one.end(), other.begin(), other.end()).first;
  if (differ == one.end()) return "";
  return "rank " + std::to_string(differ - one.begin()) +
         "'s host is another than when the ranks first met";
}

Status ConnectMesh(const MeshOptions& requested, Socket listener, Mesh* mesh,
                   Socket local_listener) {
  const MeshOptions options = WithKnownHosts(requested);
  const TimePoint deadline = After(options.timeout_seconds);
  const int world_size = static_cast<int>(options.addresses.size());
  Mesh result;
  result.rank = options.rank;
  result.world_size = world_size;
  result.hosts = requested.hosts;
  result.control.resize(world_size);
  result.messages.resize(world_size);
  result.links.resize(world_size);
  result.tree = Tree(options.rank, world_size, options.hosts);
  result.grid = Grid(options.rank, world_size, options.hosts);
  result.ranks_per_host = RanksPerHost(options);
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
  // Control has an event to wake for, messages one and a set to wait on.
  if (options.first_lane == 0 && world_size > 1) num_descriptors += 3;
  std::ostringstream what;
  what << "rank " << options.rank << ", to connect to " << world_size - 1 << " other rank(s) by "
       << (least < most ? "up to " : "") << most << " connections each,";
  if (Status status = ReserveDescriptors(num_descriptors, what.str()); !status.ok()) {
    return status;
  }
  // Lower ranks listen before any rank connects. Each accepts immediately, or after having
  // connected itself: rank 0 accepts immediately, so the chain always moves.
  MeshConnector connecting(options, deadline, &result);
  connecting.Start();
  const Socket* const listeners[] = {&listener, &local_listener};
  if (Status status = AcceptHigherRanks(options, listeners, deadline, &connecting, &result);
      !status.ok()) {
    return status;
  }
  *mesh = std::move(result);
  return Status();
}

}  // namespace tf_libra
