// Merges the all-reduces of single gradients into the tensor groups of a plan.

#ifndef TF_LIBRA_PASSES_FUSE_GROUPS_H_
#define TF_LIBRA_PASSES_FUSE_GROUPS_H_

#include <string>
#include <unordered_set>

#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/rewriter.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Names of nodes that are not free to go.
struct NodesToKeep {
  std::unordered_set<std::string> fetched;  // must exist afterwards, with the same output
  std::unordered_set<std::string> fed;      // are left alone
};

// Merges the marked all-reduces in `graph` (LibraAllReduce, N=1, not yet in a plan) by `plan`.
//
// Returns true and fills `rewritten` if there was something to do; otherwise `rewritten` is not
// touched. Either way `report` says what was done and what was left out, and why.
//
// 1. Copies of the step in one graph are told apart: all-reduces of the same tensor in the same
//    branch or loop body have to lie one behind the other, and the i-th of each tensor makes up
//    copy i. Where that leaves a doubt, or one branch's all-reduces depend on another's, nothing is
//    changed.
// 2. Control edges straight from one marked all-reduce to another of the same copy are dropped:
//    they are how automatic control dependencies order stateful ops. Every other path between two
//    of them is a dependency, even one that passes nothing but a NoOp.
// 3. Group by group, members with the same dtype, device and reduction are merged; members with a
//    path between them are not, and a group that needs it becomes several nodes. Paths through
//    what was merged before count.
// 4. All all-reduces are put into one chain by control edges, those that stay included, because
//    engines match them across ranks by the order in which they start. The order is that of the
//    plan wherever no dependency forbids it.
// 5. With `after_backward`, every node waits for all producers of gradients of its copy, through
//    one NoOp, except for those that depend on one of its all-reduces.
//
// Data consumers read output i of the merged node; other edges, in and out, move to it. A fetched
// all-reduce leaves an Identity under its name. The graph has no marked all-reduce of the plan
// afterwards, so a second run finds nothing to do.
bool FuseGroups(const RegisteredPlan& plan, const Rewriter& rewriter, const NodesToKeep& keep,
                const tensorflow::GraphDef& graph, tensorflow::GraphDef* rewritten,
                GraphReport* report);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_FUSE_GROUPS_H_
