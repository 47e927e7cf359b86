#include "ops/lanes/connection_ids.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::connection_ids_test {
namespace {

// Options of rank 0 of as many ranks as `hosts` has entries. The ranks listen at TCP ports and, in
// addition, for their own hosts.
MeshOptions OnHosts(std::vector<int> hosts, int num_lanes = 1) {
  MeshOptions options;
  options.num_lanes = num_lanes;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    options.addresses.push_back({"10.0.0.1", 1});
    options.local_addresses.push_back({"unix:a", 0});
  }
  options.hosts = std::move(hosts);
  return options;
}

Mesh Between(const MeshOptions& options) {
  const int world_size = static_cast<int>(options.addresses.size());
  Mesh mesh;
  mesh.world_size = world_size;
  mesh.tree = Tree(options.rank, world_size, options.hosts);
  mesh.grid = Grid(options.rank, world_size, options.hosts);
  mesh.control.resize(world_size);
  mesh.messages.resize(world_size);
  mesh.links.resize(world_size);
  mesh.lanes.resize(options.num_lanes - options.first_lane);
  for (GridPeers& lane : mesh.lanes) {
    lane.row.resize(mesh.grid.row().size());
    lane.column.resize(mesh.grid.column().size());
  }
  return mesh;
}

// The numbers of all that rank 0 wants to have to another one.
std::vector<int> Wanted(const MeshOptions& options, int rank) {
  const Mesh mesh = Between(options);
  std::vector<int> numbers;
  for (int number = FirstConnection(options); number < options.num_lanes; ++number) {
    if (Wants(options, mesh, number, rank)) numbers.push_back(number);
  }
  return numbers;
}

// Two hosts of two: rank 1 is of the own row, 2 of the own column, 3 of neither.
TEST_CASE("WhatTwoRanksHave") {
  const MeshOptions options = OnHosts({0, 0, 1, 1}, 2);
  CHECK(Wanted(options, 1) == std::vector<int>({kMessages, kControlLane, 0, 1}));
  CHECK(Wanted(options, 2) == std::vector<int>({kLink, kMessages, kControlLane, 0, 1}));
  CHECK(Wanted(options, 3) == std::vector<int>({kLink, kMessages}));
}

TEST_CASE("LanesThatAreAddedAreAllThatIsNew") {
  MeshOptions options = OnHosts({0, 0, 1, 1}, 3);
  options.first_lane = 1;
  CHECK(Wanted(options, 1) == std::vector<int>({1, 2}));
  CHECK(Wanted(options, 3).empty());
}

TEST_CASE("NearRanksAreReachedByUnixSockets") {
  MeshOptions options = OnHosts({0, 0, 1});
  CHECK(IsLocal(options, 1));
  CHECK(!IsLocal(options, 2));
  CHECK_EQ(AddressOf(options, 2).host, "10.0.0.1");
  CHECK(SharesMemory(options, 0, 1));
  CHECK(SharesMemory(options, kMessages, 1));
  CHECK(!SharesMemory(options, kControlLane, 1));
  CHECK(!SharesMemory(options, kMessages, 2));
  CHECK(!SharesMemory(options, 0, 2));
  options.local_addresses[1].host = "";  // it listens for the others alone
  CHECK(!IsLocal(options, 1));
  options.hosts.clear();
  CHECK(!IsLocal(options, 1));
}

TEST_CASE("WhatIsKeptIsThere") {
  const MeshOptions options = OnHosts({0, 0, 1, 1}, 2);
  Mesh mesh = Between(options);
  for (const int rank : {1, 2}) {
    for (const int number : Wanted(options, rank)) {
      CHECK(!Has(options, number, rank, &mesh));
      Connection connection;
      connection.socket = Socket(dup(0));
      Keep(options, number, rank, std::move(connection), &mesh);
      CHECK(Has(options, number, rank, &mesh));
    }
  }
  CHECK((mesh.links[2].valid() && !mesh.links[1].valid()));
  CHECK((mesh.lanes[1].row[1].valid() && mesh.lanes[1].column[1].valid()));
}

// The most that a rank has of messages, links, control and lanes.
std::vector<int> MostOfEach(std::vector<int> hosts, int num_lanes) {
  MeshOptions options = OnHosts(std::move(hosts), num_lanes);
  std::vector<int> most(4, 0);
  const int world_size = static_cast<int>(options.addresses.size());
  for (options.rank = 0; options.rank < world_size; ++options.rank) {
    const Mesh mesh = Between(options);
    std::vector<int> counts(4, 0);
    for (int rank = 0; rank < world_size; ++rank) {
      if (rank == options.rank) continue;
      counts[0] += Wants(options, mesh, kMessages, rank);
      counts[1] += Wants(options, mesh, kLink, rank);
      counts[2] += Wants(options, mesh, kControlLane, rank);
      for (int lane = 0; lane < num_lanes; ++lane) counts[3] += Wants(options, mesh, lane, rank);
    }
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], counts[i]);
  }
  return most;
}

std::vector<int> RanksOf(int num_hosts, int num_local) {
  std::vector<int> hosts;
  for (int rank = 0; rank < num_hosts * num_local; ++rank) hosts.push_back(rank / num_local);
  return hosts;
}

// The table of docs/multi_node.md. One rank less on one host, and there is no grid; nor is there
// with a prime number of hosts of one rank.
TEST_CASE("HowManyARankHas") {
  CHECK((MostOfEach(RanksOf(8, 2), 4) == std::vector<int>{15, 14, 5, 32}));
  CHECK((MostOfEach(RanksOf(64, 8), 4) == std::vector<int>{511, 504, 9, 280}));
  std::vector<int> uneven = RanksOf(8, 2);
  uneven.pop_back();
  CHECK((MostOfEach(uneven, 4) == std::vector<int>{14, 14, 5, 56}));
  uneven = RanksOf(64, 8);
  uneven.pop_back();
  CHECK((MostOfEach(uneven, 4) == std::vector<int>{510, 504, 9, 2040}));
  CHECK((MostOfEach(RanksOf(64, 1), 4) == std::vector<int>{63, 63, 5, 56}));
  CHECK((MostOfEach(RanksOf(61, 1), 4) == std::vector<int>{60, 60, 5, 240}));
}

// All of them together, of a few ranks and of many.
TEST_CASE("RingsStaySmall") {
  CHECK_EQ(RingBytes(OnHosts({0, 0})), size_t{1} << 20);
  CHECK_EQ(RingBytes(OnHosts({0, 0}, 16)), size_t{1} << 19);
  CHECK_EQ(RingBytes(OnHosts({0, 0, 0, 0, 0})), size_t{1} << 18);
  CHECK_EQ(RingBytes(OnHosts(std::vector<int>(64, 0), 64)), size_t{64} << 10);
}

}  // namespace
}  // namespace tf_libra::connection_ids_test
