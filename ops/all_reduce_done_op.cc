// Stands behind an all-reduce of another library, shows in a trace when that has ended, and counts
// it. TensorFlow itself leaves cheap and asynchronous ops out of traces.

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/lanes/execution_counter.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_libra {
namespace {

class AllReduceDoneOp : public tensorflow::OpKernel {
 public:
  explicit AllReduceDoneOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    auto operation = std::make_shared<OperationInfo>();
    OP_REQUIRES_OK(context, context->GetAttr("function", &operation->function));
    OP_REQUIRES_OK(context, context->GetAttr("tensor_names", &operation->tensor_names));
    operation_ = std::move(operation);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    Executions::Global().RecordExecution(operation_);
    tsl::profiler::TraceMe event([this] { return absl::StrCat(name(), ":", type_string()); },
                                 /*level=*/1);
  }

 private:
  std::shared_ptr<const OperationInfo> operation_;
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduceDone").Device(tensorflow::DEVICE_CPU), AllReduceDoneOp);
// The kernel touches no memory, so it needs no CUDA. On the device of its all-reduce, no edge
// crosses devices; a crossing edge would deadlock.
REGISTER_KERNEL_BUILDER(Name("LibraAllReduceDone").Device(tensorflow::DEVICE_GPU), AllReduceDoneOp);

}  // namespace

REGISTER_OP("LibraAllReduceDone")
    .Attr("tensor_names: list(string) = []")
    .Attr("function: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext*) { return absl::OkStatus(); })
    .Doc(R"doc(
Runs when the all-reduce that it waits for, by a control edge, has ended.

tensor_names: what that has reduced.
function: the training function it belongs to.
)doc");

}  // namespace tf_libra
