// Connections between ranks. Every two ranks have one for messages (messenger.h), and on different
// hosts one more, without traffic, to detect a dead link. Neighbours in a tree have one for
// control. Ranks that a grid connects have `num_lanes` lanes.
#ifndef TF_LIBRA_OPS_LANES_MESH_H_
#define TF_LIBRA_OPS_LANES_MESH_H_

#include <functional>
#include <string>
#include <vector>

#include "ops/lanes/clock.h"
#include "ops/lanes/connection.h"
#include "ops/lanes/grid.h"
#include "ops/lanes/handshake.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"
#include "ops/lanes/tree.h"

namespace tf_libra {

// As a rank's host in MeshOptions: not known.
inline constexpr int kUnknownHost = -1;

struct MeshOptions {
  int rank = 0;
  std::vector<Address> addresses;  // of every rank's listener, own included
  // [rank]: a number for its host, the same for ranks that reach each other by Unix sockets, and
  // the address at which the rank listens in addition for those (an empty host: none). Empty:
  // nothing is known of hosts. If one is kUnknownHost, the ranks connect as if nothing were known
  // of any.
  std::vector<int> hosts;
  std::vector<Address> local_addresses;
  JobSecret secret;
  // Connected are lanes [first_lane, num_lanes). Above 0 the ranks have met before, and have all
  // other connections already.
  int first_lane = 0;
  int num_lanes = 1;
  // If true, lanes and messages between ranks of one host share memory. A rank that does not want
  // to, or must not, uses sockets.
  bool share_memory = true;
  double timeout_seconds = 600;
  double liveness_seconds = 10;  // see EnableKeepalive
  // Called about once a second while this rank waits; a status other than OK ends the wait.
  std::function<Status()> interrupted;
};

struct Mesh {
  int rank = 0;
  int world_size = 1;
  std::vector<int> hosts;            // as in MeshOptions
  Tree tree;                         // which ranks control connects
  std::vector<Socket> control;       // [rank]; invalid but for neighbours
  std::vector<Connection> messages;  // [rank]; own entry invalid
  std::vector<Socket> links;         // as messages; watched, see EnableKeepalive; none in one host
  Grid grid;                         // which ranks lanes connect
  int ranks_per_host = 0;            // the same on all of them; 0: not known, or hosts differ
  std::vector<GridPeers> lanes;      // [lane - first_lane]
  Status unshared;  // why this process could not share memory as it wanted; else OK
};

// Describes how the hosts of a rendezvous differ from those of the ranks' first one, by the first
// rank that differs, as in "rank 1's host ..."; "" if ranks connect in the same way. The result is
// the same on every rank.
std::string DifferenceOfHosts(const std::vector<int>& first, const std::vector<int>& now);

// Connects to every lower rank and accepts every higher one; `local_listener` is the one of
// `local_addresses`, if there are any. Connections that do not prove within a
// few seconds that they know the secret are dropped and never waited for; so are those of another
// user of this host. Consumes the listener, so that from then on no process can connect. Every rank
// must listen before any of them calls this. Then a rank that no longer listens at its address has
// ended or given up, or is out of reach, which is noticed within seconds. Errors name
// the ranks that are missing. ResourceExhausted where this process cannot have so many descriptors.
Status ConnectMesh(const MeshOptions& options, Socket listener, Mesh* mesh,
                   Socket local_listener = Socket());

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESH_H_
