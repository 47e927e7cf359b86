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
// Returns true and fills `rewritten` if the graph changes; otherwise leaves `rewritten` unchanged.
// `report` receives the changes, the omissions and their reasons in both cases.
//
// 0. An all-reduce of a tensor that the plan splits becomes one of each part (split_tensors.h). The
//    later steps treat parts as tensors.
// 1. All-reduces in another branch or loop than the rest of their step are fused there, with those
//    of their group that are in the same.
// 2. Copies of the step in one graph are distinguished: all-reduces of the same tensor of the same
//    training function in the same branch or loop body must follow each other, and the i-th of each
//    tensor belongs to copy i. If that is ambiguous, nothing is changed.
// 3. Direct control edges between all-reduces of the same copy, or if one of both is not fused in
//    the same branch or loop, are dropped: automatic control dependencies add them to order
//    stateful ops. Every other path between two all-reduces is a dependency, even through a single
//    NoOp.
// 4. Group by group, members with the same dtype, device, reduction and function are merged;
//    members with a path between them are not, so a group may become several nodes. Paths through
//    nodes that were merged before count.
// 5. Control edges put all all-reduces into one order, including those that are not fused, because
//    engines match them across ranks by the order in which they start (OrderAllReduces).
// 6. With `after_backward`, every node waits for all producers of gradients of its copy, through
//    one NoOp, except for those that depend on one of its all-reduces.
//
// Data consumers read output i of the merged node; other edges, in and out, move to it. A fetched
// all-reduce, or a target, is replaced by a node of its name. Afterwards the graph has no pending
// all-reduce of the plan, so a second run changes nothing.
//
// The time grows with the size of the graph, and not with the square of the number of copies.
bool FuseGroups(const RegisteredPlan& plan, const Rewriter& rewriter, const NodesToKeep& keep,
                const tensorflow::GraphDef& graph, tensorflow::GraphDef* rewritten,
                GraphReport* report);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LIBRA_REWRITE_H_
