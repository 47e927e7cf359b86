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

// Each pending all-reduce X of a tensor that `plan` cuts becomes
//
//   X_cut     LibraCut, which outputs the gradient and, as views of it, its parts
//   X_part_i  a pending LibraAllReduce of each part, which works in place
//   X         LibraJoin, which outputs the gradient when all parts are reduced
//
// so that a part is from then on what a whole tensor is to the rest of the pass, and a node that
// reads X, or a caller that keeps it, goes on doing so. Control edges from X to other marked
// all-reduces become such from its parts: they say in which order all-reduces start. What is in
// `fed` is left alone.
void CutTensors(const RegisteredPlan& plan, const std::unordered_set<std::string>& fed,
                tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_SPLIT_TENSORS_H_
