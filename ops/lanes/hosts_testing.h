// Helpers for tests of ranks on several hosts: meshes with TCP between hosts, and memory within.
#ifndef TF_LIBRA_OPS_LANES_HOSTS_TESTING_H_
#define TF_LIBRA_OPS_LANES_HOSTS_TESTING_H_

#include <utility>
#include <vector>

#include "ops/lanes/mesh.h"
#include "ops/lanes/testing.h"

namespace tf_libra {
namespace testing {

// What ranks on these hosts need to meet: TCP between them, Unix sockets and
// memory within.
struct HostsMeeting : Meeting {
  std::vector<Socket> local_listeners;

  HostsMeeting(const std::vector<int>& hosts, int num_lanes)
      : Meeting(static_cast<int>(hosts.size()), num_lanes), local_listeners(hosts.size()) {
    options.hosts = hosts;
    options.share_memory = true;
    options.local_addresses.resize(hosts.size());
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      CHECK_EQ(Listen(kUnixHost, 0, &local_listeners[rank], &options.local_addresses[rank]),
               testing::IsOk());
    }
  }

  Status Connect(int rank, Mesh* mesh) {
    MeshOptions mine = options;
    mine.rank = rank;
    return ConnectMesh(mine, std::move(listeners[rank]), mesh, std::move(local_listeners[rank]));
  }
};

inline std::vector<Mesh> ConnectHosts(const std::vector<int>& hosts, int num_lanes) {
  SetRendezvousHost("127.0.0.1",
                    false);  // else hosts would share memory after a test that has ranks do so
  HostsMeeting meeting(hosts, num_lanes);
  std::vector<Mesh> meshes(hosts.size());
  OnEveryRank(static_cast<int>(hosts.size()),
              [&](int rank) { CHECK_EQ(meeting.Connect(rank, &meshes[rank]), testing::IsOk()); });
  return meshes;
}

// `num_local` ranks on each of `num_hosts`, one host after the other, or in
// turns.
inline std::vector<int> Hosts(int num_hosts, int num_local, bool in_turns = false) {
  std::vector<int> hosts;
  for (int rank = 0; rank < num_hosts * num_local; ++rank) {
    hosts.push_back(in_turns ? rank % num_hosts : rank / num_local);
  }
  return hosts;
}

// Numbers of hosts with one rank each; they need not begin at 0.
inline std::vector<int> HostsOfOneRank(int num_ranks) {
  std::vector<int> hosts;
  for (int rank = num_ranks; rank > 0; --rank) hosts.push_back(3 * rank);
  return hosts;
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_HOSTS_TESTING_H_
