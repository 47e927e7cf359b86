// A directed acyclic graph whose nodes can be merged, with exact reachability.

#ifndef TF_LIBRA_PASSES_CONTRACTED_DAG_H_
#define TF_LIBRA_PASSES_CONTRACTED_DAG_H_

#include <vector>

namespace tf_libra {

// Nodes are 0, 1, ...; a node that was merged stands for the whole it belongs to. Nothing here
// keeps a caller from closing a cycle: ask Levels before Contract, and Reaches before AddEdge.
class ContractedDag {
 public:
  explicit ContractedDag(int num_nodes);

  // A new node without edges.
  int AddNode();
  void AddEdge(int from, int to);

  // True if a path of at least one edge leads from `from` to `to`. O(edges).
  bool Reaches(int from, int to);
  // For every node: whether it is one of `from` or a path leads to it from there. O(edges).
  std::vector<bool> ReachableFrom(const std::vector<int>& from);

  // For each of `members`, the largest number of other members on a path that leads to it. Members
  // of one level have no path between them, so merging a level closes no cycle; nor does merging
  // all levels, each into one node. O(edges).
  std::vector<int> Levels(const std::vector<int>& members);
  // Merges `members`, none of which was merged before, into one node.
  void Contract(const std::vector<int>& members);

  // `nodes` in a topological order, which is the order they are given in as far as edges allow:
  // the next is always the first of those that wait for nothing more.
  std::vector<int> OrderOf(const std::vector<int>& nodes);

 private:
  // What is reachable from `from`, those included, each before its successors.
  std::vector<int> TopologicalOrderFrom(const std::vector<int>& from);

  std::vector<std::vector<int>> successors_;
  std::vector<int> whole_;  // the node that stands for the one it was merged into
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTRACTED_DAG_H_
