// Checks of every condition around all-reduces: ranks compare it before they follow it.
//
// If a rank skipped or repeated an all-reduce under a condition of its own, its later gradients
// would be added to earlier gradients of the other ranks. So each predicate that decides whether,
// or how often, an all-reduce runs is routed through a LibraCheckBranch, which fails on all ranks
// if they differ. If all predicates around an all-reduce agree, all ranks run it equally often, in
// the same order: checks need no other guard than the predicates around them, which are checked,
// too.
//
// No check is added for
// - a predicate that every rank computes from the same numbers: constants and results of
//   all-reduces, such as the counter of a loop with a fixed number of iterations;
// - a conditional whose branches perform the same all-reduces.

#ifndef TF_LIBRA_PASSES_BRANCH_CHECKS_H_
#define TF_LIBRA_PASSES_BRANCH_CHECKS_H_

#include <functional>
#include <string>
#include <vector>

#include "passes/control_flow_contexts.h"
#include "passes/indexed_graph.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_libra {

struct BranchCheck {
  Fanin predicate;        // the checked predicate; for a loop, the LoopCond's input
  Fanin followed;         // the node that control flow reads: the predicate, or the LoopCond
  std::string condition;  // for messages: "the condition 'cond' (of 'IsFinite')"
  std::string tensor;     // a tensor whose all-reduce depends on the predicate
  std::string function;   // the training function of `tensor`
  std::string key;        // unique in the graph, and equal on every rank
  int all_reduce = -1;    // the node that reduces `tensor`
  bool is_loop = false;
};

// Returns the checks that `graph` needs, by key. `is_stateful` returns whether equal inputs of an
// op may give unequal outputs.
std::vector<BranchCheck> FindBranchChecks(
    const IndexedGraph& graph, const std::function<bool(const tensorflow::NodeDef&)>& is_stateful);

// Adds the checks to a graph before it is executed.
absl::Status AddBranchChecks(tensorflow::Graph* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_BRANCH_CHECKS_H_
