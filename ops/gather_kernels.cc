// Kernels that gather variables, and that wait for gathers which go on after their step.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/kernels.h"
#include "ops/lanes/engine.h"
#include "ops/owned_slot.h"
#include "ops/pending_gathers.h"
#include "ops/step_backups.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

// Variables, and the tensors that they hold when all parts are there.
struct Gathered {
  std::vector<RefCountPtr<Var>> variables;
  std::vector<Tensor> wholes;
  StepBackups::StepPtr step;  // whose updates are gathered; null for another gather

  // With each mutex locked.
  void Assign() {
    if (step != nullptr && !StepBackups::Global().MayAssign(*step)) return;
    for (size_t i = 0; i < variables.size(); ++i) {
      *variables[i]->tensor() = std::move(wholes[i]);
    }
  }
};

class LibraGatherOwnedKernel : public tensorflow::AsyncOpKernel {
 public:
  explicit LibraGatherOwnedKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {
    auto operation = std::make_shared<OperationInfo>();
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("in_background", &in_background_));
    OP_REQUIRES_OK(context, context->GetAttr("of_step", &of_step_));
    OP_REQUIRES_OK(context, context->GetAttr("ends_step", &ends_step_));
    OP_REQUIRES_OK(context, context->GetAttr("names", &operation->tensor_names));
    OP_REQUIRES_OK(context, context->GetAttr("num_threads", &operation->num_threads));
    OP_REQUIRES_OK(context, context->GetAttr("first_lane", &operation->first_lane));
    OP_REQUIRES_OK(context, context->GetAttr("plan", &operation->plan));
    OP_REQUIRES_OK(context, context->GetAttr("function", &operation->function));
    OP_REQUIRES(context, operation->tensor_names.size() == static_cast<size_t>(num_inputs()),
                absl::InvalidArgumentError(
                    absl::StrCat("LibraGatherOwned: names must name each of the ", num_inputs(),
                                 " variables, got ", operation->tensor_names.size(), " names")));
    operation->is_gather = true;
    operation->ComputeDigest();
    operation_ = std::move(operation);
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    StartOrFail(kOp, context, done, [&] { HandOver(context, done); });
  }

  bool IsExpensive() override { return false; }

 private:
  static constexpr char kOp[] = "LibraGatherOwned";

  absl::Status LookUp(OpKernelContext* context, Gathered* gathered) {
    for (int i = 0; i < num_inputs(); ++i) {
      RefCountPtr<Var> variable;
      TF_RETURN_IF_ERROR(LookUpOwned(context, kOp, i, dtype_, &variable));
      gathered->variables.push_back(std::move(variable));
    }
    return absl::OkStatus();
  }

  // Finds the memory to gather into, with the owned part. The variable keeps its value if the
  // gather fails. Its mutex is locked.
  static absl::Status FindWhole(OpKernelContext* context, const Engine& engine, Var* variable,
                                Tensor* whole) {
    const OwnedSlot* const slot = SlotOf(variable);
    if (slot != nullptr) return Restore(context, *slot, whole);
    const Tensor& present = *variable->tensor();
    TF_RETURN_IF_ERROR(StepBackups::Global().Allocate(AllocatorOf(context), present.dtype(),
                                                      present.shape(), whole));
    const ByteRange owned =
        OwnedBytes(engine, present.NumElements(), tensorflow::DataTypeSize(present.dtype()));
    if (owned.size() > 0) {
      std::memcpy(static_cast<char*>(whole->data()) + owned.begin,
                  static_cast<const char*>(present.data()) + owned.begin, owned.size());
    }
    return absl::OkStatus();
  }

  // With each mutex locked.
  absl::Status Prepare(OpKernelContext* context, const Engine& engine, Gathered* gathered) const {
    gathered->wholes.resize(gathered->variables.size());
    for (size_t i = 0; i < gathered->variables.size(); ++i) {
      Var* const variable = gathered->variables[i].get();
      TF_RETURN_IF_ERROR(FindWhole(context, engine, variable, &gathered->wholes[i]));
    }
    if (of_step_) {
      gathered->step =
          StepBackups::Global().BeginGather(gathered->variables, ends_step_, in_background_);
    }
    return absl::OkStatus();
  }

  static void End(const Gathered& gathered, const Status& status) {
    if (gathered.step != nullptr) StepBackups::Global().EndGather(gathered.step, status.ok());
  }

  AllReduceRequest RequestOf(const Gathered& gathered) const {
    AllReduceRequest request;
    request.operation = operation_;
    request.element_type = ElementTypeOf(dtype_);
    request.steps = ExchangeSteps::kAllGather;
    for (const Tensor& whole : gathered.wholes) {
      request.tensors.push_back({whole.data(), whole.data(), whole.TotalBytes()});
    }
    return request;
  }

  void HandOver(OpKernelContext* context, const DoneCallback& done) {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK_ASYNC(context, FindEngine(kOp, &engine), done);
    const auto gathered = std::make_shared<Gathered>();
    OP_REQUIRES_OK_ASYNC(context, LookUp(context, gathered.get()), done);
    if (in_background_) return StartInBackground(context, engine.get(), gathered, done);
    {
      LockedVariables locked;
      locked.Lock(gathered->variables);
      OP_REQUIRES_OK_ASYNC(context, Prepare(context, *engine, gathered.get()), done);
    }
    AllReduceRequest request = RequestOf(*gathered);
    request.done = [context, done, gathered](const Status& status) {
      if (status.ok()) {
        LockedVariables locked;
        locked.Lock(gathered->variables);
        gathered->Assign();
      }
      End(*gathered, status);
      if (!status.ok()) context->SetStatus(ToTensorFlow(kOp, status));
      done();
    };
    engine->AllReduce(std::move(request));  // throws nothing
  }

  void StartInBackground(OpKernelContext* context, Engine* engine,
                         const std::shared_ptr<Gathered>& gathered, const DoneCallback& done) {
    auto locked = std::make_shared<LockedVariables>();
    locked->Lock(gathered->variables);
    OP_REQUIRES_OK_ASYNC(context, Prepare(context, *engine, gathered.get()), done);
    const PendingGathers::Variables addresses = locked->addresses();
    AllReduceRequest request = RequestOf(*gathered);
    request.done = [gathered, locked, addresses](const Status& status) mutable {
      if (status.ok()) gathered->Assign();
      if (gathered->step != nullptr) {
        StepBackups::Global().Unlock(gathered->step.get(), gathered->variables);
      }
      locked.reset();
      End(*gathered, status);
      PendingGathers::Global().End(addresses, status);
    };
    PendingGathers::Global().Begin(addresses);
    locked.reset();  // the request has it
    engine->AllReduce(std::move(request));
    done();
  }

  tensorflow::DataType dtype_;
  bool in_background_ = false, of_step_ = false, ends_step_ = false;
  std::shared_ptr<const OperationInfo> operation_;
};

REGISTER_KERNEL_BUILDER(Name("LibraGatherOwned").Device(tensorflow::DEVICE_CPU),
                        LibraGatherOwnedKernel);

class LibraAwaitGatherKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    StartOrFail(kOp, context, done, [&] {
      const auto variables = std::make_shared<std::vector<RefCountPtr<Var>>>();
      PendingGathers::Variables addresses;
      for (int i = 0; i < num_inputs(); ++i) {
        RefCountPtr<Var> variable;
        OP_REQUIRES_OK_ASYNC(
            context,
            tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i), &variable),
            done);
        addresses.push_back(variable.get());
        variables->push_back(std::move(variable));
      }
      PendingGathers::Global().Await(addresses, [context, done, variables] {
        for (const auto& variable : *variables) {
          const tensorflow::tf_shared_lock lock(*variable->mu());
          const Status failure = PendingGathers::Global().failure();
          if (!failure.ok()) {
            context->SetStatus(ToTensorFlow(kOp, failure));
            break;
          }
        }
        done();
      });
    });
  }

  bool IsExpensive() override { return false; }

 private:
  static constexpr char kOp[] = "LibraAwaitGather";
};

REGISTER_KERNEL_BUILDER(Name("LibraAwaitGather").Device(tensorflow::DEVICE_CPU),
                        LibraAwaitGatherKernel);

}  // namespace
}  // namespace tf_libra
