#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/engine_slot.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/executions.h"
#include "ops/profiler_events.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_libra {
namespace {

ElementType ElementTypeOf(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return ElementType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return ElementType::kBFloat16;
    case tensorflow::DT_DOUBLE:
      return ElementType::kFloat64;
    default:  // the op's registration admits no other
      return ElementType::kFloat32;
  }
}

absl::Status ToTensorFlow(const Status& status) {
  const std::string message = "LibraAllReduce: " + status.message();
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(message);
    case StatusCode::kFailedPrecondition:
      return absl::FailedPreconditionError(message);
    case StatusCode::kUnavailable:
      // Not Unavailable: TensorFlow takes that for trouble of its own network and rewords it.
      return absl::AbortedError(message);
    case StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(message);
    case StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(message);
    case StatusCode::kInternal:
      break;
  }
  return absl::InternalError(message);
}

// Hands its tensors to the active engine; all else is the engine's.
class LibraAllReduceKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit LibraAllReduceKernel(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context) {
    auto operation = std::make_shared<OperationInfo>();
    std::string reduction;
    OP_REQUIRES_OK(context, context->GetAttr("plan", &operation->plan));
    OP_REQUIRES_OK(context, context->GetAttr("function", &operation->function));
    OP_REQUIRES_OK(context, context->GetAttr("group", &operation->group));
    OP_REQUIRES_OK(context, context->GetAttr("num_threads", &operation->num_threads));
    OP_REQUIRES_OK(context, context->GetAttr("tensor_names", &operation->tensor_names));
    OP_REQUIRES_OK(context, context->GetAttr("reduction", &reduction));
    OP_REQUIRES(context, static_cast<int>(operation->tensor_names.size()) == num_inputs(),
                absl::InvalidArgumentError(absl::StrCat("tensor_names must name each of the ",
                                                        num_inputs(), " tensors, got ",
                                                        operation->tensor_names.size(), " names")));
    operation->reduction = reduction == "sum" ? Reduction::kSum : Reduction::kAverage;
    operation->ComputeDigest();
    operation_ = std::move(operation);
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    try {
      HandOver(context, done);
    } catch (...) {
      // It has not got to the engine, and the other ranks are not to wait for it.
      const Status status = CaughtStatus("an all-reduce cannot start");
      if (const auto engine = ActiveEngine()) engine->Abort(status);
      context->SetStatus(ToTensorFlow(status));
      done();
    }
  }

  // Only enqueues: not worth a hop to another thread.
  bool IsExpensive() override { return false; }

 private:
  void HandOver(tensorflow::OpKernelContext* context, const DoneCallback& done) {
    const std::shared_ptr<Engine> engine = ActiveEngine();
    OP_REQUIRES_ASYNC(
        context, engine != nullptr,
        absl::FailedPreconditionError("LibraAllReduce: no engine is running in this process"),
        done);
    // The executor shows no op that is not expensive; this one carries what readers of the trace
    // need to know of its tensors.
    tsl::profiler::TraceMe event([&] { return OpEvent(*context, *operation_); });
    AllReduceRequest request;
    request.operation = operation_;
    request.element_type = ElementTypeOf(input_type(0));
    request.tensors.reserve(num_inputs());
    for (int i = 0; i < num_inputs(); ++i) {
      const tensorflow::Tensor& input = context->input(i);
      const void* const data = input.data();
      const size_t num_bytes = input.TotalBytes();
      tensorflow::Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(
          context, context->forward_input_or_allocate_output({i}, i, input.shape(), &output), done);
      request.tensors.push_back({data, output->data(), num_bytes});
    }
    request.done = [context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(status));
      done();
    };
    Executions::Global().Note(operation_);
    event.Stop();  // once the engine has it, the step, and the profiler, may end at any time
    engine->AllReduce(std::move(request));  // throws nothing
  }

  std::shared_ptr<const OperationInfo> operation_;
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduce").Device(tensorflow::DEVICE_CPU),
                        LibraAllReduceKernel);

}  // namespace
}  // namespace tf_libra
