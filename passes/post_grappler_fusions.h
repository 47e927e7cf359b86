// Nodes without a data dependency that TensorFlow may fuse after Grappler (oneDNN gradients of a
// convolution's bias and filter).

#ifndef TF_LIBRA_PASSES_POST_GRAPPLER_FUSIONS_H_
#define TF_LIBRA_PASSES_POST_GRAPPLER_FUSIONS_H_

#include <utility>
#include <vector>

#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Pairs of a convolution's gradients, of its bias and of its filter, which read the same gradient:
// oneDNN's layout pass makes one op of them if their control inputs are equal. That waits for all
// that either of them waits for. So this adds the inputs of each to the fanins of the other, with
// kPostFusion for the port: where a pair is one op or may become one, a path through one of them
// is a path through the other.
//
// Pairs of different contexts, and those with a path between them, are left out: what would wait
// for itself cannot be merged. Where not all pairs can be merged together, those found first count.
// `order` is a topological order of `fanins`; afterwards there is another. O(nodes + edges), and
// what a ContractedDag takes for the pairs.
std::vector<std::pair<int, int>> AddPostFusionEdges(const tensorflow::GraphDef& graph,
                                                    const std::vector<int>& contexts,
                                                    const std::vector<int>& order,
                                                    std::vector<std::vector<Fanin>>* fanins);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_POST_GRAPPLER_FUSIONS_H_
