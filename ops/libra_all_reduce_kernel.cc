#include <cstring>
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
#include "ops/row_parts.h"
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

// The same operation, as a sum; null of null.
std::shared_ptr<const OperationInfo> SumOf(const std::shared_ptr<const OperationInfo>& operation) {
  if (operation == nullptr) return nullptr;
  auto sum = std::make_shared<OperationInfo>(*operation);
  sum->reduction = Reduction::kSum;
  sum->ComputeDigest();
  return sum;
}

// What each rank has of a tensor.
enum class Rows {
  kAll,  // and so of several tensors
  kOwn,
  kOwnAsTheyAre,  // not divided, even by an average
};

absl::Status FindRows(tensorflow::OpKernelContext* context, const OperationInfo& operation,
                      Rows* rows) {
  const size_t num_tensors = operation.tensor_names.size();
  const size_t num_ends = context->num_inputs() - num_tensors;
  *rows = num_ends == 0 ? Rows::kAll : Rows::kOwn;
  if (num_ends < 2) return absl::OkStatus();
  const tensorflow::Tensor& shared = context->input(2);
  if (num_ends > 2 || shared.NumElements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the second of ends must be one number, and the last, got ", num_ends,
                     " with shape ", shared.shape().DebugString()));
  }
  *rows = shared.flat<int32_t>()(0) == 0 ? Rows::kOwnAsTheyAre : Rows::kAll;
  return absl::OkStatus();
}

// The request of a tensor of which each rank has rows of its own.
absl::Status MakeRowRequest(tensorflow::OpKernelContext* context, const Engine& engine,
                            bool is_average, AllReduceRequest* request) {
  const tensorflow::Tensor& own = context->input(0);
  RowParts rows;
  TF_RETURN_IF_ERROR(
      FindRowParts(own, context->input(1), engine.world_size(), engine.rank(), &rows));
  tensorflow::Tensor* all = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, rows.shape, &all));
  request->tensors.push_back({own.data(), all->data(), all->TotalBytes()});
  request->parts = std::move(rows.parts);
  request->part_divisor = is_average ? engine.world_size() : 1;
  return absl::OkStatus();
}

// All of the request but `done`. The reduced tensors are the context's outputs.
absl::Status MakeRequest(tensorflow::OpKernelContext* context,
                         const std::shared_ptr<const OperationInfo>& operation, ExchangeSteps steps,
                         const Engine& engine, AllReduceRequest* request) {
  request->operation = operation;
  request->steps = steps;
  request->element_type = ElementTypeOf(context->input_dtype(0));
  Rows rows = Rows::kAll;
  TF_RETURN_IF_ERROR(FindRows(context, *operation, &rows));
  if (rows != Rows::kAll) {
    const bool is_average = rows == Rows::kOwn && operation->reduction == Reduction::kAverage;
    return MakeRowRequest(context, engine, is_average, request);
  }
  const int num_tensors = static_cast<int>(operation->tensor_names.size());
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
        by_horovod_(operation_),
        sum_by_horovod_(SumOf(operation_)) {}

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    StartOrFail(kOp, context, done, [&] { HandOver(context, done); });
  }

  // Only enqueues: not worth a hop to another thread.
  bool IsExpensive() override { return false; }

 private:
  void HandOver(tensorflow::OpKernelContext* context, const DoneCallback& done) {
    if (ActiveEngine() == nullptr && HorovodJob::Global().is_running()) {
      Executions::Global().RecordExecution(operation_);
      Rows rows = Rows::kAll;
      OP_REQUIRES_OK_ASYNC(context, FindRows(context, *operation_, &rows), done);
      if (rows == Rows::kAll) return by_horovod_.Compute(context, done);
      AddRowsByHorovod(context, rows == Rows::kOwn ? &by_horovod_ : &sum_by_horovod_, done);
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

  // With zeros in the place of other ranks' rows.
  void AddRowsByHorovod(tensorflow::OpKernelContext* context, HorovodAllReduce* horovod,
                        const DoneCallback& done) {
    const tensorflow::Tensor& own = context->input(0);
    const HorovodJob& job = HorovodJob::Global();
    RowParts rows;
    OP_REQUIRES_OK_ASYNC(
        context, FindRowParts(own, context->input(1), job.world_size(), job.rank(), &rows), done);
    tensorflow::Tensor all;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_temp(own.dtype(), rows.shape, &all), done);
    if (all.TotalBytes() > 0) std::memset(all.data(), 0, all.TotalBytes());
    PlaceOwnRows(own, rows.parts[job.rank()], &all);
    horovod->Sum(context, all,
                 [context, done](const absl::Status& status, const tensorflow::Tensor& sum) {
                   if (status.ok()) {
                     context->set_output(0, sum);
                   } else {
                     context->SetStatus(status);
                   }
                   done();
                 });
  }

  const std::shared_ptr<const OperationInfo> operation_;
  const ExchangeSteps steps_;
  HorovodAllReduce by_horovod_, sum_by_horovod_;
};

REGISTER_KERNEL_BUILDER(Name("LibraAllReduce").Device(tensorflow::DEVICE_CPU),
                        LibraAllReduceKernel);

class LibraAllReduceStartKernel : public tensorflow::OpKernel {
 public:
  explicit LibraAllReduceStartKernel(tensorflow::OpKernelConstruction* context)
      : OpKernel(context),
        operation_(ReadOperation(context, num_outputs() - 1)),
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
    const int num_tensors = num_outputs() - 1;
    tensors.reserve(2 * num_tensors);
    OP_REQUIRES_OK(context, MakeRequest(context, operation_, steps_, *engine, &request));
    for (int i = 0; i < num_tensors; ++i) {
      tensors.push_back(context->input(i));
      tensors.push_back(*context->mutable_output(i));
    }
    tensorflow::Tensor* handle = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(num_tensors, {}, &handle));
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
