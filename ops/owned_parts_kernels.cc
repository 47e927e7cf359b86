#include <cstring>
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
#include "ops/owned_slot.h"
#include "ops/step_backups.h"
#include "tensorflow/core/framework/bfloat16.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_libra {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

class LibraOwnedPartKernel : public OpKernel {
 public:
  explicit LibraOwnedPartKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_elements", &num_elements_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    Tensor flat;
    if (input.NumElements() == 1 && num_elements_ != 1) {
      OP_REQUIRES(context, flat.CopyFrom(input, TensorShape({})),
                  absl::InternalError("LibraOwnedPart: an element cannot be read as a scalar"));
      context->set_output(0, flat);
      return;
    }
    OP_REQUIRES(context, input.NumElements() == num_elements_,
                absl::InvalidArgumentError(
                    absl::StrCat("LibraOwnedPart: the tensor must have 1 or ", num_elements_,
                                 " elements, got ", input.NumElements())));
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, FindEngine("LibraOwnedPart", &engine));
    const ByteRange owned =
        OwnedBytes(*engine, num_elements_, tensorflow::DataTypeSize(input.dtype()));
    Tensor part;
    OP_REQUIRES_OK(context, CopyPart(context, input, owned, &part));
    context->set_output(0, part);
  }

 private:
  int64_t num_elements_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("LibraOwnedPart").Device(tensorflow::DEVICE_CPU),
                        LibraOwnedPartKernel);

class LibraReadOwnedKernel : public OpKernel {
 public:
  explicit LibraReadOwnedKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("before_steps", &before_steps_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, FindEngine("LibraReadOwned", &engine));
    RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, LookUpOwned(context, "LibraReadOwned", 0, dtype_, &variable));
    const tensorflow::mutex_lock lock(*variable->mu());
    if (before_steps_) {
      Tensor part;
      if (!StepBackups::Global().FindSlot(variable.get(), &part)) {
        const OwnedSlot* const slot = SlotOf(variable.get());
        const Tensor& whole = *variable->tensor();
        const size_t size = tensorflow::DataTypeSize(dtype_);
        if (slot != nullptr) {
          part = slot->part;
        } else {
          OP_REQUIRES_OK(context, CopyPart(context, whole,
                                           OwnedBytes(*engine, whole.NumElements(), size), &part));
        }
      }
      context->set_output(0, part);
      return;
    }
    OP_REQUIRES_OK(context, KeepPart(context, *engine, variable.get()));
    context->set_output(0, SlotOf(variable.get())->part);
  }

 private:
  tensorflow::DataType dtype_;
  bool before_steps_ = false;
};

REGISTER_KERNEL_BUILDER(Name("LibraReadOwned").Device(tensorflow::DEVICE_CPU),
                        LibraReadOwnedKernel);

template <typename T>
class LibraAssignOwnedKernel : public OpKernel {
 public:
  explicit LibraAssignOwnedKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::string mode;
    OP_REQUIRES_OK(context, context->GetAttr("mode", &mode));
    OP_REQUIRES_OK(context, context->GetAttr("is_slot", &is_slot_));
    sign_ = mode == "assign" ? 0 : mode == "add" ? 1 : -1;
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Engine> engine;
    OP_REQUIRES_OK(context, FindEngine("LibraAssignOwned", &engine));
    RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, LookUpOwned(context, "LibraAssignOwned", 0,
                                        tensorflow::DataTypeToEnum<T>::value, &variable));
    const tensorflow::mutex_lock lock(*variable->mu());
    const Tensor& value = context->input(1);
    ChangedPart changed;
    OP_REQUIRES_OK(context, ChangePart(context, *engine, is_slot_, variable.get(), &changed));
    const int64_t size = changed.num_bytes / sizeof(T);
    OP_REQUIRES(
        context, value.NumElements() == size || value.NumElements() == 1,
        absl::InvalidArgumentError(absl::StrCat("LibraAssignOwned: the value must have 1 or ", size,
                                                " elements, got ", value.NumElements())));
    if (changed.backup.data != nullptr) {
      std::memcpy(changed.backup.data, changed.data, changed.num_bytes);
      StepBackups::Global().CompleteWeight(changed.backup, variable.get());
    }
    T* const part = reinterpret_cast<T*>(changed.data);
    const T* const before = reinterpret_cast<const T*>(changed.before);
    const T* const from = static_cast<const T*>(value.data());
    const bool is_scalar = value.NumElements() != size;
    // One loop each, which the compiler can write with vector instructions.
    const auto change = [&](auto combine) {
      if (is_scalar) {
        for (int64_t i = 0; i < size; ++i) part[i] = combine(before[i], *from);
      } else {
        for (int64_t i = 0; i < size; ++i) part[i] = combine(before[i], from[i]);
      }
    };
    if (sign_ == 0) {
      change([](T, T to) { return to; });
    } else if (sign_ > 0) {
      change([](T present, T by) { return T(present + by); });
    } else {
      change([](T present, T by) { return T(present - by); });
    }
  }

 private:
  bool is_slot_ = false;
  int sign_ = 0;
};

#define TF_LIBRA_REGISTER_ASSIGN(type)                                                       \
  REGISTER_KERNEL_BUILDER(                                                                   \
      Name("LibraAssignOwned").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("dtype"), \
      LibraAssignOwnedKernel<type>)

TF_LIBRA_REGISTER_ASSIGN(Eigen::half);
TF_LIBRA_REGISTER_ASSIGN(tensorflow::bfloat16);
TF_LIBRA_REGISTER_ASSIGN(float);
TF_LIBRA_REGISTER_ASSIGN(double);

class LibraReleaseOwnedKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context,
                   tensorflow::LookupResource(context, HandleFromInput(context, 0), &variable));
    const tensorflow::mutex_lock lock(*variable->mu());
    const OwnedSlot* const slot = SlotOf(variable.get());
    if (slot == nullptr) return;
    Tensor whole;
    OP_REQUIRES_OK(context, Restore(context, *slot, &whole));
    if (whole.TotalBytes() == 0) {
      *variable->tensor() = whole;
      return;
    }
    char* const data = static_cast<char*>(whole.data());
    const size_t end = slot->begin + slot->part.TotalBytes();
    std::memset(data, 0, slot->begin);
    std::memset(data + end, 0, whole.TotalBytes() - end);
    *variable->tensor() = whole;
  }
};

REGISTER_KERNEL_BUILDER(Name("LibraReleaseOwned").Device(tensorflow::DEVICE_CPU),
                        LibraReleaseOwnedKernel);

}  // namespace
}  // namespace tf_libra
