// Rewrite that merges the all-reduces of single gradients into the tensor groups of a plan.

#ifndef TF_LIBRA_PASSES_LIBRA_REWRITE_H_
#define TF_LIBRA_PASSES_LIBRA_REWRITE_H_

#include "passes/graph_writer.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "passes/rewriter.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Merges the pending all-reduces in `graph` (LibraAllReduce, N=1, not yet in a plan) by `plan`.
//
// Returns true and fills `rewritten` if there was something to do; otherwise `rewritten` is not
// touched. Either way `report` says what was done and what was left out, and why.
//
// 0. An all-reduce of a tensor that the plan cuts becomes one of each part (split_tensors.h); what
//    follows knows no difference between a part and a tensor.
// 1. All-reduces in another branch or loop than the rest of their step are fused there, with those
//    of their group that are in the same.
// 2. Copies of the step in one graph are distinguished: all-reduces of the same tensor of the same
//    training function in the same branch or loop body have to lie one after the other, and the
//    i-th of each tensor makes up copy i. Where that leaves a doubt, nothing is changed.
// 3. Control edges straight from one pending all-reduce to another of the same copy, or from or to
//    one in the same branch or loop that stays, are dropped: they are how automatic control
//    dependencies order stateful ops. Every other path between two of them is a dependency, even
//    one that passes nothing but a NoOp.
// 4. Group by group, members with the same dtype, device, reduction and function are merged;
//    members with a path between them are not, and a group that needs it becomes several nodes.
//    Paths through what was merged before count.
// 5. All all-reduces are put into one order by control edges, those that stay included, because
//    engines match them across ranks by the order in which they start (OrderAllReduces).
// 6. With `after_backward`, every node waits for all producers of gradients of its copy, through
//    one NoOp, except for those that depend on one of its all-reduces.
//
// Data consumers read output i of the merged node; other edges, in and out, move to it. An
// all-reduce that is fetched, or a target, leaves a node under its name. The graph has no marked
// all-reduce of the plan afterwards, so a second run finds nothing to do.
//
// Time grows with the size of the graph, and not with the square of the number of copies.
bool FuseGroups(const RegisteredPlan& plan, const Rewriter& rewriter, const NodesToKeep& keep,
                const tensorflow::GraphDef& graph, tensorflow::GraphDef* rewritten,
                GraphReport* report);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LIBRA_REWRITE_H_
