// Events of TensorFlow's profiler for all-reduces, between the ops of the step. Without an active
// profiler an event costs one atomic read.
#ifndef TF_LIBRA_OPS_PROFILER_EVENTS_H_
#define TF_LIBRA_OPS_PROFILER_EVENTS_H_

#include <string>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/telemetry.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_libra {

// Text for one event of the op itself, when it hands its tensors over (by whichever of the ops that
// do): `node:LibraAllReduce` with the arguments plan, group, threads, and the lists names, bytes,
// producers (node and output that each tensor comes from), one entry per tensor, separated by ';'.
// What has a meaning in such lists, and all that is not printable ASCII, is %-encoded.
std::string OpEvent(const tensorflow::OpKernelContext& context, const OperationInfo& operation);

// Records what a lane has done, on the lane's own thread: `LibraAllReduce group 3`, and within it
// `LibraAllReduce wait`, until every other rank has sent a first byte, and `LibraAllReduce
// exchange`, which sends, sums and receives. Arguments: plan, group, threads, bytes (of the whole
// all-reduce), step, sequence, queued_ns (from the op's call to the lane's start).
void ShowInProfiler(const LaneSpan& span);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_PROFILER_EVENTS_H_
