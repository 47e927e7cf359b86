// The all-reduces in a graph that a plan is about, and the paths between them.

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

// Whether the node is an all-reduce of one gradient that no plan was applied to.
bool IsMarked(const tensorflow::NodeDef& node);
// Whether the node is an all-reduce that the pass wrote, of whatever library.
bool IsWritten(const tensorflow::NodeDef& node);

// At which byte of its tensor begins the part that a marked all-reduce is of; kWholeTensor where it
// is of the whole.
int64_t PartStart(const tensorflow::NodeDef& node);

// True if `graph` has an all-reduce that no plan was applied to.
bool HasMarkedAllReduce(const tensorflow::GraphDef& graph);

// What is equal within a fused node.
struct Kind {
  tensorflow::DataType dtype;
  std::string device;  // where the fused node runs
  std::string reduction;
  std::string function;  // training function that it belongs to

  bool operator<(const Kind& other) const;
};
std::string ToString(const Kind& kind);

// An all-reduce of one gradient, or of a part of one, that the plan knows.
struct Marked {
  int node;
  std::string tensor;
  int group;
  int slot;  // position of the tensor, or part, in the plan
  Kind kind;
  int copy = 0;
  bool aside = false;  // in another branch or loop than most of its step
};

// All all-reduces, whether a plan is about them or not, by name.
std::vector<int> FindAllReduces(const IndexedGraph& graph);

// Returns the all-reduces that `plan` is about, in topological order; `skipped` receives the
// others, with the reason. Those in `fed`, and those that `rewriter` rejects, are left alone.
std::vector<Marked> FindMarked(const IndexedGraph& graph, const RegisteredPlan& plan,
                               const Rewriter& rewriter, const std::unordered_set<std::string>& fed,
                               std::vector<Skipped>* skipped);

// Says which tensors of the plan the graph lacks, and which a copy of the step lacks that others in
// the same branch or loop have.
void ReportMissing(const IndexedGraph& graph, const RegisteredPlan& plan,
                   const std::vector<Marked>& marked, std::vector<Skipped>* skipped);

// For every node, the number of nodes on the longest path that leads to it. The same on all ranks,
// as numbers of nodes need not be.
std::vector<int> Depths(const IndexedGraph& graph);

// For every node, whether it lies on a path between two of `all_reduces`, ends included.
std::vector<bool> NodesBetween(const IndexedGraph& graph, const std::vector<int>& all_reduces);

// Whether an edge, from a fanin to a node, is to be left out.
using DroppedEdge = std::function<bool(const Fanin& from, int to)>;

// The part of the graph that paths between all-reduces run through, without the edges that
// `dropped` names.
ContractedDag PathsBetween(const IndexedGraph& graph, const std::vector<bool>& between,
                           const DroppedEdge& dropped);

// Whether all of `nodes` run under the same conditions and in the same loop.
bool ShareContext(const IndexedGraph& graph, const std::vector<int>& nodes);

// Tells in `marked` what runs in another branch or loop than most of its step. Contexts that share
// tensors are copies; of those that share none, the one with most tensors is the step, and what is
// in the others is aside: it is fused there, and belongs to no place among the groups of the step.
void SetAside(const IndexedGraph& graph, std::vector<Marked>* marked);

// Numbers the copies of the step, of each training function and each context its own; what is aside
// comes last. The numbers do not depend on the order of the nodes in the graph. False, with the
// reason, if copies cannot be distinguished. O((nodes + edges) * tensors), whatever the number of
// copies.
bool FindCopies(const IndexedGraph& graph, const std::vector<bool>& between,
                std::vector<Marked>* marked, std::string* reason);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_PENDING_ALL_REDUCES_H_
