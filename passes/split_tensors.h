// Split of a gradient's all-reduce whose tensor a plan puts into several groups.

#ifndef TF_LIBRA_PASSES_SPLIT_TENSORS_H_
#define TF_LIBRA_PASSES_SPLIT_TENSORS_H_

#include <string>
#include <unordered_set>

#include "passes/plan_registry.h"
#include "passes/rewriter.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Returns whether `plan` has a tensor in parts that `rewriter` can all-reduce.
bool CutsTensors(const RegisteredPlan& plan, const Rewriter& rewriter);

// Replaces each pending all-reduce X of a tensor that `plan` splits by
//
//   X_cut     LibraCut, which outputs the gradient and, as views of it, its parts
//   X_part_i  a pending LibraAllReduce of each part, which works in place
//   X         LibraJoin, which outputs the gradient when all parts are reduced
//
// so that the rest of the pass treats a part as a whole tensor, and nodes and callers that use X
// need no change. Control edges from X to other pending all-reduces move to its parts, since they
// define the order of starts. Nodes in `fed` are not replaced.
void CutTensors(const RegisteredPlan& plan, const std::unordered_set<std::string>& fed,
                tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_SPLIT_TENSORS_H_
