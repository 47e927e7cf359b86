// Tree over which ranks send each other control messages (control_plane.h). Every rank connects to
// its neighbours alone, and a message reaches all ranks in O(log N) hops.
#ifndef TF_LIBRA_OPS_LANES_TREE_H_
#define TF_LIBRA_OPS_LANES_TREE_H_

#include <vector>

namespace tf_libra {

// The same on all ranks, by their numbers and hosts. The first rank of each host stands for it in a
// tree of hosts, and is the root of a tree of its host's ranks: so two hosts have at most one
// connection.
class Tree {
 public:
  // Children of a rank among hosts, and as many within its host.
  static constexpr int kBranches = 4;

  Tree() = default;
  // `hosts[rank]`: a number for the host of each rank; empty: nothing is known of hosts.
  Tree(int rank, int world_size, const std::vector<int>& hosts);

  int rank() const { return rank_; }
  int world_size() const { return static_cast<int>(before_.size()); }
  const std::vector<int>& neighbours() const { return neighbours_; }
  bool IsNeighbour(int rank) const { return rank != rank_ && before_[rank] == rank_; }
  // On the way to another rank: the first of it, and the one before it.
  int Toward(int rank) const { return toward_[rank]; }
  int Before(int rank) const { return before_[rank]; }
  // All of the way, the other rank included, without this one.
  std::vector<int> Way(int rank) const;

 private:
  int rank_ = 0;
  std::vector<int> neighbours_;
  std::vector<int> toward_, before_;  // [rank]; own entries: the own rank
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_TREE_H_
