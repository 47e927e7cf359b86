// One op per update of owned parts.

#ifndef TF_LIBRA_PASSES_UPDATE_FUSION_H_
#define TF_LIBRA_PASSES_UPDATE_FUSION_H_

#include "passes/graph_writer.h"
#include "passes/update_sharding.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

// Replaces the ops of each update of owned parts by one LibraUpdateOwned, which passes over memory
// once and computes the same bits. Returns the number of updates that are one op now.
//
// An update has the ops that lead to assignments of one copy of the step, and that data or
// variables connect. Ops that are not of float32, or that no program may contain
// (ops/update_program.h), stay as they are. So do all ops that data connects if another op reads
// one of their values, or if they are not all in the same branches. Assignments that something else
// waits for in between are updates of their own. Nodes that others wait for become NoOps.
int FuseUpdates(const ShardedNodes& sharded, const NodesToKeep& keep, tensorflow::GraphDef* graph);

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_UPDATE_FUSION_H_
