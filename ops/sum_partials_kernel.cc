// The kernel that adds sums of owned parts over all ranks.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/engine_slot.h"
#include "ops/kernels.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/owned_parts.h"
#include "tensorflow/core/framework/bfloat16.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status ReadNumber(const Tensor& tensor, double* number) {
  if (tensor.NumElements() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "LibraSumPartials: partials must have one element, got ", tensor.NumElements()));
  }
  switch (tensor.dtype()) {
    case tensorflow::DT_HALF:
      *number = static_cast<double>(*static_cast<const Eigen::half*>(tensor.data()));
      break;
    case tensorflow::DT_BFLOAT16:
      *number = static_cast<double>(*static_cast<const tensorflow::bfloat16*>(tensor.data()));
      break;
    case tensorflow::DT_FLOAT:
      *number = *static_cast<const float*>(tensor.data());
      break;
    case tensorflow::DT_BOOL:  // the sum counts the ranks with an element that is false
      *number = *static_cast<const bool*>(tensor.data()) ? 0 : 1;
      break;
    default:
      *number = *static_cast<const double*>(tensor.data());
  }
  return absl::OkStatus();
}

void WriteNumber(double number, Tensor* tensor) {
  switch (tensor->dtype()) {
    case tensorflow::DT_HALF:
      *static_cast<Eigen::half*>(tensor->data()) = static_cast<Eigen::half>(number);
      break;
    case tensorflow::DT_BFLOAT16:
      *static_cast<tensorflow::bfloat16*>(tensor->data()) =
          static_cast<tensorflow::bfloat16>(number);
      break;
    case tensorflow::DT_FLOAT:
      *static_cast<float*>(tensor->data()) = static_cast<float>(number);
      break;
    case tensorflow::DT_BOOL:
      *static_cast<bool*>(tensor->data()) = number == 0;
      break;
    default:
      *static_cast<double*>(tensor->data()) = number;
  }
}

// Gathers the numbers of all ranks, and adds them in the order of ranks.
class LibraSumPartialsKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit LibraSumPartialsKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    auto operation = std::make_shared<OperationInfo>();
    operation->tensor_names.resize(1);
    OP_REQUIRES_OK(context, context->GetAttr("name_of_all", &operation->tensor_names[0]));
    OP_REQUIRES_OK(context, context->GetAttr("plan", &operation->plan));
    OP_REQUIRES_OK(context, context->GetAttr("function", &operation->function));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES(
        context, dims_.size() == static_cast<size_t>(num_inputs()),
        absl::InvalidArgumentError(absl::StrCat("LibraSumPartials: dims must be of each of the ",
                                                num_inputs(), " partials, got ", dims_.size())));
    operation->is_gather = true;
    operation->ComputeDigest();
    operation_ = std::move(operation);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    StartOrFail(kOp, context, done, [&] { HandOver(context, done); });
  }

  bool IsExpensive() override { return false; }

 private:
  static constexpr char kOp[] = "LibraSumPartials";

  void HandOver(OpKernelContext* context, const DoneCallback& done) {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(context, FindEngine(kOp, &engine), done);
    const size_t num_ranks = engine->world_size();
    // Each rank owns as many whole blocks.
    const size_t num_blocks = (dims_.size() + kOwnedElements - 1) / kOwnedElements;
    const size_t num_elements = num_ranks * num_blocks * kOwnedElements;
    const auto all = std::make_shared<std::vector<double>>(num_elements);
    double* const own = all->data() + OwnedElements(num_elements, num_ranks, engine->rank()).begin;
    for (int i = 0; i < num_inputs(); ++i) {
      OP_REQUIRES_OK_ASYNC(context, ReadNumber(context->input(i), &own[i]), done);
    }
    std::vector<Tensor*> sums(num_inputs());
    for (int i = 0; i < num_inputs(); ++i) {
      const std::vector<int64_t> ones(dims_[i], 1);
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(i, TensorShape(ones), &sums[i]), done);
    }
    AllReduceRequest request;
    request.operation = operation_;
    request.element_type = ElementType::kFloat64;
    request.steps = ExchangeSteps::kAllGather;
    request.tensors = {{all->data(), all->data(), num_elements * sizeof(double)}};
    request.done = [context, done, all, sums, num_ranks](const Status& status) {
      if (status.ok()) {
        for (size_t i = 0; i < sums.size(); ++i) {
          double sum = 0;
          for (size_t rank = 0; rank < num_ranks; ++rank) {
            sum += (*all)[OwnedElements(all->size(), num_ranks, rank).begin + i];
          }
          WriteNumber(sum, sums[i]);
        }
      } else {
        context->SetStatus(ToTensorFlow(kOp, status));
      }
      done();
    };
    engine->AllReduce(std::move(request));  // throws nothing
  }

  std::vector<int> dims_;
  std::shared_ptr<const OperationInfo> operation_;
};

REGISTER_KERNEL_BUILDER(Name("LibraSumPartials").Device(tensorflow::DEVICE_CPU),
                        LibraSumPartialsKernel);

}  // namespace
}  // namespace tf_libra
