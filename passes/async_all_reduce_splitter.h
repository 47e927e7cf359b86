// Takes all-reduces apart into their start and the wait for their end.

#ifndef TF_LIBRA_PASSES_ASYNC_ALL_REDUCE_SPLITTER_H_
#define TF_LIBRA_PASSES_ASYNC_ALL_REDUCE_SPLITTER_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Each LibraAllReduce of `names` becomes a LibraAllReduceStart of its name, and NAME_wait, a
// LibraAllReduceWait, which what was behind it is behind from now on: all but the control edges
// from one of `names` to another, which say in which order they start. So the engine has the next
// one as soon as its gradients are there, and begins it by itself when a lane is free.
void StartApart(const std::vector<std::string>& names, tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_ASYNC_ALL_REDUCE_SPLITTER_H_
