#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/async_handle.h"
#include "ops/engine_slot.h"
#include "ops/kernels.h"
#include "ops/lanes/engine.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_libra {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr char kSend[] = "LibraSend";
constexpr char kReceive[] = "LibraReceiveStart";
constexpr char kCollective[] = "LibraCollectiveStart";

// "float [8,16]": what both sides of a message compare.
std::string ContentOf(const Tensor& tensor) {
  return absl::StrCat(tensorflow::DataTypeString(tensor.dtype()), " ",
                      tensor.shape().DebugString());
}

char* BytesOf(const Tensor& tensor) { return static_cast<char*>(tensor.data()); }

// Returns the request that moves a tensor to or from a rank; `pending` is notified when it has.
MessageRequest RequestOf(int peer, const std::string& name, const Tensor& tensor, bool is_read,
                         const std::shared_ptr<Pending>& pending) {
  MessageRequest request;
  request.peer = peer;
  request.name = name;
  request.content = ContentOf(tensor);
  request.data = BytesOf(tensor);
  request.num_bytes = tensor.TotalBytes();
  request.is_read = is_read;
  request.done = [pending](const Status& status) { pending->End(status); };
  return request;
}

// Outputs the handle of an operation that a later op waits for.
absl::Status PutOut(OpKernelContext* context, int index, const std::shared_ptr<Pending>& pending) {
  Tensor* handle = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(index, {}, &handle));
  handle->scalar<tensorflow::Variant>()() = PendingHandle{pending};
  return absl::OkStatus();
}

// Kernels that hand something over and return.
class Starting : public tensorflow::OpKernel {
 public:
  Starting(OpKernelConstruction* context, const char* op) : OpKernel(context), op_(op) {
    OP_REQUIRES_OK(context, context->GetAttr("tensor_name", &name_));
  }

  void Compute(OpKernelContext* context) override {
    try {
      absl::Status status = HandOver(context);
      if (!status.ok()) context->SetStatus(std::move(status));
    } catch (...) {
      context->SetStatus(CannotStart(op_));
    }
  }

  bool IsExpensive() override { return false; }

 protected:
  virtual absl::Status HandOver(OpKernelContext* context) = 0;

  const char* const op_;
  std::string name_;
};

class LibraSendKernel : public Starting {
 public:
  explicit LibraSendKernel(OpKernelConstruction* context) : Starting(context, kSend) {
    OP_REQUIRES_OK(context, context->GetAttr("to_rank", &to_rank_));
    OP_REQUIRES_OK(context, context->GetAttr("one_sided", &is_read_));
  }

 protected:
  absl::Status HandOver(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    TF_RETURN_IF_ERROR(FindEngine(op_, &engine));
    Tensor* sent = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &sent));
    std::memset(sent->data(), 0, sent->TotalBytes());
    const Tensor& tensor = context->input(0);
    const auto pending = std::make_shared<Pending>(std::vector<Tensor>{tensor});
    engine->Send(RequestOf(to_rank_, name_, tensor, is_read_, pending));
    return ToTensorFlow(op_, pending->status());  // what is known by now
  }

 private:
  int to_rank_ = 0;
  bool is_read_ = false;
};

class LibraReceiveStartKernel : public Starting {
 public:
  explicit LibraReceiveStartKernel(OpKernelConstruction* context) : Starting(context, kReceive) {
    OP_REQUIRES_OK(context, context->GetAttr("from_rank", &from_rank_));
    OP_REQUIRES_OK(context, context->GetAttr("one_sided", &is_read_));
  }

 protected:
  absl::Status HandOver(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    TF_RETURN_IF_ERROR(FindEngine(op_, &engine));
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(tensorflow::tensor::MakeShape(context->input(0), &shape));
    Tensor* buffer = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &buffer));
    const auto pending = std::make_shared<Pending>(std::vector<Tensor>{*buffer});
    TF_RETURN_IF_ERROR(PutOut(context, 1, pending));
    engine->Receive(RequestOf(from_rank_, name_, *buffer, is_read_, pending));
    return ToTensorFlow(op_, pending->status());
  }

 private:
  int from_rank_ = 0;
  bool is_read_ = false;
};

CollectiveKind KindNamed(const std::string& name) {
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
    if (name == CollectiveName(kind)) return kind;
  }
  return CollectiveKind::kReduce;
}

bool IsSummed(tensorflow::DataType type) {
  return type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16 ||
         type == tensorflow::DT_FLOAT || type == tensorflow::DT_DOUBLE;
}

class LibraCollectiveStartKernel : public Starting {
 public:
  explicit LibraCollectiveStartKernel(OpKernelConstruction* context)
      : Starting(context, kCollective) {
    std::string kind, reduction;
    OP_REQUIRES_OK(context, context->GetAttr("kind", &kind));
    OP_REQUIRES_OK(context, context->GetAttr("ranks", &ranks_));
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
    OP_REQUIRES_OK(context, context->GetAttr("reduction", &reduction));
    kind_ = KindNamed(kind);
    reduction_ = reduction == "sum" ? Reduction::kSum : Reduction::kAverage;
    OP_REQUIRES(context, !Sums(kind_) || IsSummed(context->input_type(0)),
                absl::InvalidArgumentError(absl::StrCat(
                    op_, ": '", name_, "': ", kind, " sums floating point numbers, got ",
                    tensorflow::DataTypeString(context->input_type(0)))));
  }

 protected:
  absl::Status HandOver(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    TF_RETURN_IF_ERROR(FindEngine(op_, &engine));
    const Tensor& input = context->input(0);
    tensorflow::TensorShape shape = input.shape();
    if (kind_ == CollectiveKind::kAllGather || kind_ == CollectiveKind::kReduceScatter) {
      TF_RETURN_IF_ERROR(Rescale(&shape));
    }
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &output));
    const auto pending = std::make_shared<Pending>(std::vector<Tensor>{input, *output});
    TF_RETURN_IF_ERROR(PutOut(context, 1, pending));
    CollectiveRequest request;
    request.kind = kind_;
    request.ranks = ranks_;
    request.root = root_;
    request.name = name_;
    request.content = ContentOf(input);
    if (Sums(kind_)) request.element_type = ElementTypeOf(input.dtype());
    request.element_size = static_cast<size_t>(tensorflow::DataTypeSize(input.dtype()));
    request.reduction = reduction_;
    request.input = BytesOf(input);
    request.output = BytesOf(*output);
    request.num_bytes = input.TotalBytes();
    request.done = [pending](const Status& status) { pending->End(status); };
    engine->Run(std::move(request));
    return ToTensorFlow(op_, pending->status());
  }

 private:
  absl::Status Rescale(tensorflow::TensorShape* shape) const {
    const auto size = static_cast<int64_t>(ranks_.size());
    if (shape->dims() > 0 && kind_ == CollectiveKind::kAllGather) {
      shape->set_dim(0, shape->dim_size(0) * size);
      return absl::OkStatus();
    }
    if (shape->dims() > 0 && shape->dim_size(0) % size == 0) {
      shape->set_dim(0, shape->dim_size(0) / size);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        op_, ": '", name_, "': ", CollectiveName(kind_), " over ", size,
        " ranks needs a first dimension", kind_ == CollectiveKind::kAllGather ? "" : " to divide",
        ", got ", shape->DebugString()));
  }

  CollectiveKind kind_ = CollectiveKind::kAllReduce;
  std::vector<int> ranks_;
  int root_ = -1;
  Reduction reduction_ = Reduction::kSum;
};

class LibraMessageWaitKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const auto* const handle =
        context->input(1).scalar<tensorflow::Variant>()().get<PendingHandle>();
    OP_REQUIRES_ASYNC(context, handle != nullptr,
                      absl::InvalidArgumentError(
                          "LibraMessageWait: pending must come from one of the ops that start"),
                      done);
    // A step that fails does not wait: what was to be sent to the others may never be, so neither
    // do they.
    tensorflow::CancellationManager* const cancellation = context->cancellation_manager();
    tensorflow::CancellationToken token = tensorflow::CancellationManager::kInvalidToken;
    if (cancellation != nullptr) {
      token = cancellation->get_cancellation_token();
      const bool goes_on = cancellation->RegisterCallback(token, GiveUp);
      if (!goes_on) GiveUp();  // which ends it
    }
    handle->pending->Then([context, cancellation, token, done](const Status& status) {
      if (cancellation != nullptr) cancellation->TryDeregisterCallback(token);
      if (status.ok()) {
        context->set_output(0, context->input(0));
      } else {
        context->SetStatus(ToTensorFlow("LibraMessageWait", status));
      }
      done();
    });
  }

  bool IsExpensive() override { return false; }

 private:
  static void GiveUp() {
    if (const auto engine = ActiveEngine()) {
      engine->Abort(Status(
          StatusCode::kUnavailable,
          absl::StrCat("rank ", engine->rank(), ": a step failed while it waited for a message")));
    }
  }
};

#define TF_LIBRA_CPU_KERNEL(op, kernel) \
  REGISTER_KERNEL_BUILDER(Name(op).Device(tensorflow::DEVICE_CPU), kernel)
TF_LIBRA_CPU_KERNEL(kSend, LibraSendKernel);
TF_LIBRA_CPU_KERNEL(kReceive, LibraReceiveStartKernel);
TF_LIBRA_CPU_KERNEL(kCollective, LibraCollectiveStartKernel);
TF_LIBRA_CPU_KERNEL("LibraMessageWait", LibraMessageWaitKernel);
#undef TF_LIBRA_CPU_KERNEL

}  // namespace
}  // namespace tf_libra
