#include "ops/lanes/connection_ids.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tf_libra {
namespace {

bool OnOneHost(const MeshOptions& options, int rank) {
  return !options.hosts.empty() && options.hosts[rank] == options.hosts[options.rank];
}

// Returns the connections that carry no tensors.
std::vector<Socket>* Sockets(int number, Mesh* mesh) {
  return number == kLink ? &mesh->links : &mesh->control;
}

// Returns the connection of messages, or of a lane to a connected rank; nullptr if the number
// carries no tensors.
Connection* ForTensors(const MeshOptions& options, int number, int rank, Mesh* mesh) {
  if (number == kMessages) return &mesh->messages[rank];
  if (number < 0) return nullptr;
  GridPeers& peers = mesh->lanes[number - options.first_lane];
  const auto find = [rank](const std::vector<int>& ranks, std::vector<Connection>* connections) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    return found == ranks.end() ? nullptr : &(*connections)[found - ranks.begin()];
  };
  Connection* const in_row = find(mesh->grid.row(), &peers.row);
  return in_row != nullptr ? in_row : find(mesh->grid.column(), &peers.column);
}

}  // namespace

const Address& AddressOf(const MeshOptions& options, int rank) {
  const bool is_local = OnOneHost(options, rank) && !options.local_addresses.empty() &&
                        !options.local_addresses[rank].host.empty() &&
                        !options.local_addresses[options.rank].host.empty();
  return is_local ? options.local_addresses[rank] : options.addresses[rank];
}

bool IsLocal(const MeshOptions& options, int rank) { return IsUnix(AddressOf(options, rank).host); }

int FirstConnection(const MeshOptions& options) {
  return options.first_lane > 0 ? options.first_lane : kLink;
}

bool Wants(const MeshOptions& options, const Mesh& mesh, int number, int rank) {
  if (number == kLink) return !IsLocal(options, rank);
  if (number == kControlLane) return mesh.tree.IsNeighbour(rank);
  return number == kMessages || mesh.grid.Meets(rank);
}

void Keep(const MeshOptions& options, int number, int rank, Connection connection, Mesh* mesh) {
  if (Connection* const slot = ForTensors(options, number, rank, mesh)) {
    *slot = std::move(connection);
  } else {
    (*Sockets(number, mesh))[rank] = std::move(connection.socket);
  }
}

bool Has(const MeshOptions& options, int number, int rank, Mesh* mesh) {
  const Connection* const slot = ForTensors(options, number, rank, mesh);
  return slot == nullptr ? (*Sockets(number, mesh))[rank].valid() : slot->valid();
}

bool SharesMemory(const MeshOptions& options, int number, int rank) {
  const bool carries_tensors = number >= 0 || number == kMessages;
  return options.share_memory && carries_tensors && IsLocal(options, rank);
}

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

}  // namespace tf_libra
