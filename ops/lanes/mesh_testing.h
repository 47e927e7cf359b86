// Helpers for tests of the mesh: checks of its connections, and strangers that connect to it.
#ifndef TF_LIBRA_OPS_LANES_MESH_TESTING_H_
#define TF_LIBRA_OPS_LANES_MESH_TESTING_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ops/lanes/handshake.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/testing.h"

namespace tf_libra {
namespace testing {

// Every pair of ranks sends its rank and lane over every connection.
inline void CheckConnections(std::vector<Mesh>* meshes, int num_lanes) {
  const int world_size = static_cast<int>(meshes->size());
  OnEveryRank(world_size, [&](int rank) {
    Mesh& mesh = (*meshes)[rank];
    CHECK_EQ(mesh.rank, rank);
    CHECK_EQ(mesh.world_size, world_size);
    CHECK_EQ(mesh.lanes.size(), static_cast<size_t>(num_lanes));
    for (const bool sending : {true, false}) {
      for (int lane = -1; lane < num_lanes; ++lane) {
        for (int peer = 0; peer < world_size; ++peer) {
          Socket& socket = lane < 0 ? mesh.control[peer] : mesh.lanes[lane].column[peer].socket;
          if (peer == rank || (lane < 0 && !mesh.tree.IsNeighbour(peer))) {
            CHECK(!socket.valid());
            continue;
          }
          int said[2] = {rank, lane};
          if (sending) {
            CHECK_EQ(SendAll(socket, said, sizeof(said), After(kGenerousSeconds)), testing::IsOk());
          } else {
            CHECK_EQ(ReceiveAll(socket, said, sizeof(said), After(kGenerousSeconds)),
                     testing::IsOk());
            CHECK_EQ(said[0], peer);
            CHECK_EQ(said[1], lane);
          }
        }
      }
    }
  });
}

// The first bytes of a rank on a connection.
inline std::string HelloBytes(int32_t rank, int32_t lane, int32_t world_size, int32_t num_lanes) {
  std::string hello = std::string(kMagic, sizeof(kMagic)) + std::string(32, 'n');
  for (const int32_t field : {rank, lane, world_size, num_lanes}) {
    hello.append(reinterpret_cast<const char*>(&field), sizeof(field));
  }
  return hello;
}

inline Socket ConnectedStranger(const Address& address, const std::string& says) {
  Socket socket;
  CHECK_EQ(Connect(address, After(kGenerousSeconds), &socket), testing::IsOk());
  // As much as one call takes; a rank may hang up in the middle.
  send(socket.fd(), says.data(), says.size(), MSG_NOSIGNAL);
  return socket;
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESH_TESTING_H_
