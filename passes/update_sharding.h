// Updates at the owner: each rank updates the parts of weights and slots that it owns (ZeRO-1,
// arXiv 2004.13336).

#ifndef TF_LIBRA_PASSES_UPDATE_SHARDING_H_
#define TF_LIBRA_PASSES_UPDATE_SHARDING_H_

#include <unordered_map>
#include <vector>

#include "passes/graph_writer.h"
#include "passes/owned_updates.h"
#include "passes/plan_registry.h"
#include "passes/rewrite_report.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Nodes of sharded updates, by position.
struct ShardedNodes {
  std::vector<int> parts;               // what computes owned parts
  std::unordered_map<int, int> copies;  // by assignment, the copy of the step that it belongs to
};

// Rewrites the all-reduces of `groups` whose tensors are all in `sharding`:
//
// - The all-reduce becomes a reduce-scatter: it outputs the owned parts as vectors.
// - Element-wise ops that lead from it to assignments, perhaps in and out of branches of
//   conditionals, compute the owned part. Reshapes become Identity. Other operands pass through
//   LibraOwnedPart, which keeps scalars.
// - Sums of all elements, as of norms, sum the owned part. One LibraSumPartials after all
//   all-reduces adds them over all ranks, and another those that depend on them. It runs whatever
//   branches ranks take.
// - Reads of slots become LibraReadOwned, and assignments LibraAssignOwned. They may be in a branch
//   of a conditional. The gather is not: it runs in every step, whatever branch a rank takes.
// - LibraGatherOwned, one per group of `gathers` and dtype, makes weights whole again; without
//   `gathers`, one per all-reduce. All nodes that waited for the assignment wait for the gather.
//   Ranks have to agree on one order: gathers run after all all-reduces of their copy of the step
//   and before those of the next copy, overlapping its forward pass.
//
// An all-reduce stays as it is if any other op reads its result, a slot, or a value on the way.
// Sets `is_sharded` of the rewritten groups, and `whole` of the others. Returns what it
// has rewritten.
ShardedNodes ShardUpdates(const UpdateSharding& sharding, const std::vector<GatherGroup>& gathers,
                          const NodesToKeep& keep, GraphReport* report,
                          tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_UPDATE_SHARDING_H_
