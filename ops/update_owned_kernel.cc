// The kernel that runs a whole update of owned parts as one program.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ops/kernels.h"
#include "ops/lanes/engine.h"
#include "ops/owned_slot.h"
#include "ops/step_backups.h"
#include "ops/update_program.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/threadpool.h"

namespace tf_libra {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

class LibraUpdateOwnedKernel : public OpKernel {
 public:
  explicit LibraUpdateOwnedKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<int> triples;
    int num_values = 0;
    OP_REQUIRES_OK(context, context->GetAttr("is_slot", &is_slot_));
    OP_REQUIRES_OK(context, context->GetAttr("M", &num_values));
    OP_REQUIRES_OK(context, context->GetAttr("program", &triples));
    const int num_variables = num_inputs() - num_values;
    OP_REQUIRES(context, is_slot_.size() == static_cast<size_t>(num_variables),
                absl::InvalidArgumentError(
                    absl::StrCat(kOp, ": is_slot must have an element for each of the ",
                                 num_variables, " variables, got ", is_slot_.size())));
    OP_REQUIRES_OK(context, UpdateProgram::Parse(triples, num_variables, num_values, &program_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, FindEngine(kOp, &engine));
    std::vector<RefCountPtr<Var>> variables(is_slot_.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      OP_REQUIRES_OK(context, LookUpOwned(context, kOp, i, tensorflow::DT_FLOAT, &variables[i]));
    }
    LockedVariables locked;
    locked.Lock(variables);
    std::vector<float*> parts;
    std::vector<UpdateCopy> copies;
    std::vector<std::pair<PartBackup, const Var*>> backups;
    size_t num_bytes = 0;
    for (size_t i = 0; i < variables.size(); ++i) {
      ChangedPart part;
      OP_REQUIRES_OK(context, ChangePart(context, *engine, is_slot_[i], variables[i].get(), &part));
      OP_REQUIRES(context, i == 0 || part.num_bytes == num_bytes,
                  absl::InvalidArgumentError(
                      absl::StrCat(kOp, ": variable ", i, " has ", part.num_bytes,
                                   " bytes in its part, and those before have ", num_bytes)));
      num_bytes = part.num_bytes;
      parts.push_back(reinterpret_cast<float*>(part.data));
      const auto* const before = reinterpret_cast<const float*>(part.before);
      if (before != parts.back()) copies.push_back({before, parts.back()});
      if (part.backup.data == nullptr) continue;
      copies.push_back({parts.back(), reinterpret_cast<float*>(part.backup.data)});
      backups.emplace_back(part.backup, variables[i].get());
    }
    const int64_t size = num_bytes / sizeof(float);
    std::vector<UpdateValue> values;
    for (int i = is_slot_.size(); i < num_inputs(); ++i) {
      const Tensor& value = context->input(i);
      const int64_t count = value.NumElements();
      OP_REQUIRES(
          context, count == size || count == 1,
          absl::InvalidArgumentError(absl::StrCat(kOp, ": values must have 1 or ", size,
                                                  " elements, got ", count, " in input ", i)));
      values.push_back({static_cast<const float*>(value.data()), count != size});
    }
    // As TensorFlow's ops do: on all threads if there is enough to do.
    using Scheduling = tensorflow::thread::ThreadPool::SchedulingParams;
    const int64_t cycles = 2 * static_cast<int64_t>(program_.num_instructions());
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        size, Scheduling::Adaptive(cycles),
        [&](int64_t begin, int64_t end) { program_.Run(parts, values, begin, end, copies); });
    for (const auto& [backup, weight] : backups) {
      StepBackups::Global().CompleteWeight(backup, weight);
    }
  }

 private:
  static constexpr char kOp[] = "LibraUpdateOwned";

  std::vector<bool> is_slot_;
  UpdateProgram program_;
};

REGISTER_KERNEL_BUILDER(Name("LibraUpdateOwned").Device(tensorflow::DEVICE_CPU),
                        LibraUpdateOwnedKernel);

}  // namespace
}  // namespace tf_libra
