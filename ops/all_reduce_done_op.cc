// Stands behind an all-reduce of another library, and shows in a trace when that has ended.
// TensorFlow itself leaves cheap and asynchronous ops out of traces.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_libra {
namespace {

class AllReduceDoneOp : public tensorflow::OpKernel {
 public:
  using tensorflow::OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext* context) override {
    tsl::profiler::TraceMe event([this] { return absl::StrCat(name(), ":", type_string()); },
                                 /*level=*/1);
  }
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
