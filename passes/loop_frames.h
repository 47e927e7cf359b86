// Edges that make a while loop one unit, for searches along the edges of a graph.

#ifndef TF_LIBRA_PASSES_LOOP_FRAMES_H_
#define TF_LIBRA_PASSES_LOOP_FRAMES_H_

#include <vector>

#include "passes/control_flow_contexts.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Within one iteration, a loop's nodes have an order; the back edges, Merge <- NextIteration, lead
// to the next iteration. From outside, all iterations are one unit: no value leaves before all
// inputs of the loop are ready, and each iteration leads to the next. So this function adds control
// inputs to the Exits in place of the back edges, which `fanins` must not have: every Enter and
// every NextIteration of a frame leads to its first Exit, and that Exit to the others. A nested
// loop is part of the body of the outer loop.
//
// With these edges, an edge from a reader of an Exit to an input of an Enter of the same frame
// closes a cycle, as it does for TensorFlow's executor. `order` is a topological order of `fanins`.
void CloseLoops(const tensorflow::GraphDef& graph, const std::vector<int>& order,
                std::vector<std::vector<Fanin>>* fanins);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LOOP_FRAMES_H_
