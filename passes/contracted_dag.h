// Directed acyclic graph whose nodes can be merged, with exact reachability.

#ifndef TF_LIBRA_PASSES_CONTRACTED_DAG_H_
#define TF_LIBRA_PASSES_CONTRACTED_DAG_H_

#include <vector>

namespace tf_libra {

// Nodes are 0, 1, ...; a merged node stands for the node that it was merged into. The class does
// not check for cycles: the caller uses Levels before Contract, and Reaches before AddEdge.
//
// The class maintains a topological order while nodes are merged and edges added, so a search
// between nodes visits only the window of the order that they span. Changes of one copy of a step
// do not visit the other copies.
class ContractedDag {
 public:
  // Creates the nodes 0, 1, ..., `order.size()` - 1 without edges. Adding an edge that leads
  // forward in `order` takes constant time.
  explicit ContractedDag(const std::vector<int>& order);

  void AddEdge(int from, int to);
  // Adds an edge from each of `from` to `to`. O(window).
  void AddEdges(const std::vector<int>& from, int to);

  // True if a path of at least one edge leads from `from` to `to`. O(window).
  bool Reaches(int from, int to) const;
  // Returns, for each of `targets`, whether it is in `from` or a path leads from there. O(window).
  std::vector<bool> ReachedFrom(const std::vector<int>& from,
                                const std::vector<int>& targets) const;

  // Returns, for each of `members`, the largest number of other members on a path that leads to it.
  // Members of one level have no path between them, so merging a level closes no cycle. Merging all
  // levels, each into one node, closes none either. O(window).
  std::vector<int> Levels(const std::vector<int>& members) const;
  // Merges `members`, none of which was merged before, into one node. O(window).
  void Contract(const std::vector<int>& members);

  // Returns `nodes` in a topological order that keeps their order as far as edges allow: the next
  // node is always the first one without unmet dependencies. O(edges).
  std::vector<int> OrderOf(const std::vector<int>& nodes) const;

  // Returns, for each node, the largest index in `nodes` of the node itself or of one that leads to
  // it; -1 if there is none. O(edges).
  std::vector<int> LastLeadingTo(const std::vector<int>& nodes) const;

 private:
  // Returns the positions, ascending, of the representatives of `from` and of nodes reachable from
  // there, up to `last`.
  std::vector<int> PositionsFrom(const std::vector<int>& from, int last) const;
  // Among the nodes between positions `first` and `last`, moves `from` and the nodes reachable from
  // there behind the others.
  void MoveBack(const std::vector<int>& from, int first, int last);

  std::vector<std::vector<int>> successors_;
  std::vector<int> representative_;  // the node that each node was merged into
  std::vector<int> position_;        // of a representative, in a topological order
  std::vector<int> node_at_;         // by position; kNoNode if a merged node was there
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTRACTED_DAG_H_
