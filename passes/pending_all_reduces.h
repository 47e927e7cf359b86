// All-reduces of a graph that belong to a plan, and the paths between them.

#ifndef TF_LIBRA_PASSES_PENDING_ALL_REDUCES_H_
#define TF_LIBRA_PASSES_PENDING_ALL_REDUCES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "passes/contracted_dag.h"
#include "passes/indexed_graph.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/rewriter.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_libra {

// Returns whether the node is an all-reduce of one gradient that no plan was applied to.
bool IsPendingAllReduce(const tensorflow::NodeDef& node);
// Returns whether the node is an all-reduce that the pass wrote, of whatever library.
bool IsWritten(const tensorflow::NodeDef& node);

// The first byte, within its tensor, of the part that a pending all-reduce reduces; kWholeTensor if
// it reduces the whole tensor.
int64_t PartStart(const tensorflow::NodeDef& node);

// Returns whether each rank has rows of its own of the tensor that a pending all-reduce reduces.
bool HasRowsOfRanks(const tensorflow::NodeDef& node);

// True if `graph` has an all-reduce that no plan was applied to.
bool HasPendingAllReduce(const tensorflow::GraphDef& graph);

// Properties that all members of a fused node share.
struct Kind {
  tensorflow::DataType dtype;
  std::string device;  // where the fused node runs
  std::string reduction;
  std::string function;   // training function that it belongs to
  std::string rows = {};  // the tensor, if each rank has rows of its own: it is fused with no other

  bool operator<(const Kind& other) const;
};
std::string ToString(const Kind& kind);

// An all-reduce of one gradient, or of a part of one, that the plan knows.
struct PlannedAllReduce {
  int node;
  std::string tensor;
  int group;
  int slot;  // position of the tensor, or part, in the plan
  Kind kind;
  int copy = 0;
  bool out_of_step = false;  // in another branch or loop than most of its step
};

// Returns all all-reduces of a graph, in a plan or not, ordered by name.
std::vector<int> FindAllReduces(const IndexedGraph& graph);

// Returns the all-reduces that `plan` names, in topological order; `skipped` receives the others,
// with the reason. All-reduces in `fed`, and those that `rewriter` rejects, are skipped.
std::vector<PlannedAllReduce> FindPlannedAllReduces(const IndexedGraph& graph,
                                                    const RegisteredPlan& plan,
                                                    const Rewriter& rewriter,
                                                    const std::unordered_set<std::string>& fed,
                                                    std::vector<Skipped>* skipped);

// Reports tensors of the plan that the graph lacks, and tensors that one copy of the step lacks and
// other copies in the same branch or loop have.
void ReportMissing(const IndexedGraph& graph, const RegisteredPlan& plan,
                   const std::vector<PlannedAllReduce>& marked, std::vector<Skipped>* skipped);

// Returns true if an edge from a fanin to a node is to be ignored.
using DroppedEdge = std::function<bool(const Fanin& from, int to)>;

// For every node, the number of nodes on the longest path that leads to it, without the edges that
// `dropped` names. The same on all ranks, as numbers of nodes need not be.
std::vector<int> Depths(const IndexedGraph& graph, const DroppedEdge& dropped);

// For every node, whether it lies on a path between two of `all_reduces`, ends included.
std::vector<bool> NodesBetween(const IndexedGraph& graph, const std::vector<int>& all_reduces);

// The part of the graph that paths between all-reduces run through, without the edges that
// `dropped` names.
ContractedDag PathsBetween(const IndexedGraph& graph, const std::vector<bool>& between,
                           const DroppedEdge& dropped);

// Returns whether all of `nodes` run under the same conditions and in the same loop.
bool ShareContext(const IndexedGraph& graph, const std::vector<int>& nodes);

// Sets `out_of_step` for all-reduces in another branch or loop than most of their step. Contexts
// that share tensors are copies. Of contexts without shared tensors, the one with most tensors is
// the step; all-reduces of the others are fused in their own context, outside the order of the
// groups.
void FindOutOfStep(const IndexedGraph& graph, std::vector<PlannedAllReduce>* marked);

// Numbers the copies of the step, separately for each training function and context; all-reduces
// out of step come last. The numbers do not depend on the order of the nodes in the graph. Returns
// false, with the reason, if copies cannot be distinguished. O((nodes + edges) * tensors), whatever
// the number of copies.
bool FindCopies(const IndexedGraph& graph, const std::vector<bool>& between,
                std::vector<PlannedAllReduce>* marked, std::string* reason);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_PENDING_ALL_REDUCES_H_
