// Directed acyclic graph whose nodes can be merged, with exact reachability.

#ifndef TF_LIBRA_PASSES_CONTRACTED_DAG_H_
#define TF_LIBRA_PASSES_CONTRACTED_DAG_H_

#include <vector>

namespace tf_libra {

// Nodes are 0, 1, ...; a merged node stands for the node that it was merged into. The class does
// not check for cycles: the caller uses Levels before Contract, and Reaches before AddEdge.
//
// A topological order is kept while nodes are merged and edges added, so that a search between
// nodes looks at no more than the window of the order that they span: what is done to one copy of a
// step does not walk through all others.
class ContractedDag {
 public:
  // With the nodes 0, 1, ..., `order.size()` - 1, and no edges yet. Edges that are added later and
  // lead forward in `order` cost nothing.
  explicit ContractedDag(const std::vector<int>& order);

  void AddEdge(int from, int to);
  // From all of `from` to `to`, in one go. O(window).
  void AddEdges(const std::vector<int>& from, int to);

  // True if a path of at least one edge leads from `from` to `to`. O(window).
  bool Reaches(int from, int to) const;
  // For each of `targets`: whether it is one of `from` or a path leads to it from there. O(window).
  std::vector<bool> ReachedFrom(const std::vector<int>& from,
                                const std::vector<int>& targets) const;

  // For each of `members`, the largest number of other members on a path that leads to it. Members
  // of one level have no path between them, so merging a level closes no cycle; nor does merging
  // all levels, each into one node. O(window).
  std::vector<int> Levels(const std::vector<int>& members) const;
  // Merges `members`, none of which was merged before, into one node. O(window).
  void Contract(const std::vector<int>& members);

  // `nodes` in a topological order, which is the order they are given in as far as edges allow:
  // the next is always the first of those that wait for nothing more. O(edges).
  std::vector<int> OrderOf(const std::vector<int>& nodes) const;

  // For each node, the index of the last of `nodes` that is it or leads to it; -1 if none does.
  // O(edges).
  std::vector<int> LastLeadingTo(const std::vector<int>& nodes) const;

 private:
  // The representatives of `from` and what can be reached from there up to `last`, by place;
  // ascending.
  std::vector<int> PlacesFrom(const std::vector<int>& from, int last) const;
  // Of what stands between places `first` and `last`, moves `from` and what is reached from there
  // behind the rest.
  void MoveBack(const std::vector<int>& from, int first, int last);

  std::vector<std::vector<int>> successors_;
  std::vector<int> representative_;  // the node that each node was merged into
  std::vector<int> place_;           // of a representative, in a topological order
  std::vector<int> node_at_;         // by place; kNone where a merged node was
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTRACTED_DAG_H_
