// Split of all-reduces into an asynchronous start and a wait for the result.

#ifndef TF_LIBRA_PASSES_ASYNC_ALL_REDUCE_SPLITTER_H_
#define TF_LIBRA_PASSES_ASYNC_ALL_REDUCE_SPLITTER_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Replaces each LibraAllReduce of `names` by a LibraAllReduceStart of the same name and a
// LibraAllReduceWait, NAME_wait. All successors move to the wait, except control edges between
// `names`, which define the order of the starts. So the engine gets each all-reduce as soon as its
// gradients are produced, and starts it when its lanes are free.
void SplitIntoStartDone(const std::vector<std::string>& names, tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_ASYNC_ALL_REDUCE_SPLITTER_H_
