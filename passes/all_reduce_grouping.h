// Grouping of all-reduces into fused nodes, and the order in which they start.

#ifndef TF_LIBRA_PASSES_ALL_REDUCE_GROUPING_H_
#define TF_LIBRA_PASSES_ALL_REDUCE_GROUPING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/contracted_dag.h"
#include "passes/indexed_graph.h"
#include "passes/pending_all_reduces.h"
#include "passes/rewrite_report.h"

namespace tf_libra {

// A fused node that the pass will write.
struct Fusion {
  int group;
  int copy;
  std::string name;
  std::vector<const PlannedAllReduce*> members;  // in plan order, all of one kind
  std::vector<std::string> predecessors;         // written nodes that it waits for
};

// A NoOp that runs when all gradients of a copy have been produced.
struct Barrier {
  std::string name;
  std::string device;
  std::vector<int> producers;
};

// Legal and unused names for new nodes.
class NodeNames {
 public:
  NodeNames(const IndexedGraph& graph, const std::string& plan_id);

  // Such as "tf_libra/PLAN/group_3_copy_1_part_2".
  std::string Make(const std::string& what, int copy, int part = 0) const;

 private:
  const IndexedGraph& graph_;
  std::string prefix_;
};

// Splits each group of each copy into sets that can be one node each, and merges these in `dag`.
// The result is ordered by copy and by group.
std::vector<Fusion> DecideFusions(const IndexedGraph& graph,
                                  const std::vector<PlannedAllReduce>& marked, ContractedDag* dag,
                                  const NodeNames& names, std::vector<Skipped>* skipped);

// Control edges to add to existing nodes: names of predecessors, by the number of the successor.
using ControlEdges = std::map<int, std::vector<std::string>>;

// Puts all all-reduces into one order, including those that are not fused, and sorts `fusions` by
// it: engines match all-reduces across ranks by the order in which they start.
//
// - The order is that of the plan as far as the graph allows it.
// - All-reduces that are not fused, and those fused out of step in another branch or loop, come
//   last, where they delay nothing. If the step depends on one, it comes before the first
//   all-reduce that is further from the graph's inputs, by the longest path.
//
// Control edges chain the all-reduces of one context. One in a branch or loop is ordered against
// those outside by an edge in their common context: from the earlier all-reduce, or from the end of
// its branch or loop, to the later one, or to a node for which the later one always waits. Two
// branches of one conditional have no order. Returns nullopt if such an edge does not exist, since
// ranks might then start all-reduces in different orders. Between contexts there may be an edge for
// each pair, since a skipped branch transmits no order.
//
// `dropped` are the edges that `dag` was built without.
std::optional<ControlEdges> OrderAllReduces(const IndexedGraph& graph,
                                            const std::vector<int>& staying,
                                            const DroppedEdge& dropped, ContractedDag* dag,
                                            std::vector<Fusion>* fusions,
                                            std::vector<Skipped>* skipped);

// Makes all nodes of each copy wait for all gradients of that copy.
std::vector<Barrier> WaitForBackward(const IndexedGraph& graph, ContractedDag* dag,
                                     const NodeNames& names, std::vector<Fusion>* fusions,
                                     std::vector<Skipped>* skipped);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_ALL_REDUCE_GROUPING_H_
