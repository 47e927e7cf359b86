// Contraction of a while loop to one unit, for code that walks along the edges of a graph.

#ifndef TF_LIBRA_PASSES_LOOP_FRAMES_H_
#define TF_LIBRA_PASSES_LOOP_FRAMES_H_

#include <vector>

#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Within one iteration a loop's nodes have an order; the back edges, Merge <- NextIteration, lead
// to the next one. Seen from outside, all iterations are one: no value leaves before all that the
// loop takes is there, and each iteration leads to the next. So, in place of the back edges, which
// `fanins` must not have, this adds what they mean, as control inputs of the Exits: every Enter and
// every NextIteration of a frame leads to its first Exit, and that to the others. A loop in the
// body of another is part of the body.
//
// An edge from what reads an Exit to what feeds an Enter of the same frame is a cycle then, as it
// is for TensorFlow's executor. `order` is a topological order of `fanins`.
void CloseLoops(const tensorflow::GraphDef& graph, const std::vector<int>& order,
                std::vector<std::vector<Fanin>>* fanins);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LOOP_FRAMES_H_
