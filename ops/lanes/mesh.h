// Connections between every two ranks: one control connection and `num_lanes` lanes per pair, and
// between hosts one more, on which nothing is sent, to notice a dead link by.
#ifndef TF_LIBRA_OPS_LANES_MESH_H_
#define TF_LIBRA_OPS_LANES_MESH_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/lanes/clock.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Drawn once per job. The connecting side shows the first half, the accepting side answers with
// the second; a stranger knows neither. It travels in the clear, as the gradients do: it keeps
// strangers out, it is no defence against someone who can read the wire.
struct JobSecret {
  static constexpr size_t kHalf = 32;
  std::array<uint8_t, kHalf> caller;
  std::array<uint8_t, kHalf> callee;
};

struct MeshOptions {
  int rank = 0;
  std::vector<Address> addresses;  // of every rank's listener, own included
  JobSecret secret;
  // Connected are lanes [first_lane, num_lanes). Above 0 the ranks have met before, and have
  // control connections and links already.
  int first_lane = 0;
  int num_lanes = 1;
  double timeout_seconds = 600;
  // Asked about once a second while this rank waits; what it says other than OK ends the wait.
  std::function<Status()> interrupted;
};

struct Mesh {
  int rank = 0;
  int world_size = 1;
  std::vector<Socket> control;             // [rank]; own entry invalid
  std::vector<std::vector<Socket>> lanes;  // [lane - first_lane][rank]; own entries invalid
  std::vector<Socket> links;               // [rank]; watched, see WatchLink; none within one host
};

// Connects to every lower rank and accepts every higher one. Connections that do not show the
// secret within a few seconds are dropped, never answered and never waited for. Consumes the
// listener, so that from then on nobody can connect.
// Every rank must listen before any of them calls this: then one at whose address nobody listens
// any more has ended or given up, or is out of reach, which is noticed within seconds. Errors name
// the ranks that are missing. ResourceExhausted where this process cannot have so many descriptors.
Status ConnectMesh(const MeshOptions& options, Socket listener, Mesh* mesh);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESH_H_
