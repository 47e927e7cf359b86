#include "ops/horovod_executor.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/horovod_op.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/bfloat16.h"
#include "tensorflow/core/public/version.h"

namespace tf_libra {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Types that Horovod cannot reduce are sent as float32 and rounded once, after the reduction.
tensorflow::DataType TypeOnTheWire(tensorflow::DataType type) {
  return HorovodReduces(type) ? type : tensorflow::DT_FLOAT;
}

Tensor Widened(const Tensor& narrow) {
  Tensor wide(tensorflow::DT_FLOAT, narrow.shape());
  wide.flat<float>() = narrow.flat<tensorflow::bfloat16>().cast<float>();
  return wide;
}

absl::Status ToTensorFlow(const Status& status) {
  return absl::AbortedError(absl::StrCat("LibraAllReduce: ", status.message()));
}

}  // namespace

// One call of Horovod's kernel, with a context of its own.
struct HorovodAllReduce::Call {
  std::vector<Tensor> inputs;
  std::vector<tensorflow::TensorValue> values;
  OpKernelContext::Params params;
  std::unique_ptr<OpKernelContext> context;
};

std::shared_ptr<HorovodAllReduce::Call> HorovodAllReduce::CallOf(OpKernelContext* outer,
                                                                 std::vector<Tensor> inputs,
                                                                 tensorflow::OpKernel* kernel) {
  auto call = std::make_shared<Call>();
  for (const Tensor& input : inputs) {
    call->inputs.push_back(HorovodReduces(input.dtype()) ? input : Widened(input));
  }
  for (Tensor& input : call->inputs) call->values.emplace_back(&input);
  call->params = *outer->params();
  call->params.eigen_gpu_device = nullptr;  // the other context's own
  call->params.forward_from_array = nullptr;
  call->params.op_kernel = kernel;
  call->params.inputs = call->values;
  call->context = std::make_unique<OpKernelContext>(&call->params, static_cast<int>(inputs.size()));
  return call;
}

absl::Status HorovodAllReduce::TakeOutputs(Call* call, OpKernelContext* outer) {
  for (int i = 0; i < outer->num_outputs(); ++i) {
    const Tensor& reduced = *call->context->mutable_output(i);
    if (outer->expected_output_dtype(i) == reduced.dtype()) {
      outer->set_output(i, reduced);
      continue;
    }
    Tensor* narrow = nullptr;
    TF_RETURN_IF_ERROR(outer->allocate_output(i, reduced.shape(), &narrow));
    narrow->flat<tensorflow::bfloat16>() = reduced.flat<float>().cast<tensorflow::bfloat16>();
  }
  return absl::OkStatus();
}

HorovodJob& HorovodJob::Global() {
  static HorovodJob* const job = new HorovodJob;  // kernels may outlive static destruction
  return *job;
}

void HorovodJob::Start(int rank, int world_size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = true;
  rank_ = rank;
  world_size_ = world_size;
  step_ = -1;
  status_ = Status();
}

void HorovodJob::SetStep(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_ = step;
}

int HorovodJob::rank() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rank_;
}

int HorovodJob::world_size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return world_size_;
}

int64_t HorovodJob::step() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return step_;
}

void HorovodJob::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = false;
}

void HorovodJob::Fail(const Status& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = reason;
}

bool HorovodJob::is_running() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_running_;
}

Status HorovodJob::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void HorovodJob::Enter(const std::string& name, std::function<void()> start) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, is_free] = waiting_.try_emplace(name);
    if (!is_free) {
      found->second.push_back(std::move(start));
      return;
    }
  }
  start();
}

void HorovodJob::Leave(const std::string& name) {
  std::function<void()> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = waiting_.find(name);
    if (found->second.empty()) {
      waiting_.erase(found);
      return;
    }
    next = std::move(found->second.front());
    found->second.pop_front();
  }
  next();
}

absl::Status HorovodAllReduce::MakeKernel(OpKernelContext* context, tensorflow::DataType type,
                                          int num_tensors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kernel_ != nullptr) return absl::OkStatus();
  tensorflow::NodeDef node;
  // Horovod matches requests by this name; the digest is the same on every rank.
  node.set_name(absl::StrCat("LibraAllReduce.", operation_->tensor_names.front(), ".",
                             absl::Hex(operation_->digest)));
  WriteHorovodOp(TypeOnTheWire(type), num_tensors, operation_->reduction == Reduction::kSum, &node);
  for (int i = 0; i < num_tensors; ++i) node.add_input(absl::StrCat("tensor:", i));
  auto* const device = static_cast<tensorflow::DeviceBase*>(context->device());
  absl::Status status;
  kernel_ = tensorflow::CreateOpKernel(tensorflow::DeviceType(tensorflow::DEVICE_CPU), device,
                                       device->GetAllocator(tensorflow::AllocatorAttributes()),
                                       node, TF_GRAPH_DEF_VERSION, &status);
  if (kernel_ != nullptr && kernel_->AsAsync() == nullptr) {
    kernel_.reset();
    status = absl::InternalError("HorovodGroupedAllreduce is not asynchronous");
  }
  return status;
}

void HorovodAllReduce::Compute(OpKernelContext* context, std::function<void()> done) {
  std::vector<Tensor> inputs;
  for (int i = 0; i < context->num_outputs(); ++i) inputs.push_back(context->input(i));
  Reduce(context, std::move(inputs),
         [context, done = std::move(done)](absl::Status status, Call* call) {
           if (status.ok()) status = TakeOutputs(call, context);
           if (!status.ok()) context->SetStatus(status);
           done();
         });
}

void HorovodAllReduce::Sum(OpKernelContext* context, const Tensor& tensor, SumDone done) {
  Reduce(context, {tensor}, [done = std::move(done)](const absl::Status& status, Call* call) {
    done(status, status.ok() ? *call->context->mutable_output(0) : Tensor());
  });
}

void HorovodAllReduce::Reduce(OpKernelContext* context, std::vector<Tensor> inputs, CallDone done) {
  const Status failed = HorovodJob::Global().status();
  absl::Status status = failed.ok() ? absl::OkStatus() : ToTensorFlow(failed);
  if (status.ok()) {
    status = MakeKernel(context, inputs.front().dtype(), static_cast<int>(inputs.size()));
  }
  if (!status.ok()) return done(status, nullptr);
  HorovodJob::Global().Enter(kernel_->name(), [this, context, inputs = std::move(inputs),
                                               done = std::move(done)]() mutable {
    Run(context, std::move(inputs), std::move(done));
  });
}

void HorovodAllReduce::Run(OpKernelContext* context, std::vector<Tensor> inputs, CallDone done) {
  const std::shared_ptr<Call> call = CallOf(context, std::move(inputs), kernel_.get());
  const std::string name = kernel_->name();
  kernel_->AsAsync()->ComputeAsync(call->context.get(), [call, name, done = std::move(done)] {
    absl::Status status = call->context->status();
    if (!status.ok()) {
      const std::string message = absl::StrCat("LibraAllReduce by Horovod: ", status.message());
      // Horovod tells of lost ranks as Unknown.
      const bool is_lost = absl::IsUnknown(status) || absl::IsAborted(status);
      status = absl::Status(is_lost ? absl::StatusCode::kAborted : status.code(), message);
    }
    // The name is free as soon as Horovod has called back; what waits for it may start before what
    // follows this one.
    HorovodJob::Global().Leave(name);
    done(status, call.get());
  });
}

}  // namespace tf_libra
