// Reads of a few rows of a variable, without a copy of the whole.

#ifndef TF_LIBRA_PASSES_ROW_READS_H_
#define TF_LIBRA_PASSES_ROW_READS_H_

#include "passes/graph_writer.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Replaces each GatherV2 of rows of a variable's value, which nothing else reads, by a
// ResourceGather, which reads them from the variable: the same bits. Returns the number of these.
//
// TensorFlow copies a variable whenever its value is read, once its rows have been updated one by
// one, as sparse gradients update them. Keras' embeddings read the value of their table. Variables
// of which the graph uses no single rows in place keep their reads: a ResourceGather would make
// TensorFlow copy them from then on.
//
// The reads become NoOps that follow the ResourceGather, for others to wait for. So what ran after
// the read runs after the gather, too, and the rows are those of the same time. If that closes a
// cycle, the graph stays as it is.
int ReadRowsInPlace(const NodesToKeep& keep, tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_ROW_READS_H_
