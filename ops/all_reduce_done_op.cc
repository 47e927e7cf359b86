// Stands behind an all-reduce of another library and does nothing, which shows in a trace: the op
// before it has ended. Asynchronous, since TensorFlow leaves cheap synchronous ops out of traces.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_libra {
namespace {

class AllReduceDoneOp : public tensorflow::AsyncOpKernel {
 public:
  using tensorflow::AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override { done(); }
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduceDone").Device(tensorflow::DEVICE_CPU), AllReduceDoneOp);

}  // namespace

REGISTER_OP("LibraAllReduceDone")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc(R"doc(
Runs when the all-reduce that it waits for, by a control edge, has ended.
)doc");

}  // namespace tf_libra
