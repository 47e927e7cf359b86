// Nodes without a data dependency that TensorFlow may fuse after Grappler (oneDNN gradients of a
// convolution's bias and filter).

#ifndef TF_LIBRA_PASSES_POST_GRAPPLER_FUSIONS_H_
#define TF_LIBRA_PASSES_POST_GRAPPLER_FUSIONS_H_

#include <utility>
#include <vector>

#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// oneDNN's layout pass merges the gradients of a convolution's bias and filter, which read the same
// gradient, into one op if their control inputs are equal. The merged op waits for the inputs of
// both. So this function adds the inputs of each to the fanins of the other, with kPostFusion for
// the port: if a pair is or may become one op, a path through one of them is a path through the
// other. Returns the pairs.
//
// Pairs in different contexts, and pairs with a path between them, are omitted: a merged op cannot
// wait for itself. If not all pairs can be merged together, the first ones count. `order` is a
// topological order of `fanins`, and may be none afterwards. O(nodes + edges), plus the work of a
// ContractedDag for the pairs.
std::vector<std::pair<int, int>> AddPostFusionEdges(const tensorflow::GraphDef& graph,
                                                    const std::vector<int>& contexts,
                                                    const std::vector<int>& order,
                                                    std::vector<std::vector<Fanin>>* fanins);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_POST_GRAPPLER_FUSIONS_H_
