// Control edges that order all-reduces of different branches and loops.

#ifndef TF_LIBRA_PASSES_CONTEXT_PATHS_H_
#define TF_LIBRA_PASSES_CONTEXT_PATHS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "passes/contracted_dag.h"
#include "passes/indexed_graph.h"
#include "passes/pending_all_reduces.h"

namespace tf_libra {

// A control edge; `to` is kNone when the graph has the order without one.
struct OrderingEdge {
  static constexpr int kNone = -1;
  int from;
  int to;
};

// Paths of a graph in which each fusion is one node and in which edges are added. All-reduces are
// named by their positions in `order`, a topological order of `dag`; each has one node there.
//
// A search ends at the first suitable node, and its result is reused for the next pair, so the work
// for a pair does not depend on the size of the graph. The exception is the search for all nodes
// for which an all-reduce waits: at most one per all-reduce and per context that it shares with
// others.
class ContextPaths {
 public:
  // `fused` are the nodes of each fusion; `dropped` are the edges that `dag` was built without.
  // All arguments except `order` must outlive this object.
  ContextPaths(const IndexedGraph& graph, const DroppedEdge& dropped, const ContractedDag& dag,
               const std::vector<std::vector<int>>& fused, std::vector<int> order);

  // Returns an edge in the common context that makes the all-reduce at `later` follow that at
  // `earlier` whenever both run: from `earlier`, or from the end of its branch or loop, to `later`,
  // or to a node for which `later` always waits. Returns nullopt if there is none. `later` must not
  // decrease from call to call.
  std::optional<OrderingEdge> Find(size_t earlier, size_t later);

  // Records an edge that `dag` has as well. No all-reduce at or after the `later` of the last call
  // may lead to `from`.
  void Add(int from, int to);

  // Number of nodes that searches have visited.
  int64_t num_visited() const { return num_visited_; }

 private:
  // A breadth-first search for the nodes at which branches and loops end into one context.
  struct EndSearch {
    std::unordered_set<int> seen;
    std::vector<int> pending;
    size_t next = 0;
    std::vector<int> ends;
  };

  int ContextOf(size_t position) const { return graph_.contexts[order_[position]]; }
  int CommonContext(int a, int b);
  void LowerFirst(int node, int first);
  int EndBehind(size_t earlier, int context, size_t index);
  void VisitFanouts(int node, const Conditions& known, EndSearch* search);
  bool WaitsFor(size_t later, int node, int context);
  void Extend(int node, int context, std::vector<bool>* waited_for);
  int FirstThatCanWait(size_t earlier, size_t later, int end, int context);
  bool IsTaken(int fanin, const Conditions& known) const;

  // Calls `visit` for each node for which `node` waits through an edge that `counts`.
  template <typename Counts, typename Visit>
  void VisitFanins(int node, Counts counts, Visit visit) const;
  // Calls `visit` for each node for which `node` always waits if nodes of `context` run.
  template <typename Visit>
  void VisitCertainFanins(int node, int context, Visit visit) const;

  const IndexedGraph& graph_;
  const DroppedEdge& dropped_;
  const ContractedDag& dag_;
  const std::vector<std::vector<int>>& fused_;
  const std::vector<int> order_;
  const std::vector<int> last_;  // position of the last all-reduce that leads to a node
  std::vector<int> first_;       // position of the first all-reduce that a node leads to
  std::vector<int> fusion_of_;   // index in `fused_`
  std::vector<bool> is_choice_, is_exit_, is_switch_;
  std::vector<std::vector<Fanin>> fanouts_;  // made for the first search; with back edges of loops
  std::unordered_map<int, std::vector<int>> added_;   // to -> from
  std::map<Conditions, int> context_of_;              // number of a set of conditions
  std::map<std::pair<int, int>, int> common_;         // two contexts -> their common context
  std::map<std::pair<size_t, int>, EndSearch> ends_;  // (position, context)
  size_t later_ = 0;                                  // of the last call
  std::map<int, std::vector<bool>> waited_for_;       // context -> nodes for which `later_` waits
  int64_t num_visited_ = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_CONTEXT_PATHS_H_
