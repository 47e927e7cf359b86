// Writer of the graph in which all-reduces are fused.

#ifndef TF_LIBRA_PASSES_GRAPH_WRITER_H_
#define TF_LIBRA_PASSES_GRAPH_WRITER_H_

#include <string>
#include <unordered_set>
#include <vector>

#include "passes/all_reduce_grouping.h"
#include "passes/indexed_graph.h"
#include "passes/pending_all_reduces.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/rewriter.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Names of nodes that the rewrite must keep.
struct NodesToKeep {
  std::unordered_set<std::string> fetched;  // must exist afterwards, with the same output
  std::unordered_set<std::string> targets;  // must exist afterwards, and run when they ran before
  std::unordered_set<std::string> fed;      // must not change
};

// Decisions about a graph.
struct Decisions {
  std::vector<Fusion> fusions;    // replace their members
  std::vector<Barrier> barriers;  // new nodes
  ControlEdges waits;
  DroppedEdge dropped;
};

struct WrittenGraph {
  tensorflow::GraphDef def;
  std::vector<ReportedGroup> groups;
};

// Applies the decisions and rewires the other nodes. A fused all-reduce is replaced by an Identity
// of its name if it is fetched, and by a NoOp if it is a target, so no tensor is copied that the
// caller did not request. Both are on the device of the fused node.
WrittenGraph WriteGraph(const IndexedGraph& graph, const RegisteredPlan& plan,
                        const Rewriter& rewriter, const NodesToKeep& keep,
                        const Decisions& decisions);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_GRAPH_WRITER_H_
