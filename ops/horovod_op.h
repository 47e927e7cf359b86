// Node of Horovod's grouped all-reduce (0.28.1), for the pass, which writes it into a graph, and
// for a kernel that runs it.
#ifndef TF_LIBRA_OPS_HOROVOD_OP_H_
#define TF_LIBRA_OPS_HOROVOD_OP_H_

#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_libra {

// Returns whether it reduces tensors of this type.
inline bool HorovodReduces(tensorflow::DataType type) { return type != tensorflow::DT_BFLOAT16; }

// The op and those attributes that say what is reduced, and how; all but name, device and inputs.
inline void WriteHorovodOp(tensorflow::DataType type, int num_tensors, bool is_sum,
                           tensorflow::NodeDef* node) {
  constexpr int kAverage = 0, kSum = 1;  // horovod/common/message.h, ReduceOp
  node->set_op("HorovodGroupedAllreduce");
  tensorflow::AddNodeAttr("T", type, node);
  tensorflow::AddNodeAttr("num_tensors", num_tensors, node);
  tensorflow::AddNodeAttr("reduce_op", is_sum ? kSum : kAverage, node);
  tensorflow::AddNodeAttr("prescale_factor", 1.0f, node);
  tensorflow::AddNodeAttr("postscale_factor", 1.0f, node);
  tensorflow::AddNodeAttr("ignore_name_scope", false, node);
  tensorflow::AddNodeAttr("process_set_id", 0, node);
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_HOROVOD_OP_H_
