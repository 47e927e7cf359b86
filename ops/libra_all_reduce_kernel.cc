#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/async_handle.h"
#include "ops/engine_slot.h"
#include "ops/horovod_executor.h"
#include "ops/kernels.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/error_feedback.h"
#include "ops/lanes/execution_counter.h"
#include "ops/lanes/owned_parts.h"
#include "ops/lanes/wire_format.h"
#include "ops/profiler_events.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_libra {
namespace {

constexpr char kOp[] = "LibraAllReduce";

// Returns the steps that the attributes describe; kAll, with an error in the context, if they are
// invalid.
ExchangeSteps ReadSteps(tensorflow::OpKernelConstruction* context) {
  bool scatter = false;
  if (const absl::Status status = context->GetAttr("scatter", &scatter); !status.ok()) {
    context->CtxFailure(status);
  }
  return scatter ? ExchangeSteps::kReduceScatter : ExchangeSteps::kAll;
}

// Returns the operation that the attributes describe; null, with an error in the context, if they
// are invalid.
std::shared_ptr<const OperationInfo> ReadOperation(tensorflow::OpKernelConstruction* context,
                                                   int num_tensors) {
  auto operation = std::make_shared<OperationInfo>();
  std::string reduction, wire_dtype;
  const auto read = [&]() -> absl::Status {
    TF_RETURN_IF_ERROR(context->GetAttr("plan", &operation->plan));
    TF_RETURN_IF_ERROR(context->GetAttr("function", &operation->function));
    TF_RETURN_IF_ERROR(context->GetAttr("group", &operation->group));
    TF_RETURN_IF_ERROR(context->GetAttr("num_threads", &operation->num_threads));
    TF_RETURN_IF_ERROR(context->GetAttr("first_lane", &operation->first_lane));
    TF_RETURN_IF_ERROR(context->GetAttr("tensor_names", &operation->tensor_names));
    TF_RETURN_IF_ERROR(context->GetAttr("part_starts", &operation->part_starts));
    TF_RETURN_IF_ERROR(context->GetAttr("reduction", &reduction));
    TF_RETURN_IF_ERROR(context->GetAttr("wire_dtype", &wire_dtype));
    TF_RETURN_IF_ERROR(context->GetAttr("error_feedback", &operation->error_feedback));
    const size_t num_names = operation->tensor_names.size();
    const size_t num_starts = operation->part_starts.size();
    if (num_names != static_cast<size_t>(num_tensors)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor_names must name each of the ",
                                                     num_tensors, " tensors, got ", num_names,
                                                     " names"));
    }
    if (num_starts != 0 && num_starts != num_names) {
      return absl::InvalidArgumentError(
          absl::StrCat("part_starts must be none, or one for each of ", num_tensors,
                       " tensors, got ", num_starts));
    }
    return absl::OkStatus();
  };
  if (const absl::Status status = read(); !status.ok()) {
    context->CtxFailure(status);
    return nullptr;
  }
  operation->reduction = reduction == "sum" ? Reduction::kSum : Reduction::kAverage;
  operation->wire_type = WireTypeOf(wire_dtype);
  operation->ComputeDigest();
  return operation;
}

// Returns what each rank contributes to a tensor, by the last input: the rows where parts end.
absl::Status ReadParts(tensorflow::OpKernelContext* context, const Engine& engine,
                       std::vector<ByteRange>* parts) {
  const tensorflow::Tensor& tensor = context->input(0);
  const tensorflow::Tensor& ends = context->input(context->num_inputs() - 1);
  const int64_t num_rows = tensor.dims() > 0 ? tensor.dim_size(0) : -1;
  const size_t row_bytes = num_rows > 0 ? tensor.TotalBytes() / num_rows : 0;
  int64_t end = 0;
  bool is_valid = ends.dims() == 1 && ends.NumElements() == engine.world_size();
  for (int64_t i = 0; is_valid && i < ends.NumElements(); ++i) {
    const int64_t begin = end;
    end = ends.vec<int32_t>()(i);
    is_valid = begin <= end;
    parts->push_back({begin * row_bytes, end * row_bytes});
  }
  if (is_valid && end == num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kOp, ": ends must ascend to the number of rows of shape ", tensor.shape().DebugString(),
      ", one for each of ", engine.world_size(), " ranks, got ", ends.SummarizeValue(16)));
}

// All of the request but `done`. The reduced tensors are the context's outputs.
absl::Status MakeRequest(tensorflow::OpKernelContext* context,
                         const std::shared_ptr<const OperationInfo>& operation, ExchangeSteps steps,
                         const Engine& engine, AllReduceRequest* request) {
  request->operation = operation;
  request->steps = steps;
  request->element_type = ElementTypeOf(context->input_dtype(0));
  const int num_tensors = static_cast<int>(operation->tensor_names.size());
  if (num_tensors < context->num_inputs()) {
    TF_RETURN_IF_ERROR(ReadParts(context, engine, &request->parts));
  }
  request->tensors.reserve(num_tensors);
  for (int i = 0; i < num_tensors; ++i) {
    const tensorflow::Tensor& input = context->input(i);
    const void* const data = input.data();
    const size_t num_bytes = input.TotalBytes();
    if (operation->IsPart(i)) {  // of memory that LibraCut has for this
      context->set_output(i, input);
      request->tensors.push_back({data, input.data(), num_bytes});
      continue;
    }
    tensorflow::Tensor* output = nullptr;
    if (steps == ExchangeSteps::kReduceScatter) {
      const ByteRange owned =
          OwnedElements(input.NumElements(), engine.world_size(), engine.rank());
      const tensorflow::TensorShape shape({static_cast<int64_t>(owned.size())});
      TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &output));
      request->tensors.push_back({data, output->data(), num_bytes});
      continue;
    }
    TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({i}, i, input.shape(), &output));
    request->tensors.push_back({data, output->data(), num_bytes});
  }
  if (request->element_type == ElementType::kFloat32) {
    request->errors = ErrorFeedback::Global().Of(*operation, request->tensors);
  }
  return absl::OkStatus();
}

// Hands its tensors to the active engine, or to Horovod; all else is theirs.
class LibraAllReduceKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit LibraAllReduceKernel(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context),
        operation_(ReadOperation(context, num_outputs())),
        steps_(ReadSteps(context)),
        by_horovod_(operation_) {}

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    StartOrFail(kOp, context, done, [&] { HandOver(context, done); });
  }

  // Only enqueues: not worth a hop to another thread.
  bool IsExpensive() override { return false; }

 private:
  void HandOver(tensorflow::OpKernelContext* context, const DoneCallback& done) {
    if (ActiveEngine() == nullptr && HorovodJob::Global().is_running()) {
      Executions::Global().RecordExecution(operation_);
      by_horovod_.Compute(context, done);
      return;
    }
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(context, FindEngine(kOp, &engine), done);
    // The executor shows no op that is not expensive; this one carries what readers of the trace
    // need to know of its tensors.
    tsl::profiler::TraceMe event([&] { return OpEvent(*context, *operation_); });
    AllReduceRequest request;
    OP_REQUIRES_OK_ASYNC(context, MakeRequest(context, operation_, steps_, *engine, &request),
                         done);
    request.done = [context, done](const Status& status) {
      if (!status.ok()) context->SetStatus(ToTensorFlow(kOp, status));
      done();
    };
    Executions::Global().RecordExecution(operation_);
    event.Stop();  // once the engine has it, the step, and the profiler, may end at any time
    engine->AllReduce(std::move(request));  // throws nothing
  }

  const std::shared_ptr<const OperationInfo> operation_;
  const ExchangeSteps steps_;
  HorovodAllReduce by_horovod_;
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduce").Device(tensorflow::DEVICE_CPU),
                        LibraAllReduceKernel);

class LibraAllReduceStartKernel : public tensorflow::OpKernel {
 public:
  explicit LibraAllReduceStartKernel(tensorflow::OpKernelConstruction* context)
      : OpKernel(context),
        operation_(ReadOperation(context, num_inputs())),
        steps_(ReadSteps(context)) {}

  void Compute(tensorflow::OpKernelContext* context) override {
    try {
      HandOver(context);
    } catch (...) {
      context->SetStatus(CannotStart(kOp));
    }
  }

  bool IsExpensive() override { return false; }

 private:
  void HandOver(tensorflow::OpKernelContext* context) {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, FindEngine(kOp, &engine));
    tsl::profiler::TraceMe event([&] { return OpEvent(*context, *operation_); });
    AllReduceRequest request;
    std::vector<tensorflow::Tensor> tensors;
    tensors.reserve(2 * num_inputs());
    OP_REQUIRES_OK(context, MakeRequest(context, operation_, steps_, *engine, &request));
    for (int i = 0; i < num_inputs(); ++i) {
      tensors.push_back(context->input(i));
      tensors.push_back(*context->mutable_output(i));
    }
    tensorflow::Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(num_inputs(), {}, &handle));
    const auto pending = std::make_shared<Pending>(std::move(tensors));
    handle->scalar<tensorflow::Variant>()() = PendingHandle{pending};
    request.done = [pending](const Status& status) { pending->End(status); };
    Executions::Global().RecordExecution(operation_);
    event.Stop();
    engine->AllReduce(std::move(request));  // throws nothing
  }

  const std::shared_ptr<const OperationInfo> operation_;
  const ExchangeSteps steps_;
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduceStart").Device(tensorflow::DEVICE_CPU),
                        LibraAllReduceStartKernel);

class LibraAllReduceWaitKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    const int num_tensors = num_outputs();
    const auto* const handle =
        context->input(num_tensors).scalar<tensorflow::Variant>()().get<PendingHandle>();
    OP_REQUIRES_ASYNC(context, handle != nullptr,
                      absl::InvalidArgumentError(
                          "LibraAllReduceWait: pending must come from a LibraAllReduceStart"),
                      done);
    handle->pending->Then([context, num_tensors, done](const Status& status) {
      if (status.ok()) {
        for (int i = 0; i < num_tensors; ++i) context->set_output(i, context->input(i));
      } else {
        context->SetStatus(ToTensorFlow(kOp, status));
      }
      done();
    });
  }

  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduceWait").Device(tensorflow::DEVICE_CPU),
                        LibraAllReduceWaitKernel);

}  // namespace
}  // namespace tf_libra
