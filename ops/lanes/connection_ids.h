// Numbers of the connections between two ranks of a mesh: a lane's number, or a negative number
// for other connections. Both sides use the same number.
#ifndef TF_LIBRA_OPS_LANES_CONNECTION_IDS_H_
#define TF_LIBRA_OPS_LANES_CONNECTION_IDS_H_

#include <cstddef>
#include <cstdint>

#include "ops/lanes/connection.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/socket.h"

namespace tf_libra {

inline constexpr int32_t kLink = -3;
inline constexpr int32_t kMessages = -2;
inline constexpr int32_t kControlLane = -1;

// The first of the numbers that connections between two ranks have; the last is num_lanes - 1.
int FirstConnection(const MeshOptions& options);

// Returns whether two ranks have the connection of this number. Within one host there is no cable
// that could be pulled.
bool Wants(const MeshOptions& options, const Mesh& mesh, int number, int rank);

// Address at which this rank reaches another one, and whether that is a Unix socket.
const Address& AddressOf(const MeshOptions& options, int rank);
bool IsLocal(const MeshOptions& options, int rank);

// Returns whether a connection may have memory that both ranks share.
bool SharesMemory(const MeshOptions& options, int number, int rank);

// Bytes of each ring of a connection, the same on both sides. Large enough that a rank seldom waits
// for another one. All rings of a rank together stay within a few times the processor's
// second-level cache, except with many ranks and lanes.
size_t RingBytes(const MeshOptions& options);

// Require a connection that Wants.
void Keep(const MeshOptions& options, int number, int rank, Connection connection, Mesh* mesh);
bool Has(const MeshOptions& options, int number, int rank, Mesh* mesh);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONNECTION_IDS_H_
