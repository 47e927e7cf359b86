#include "ops/owned_slot.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

OwnedSlot* SlotOf(Var* variable) {
  Tensor* const tensor = variable->tensor();
  if (tensor->dtype() != tensorflow::DT_VARIANT || tensor->NumElements() != 1) return nullptr;
  return tensor->scalar<tensorflow::Variant>()().get<OwnedSlot>();
}

absl::Status LookUpOwned(OpKernelContext* context, const char* op, int input,
                         tensorflow::DataType dtype, RefCountPtr<Var>* variable) {
  TF_RETURN_IF_ERROR(
      tensorflow::LookupResource(context, HandleFromInput(context, input), variable));
  const tensorflow::tf_shared_lock lock(*(*variable)->mu());
  const OwnedSlot* const slot = SlotOf(variable->get());
  const tensorflow::DataType found =
      slot != nullptr ? slot->part.dtype() : (*variable)->tensor()->dtype();
  if (found == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": the variable has dtype ",
                                                 tensorflow::DataTypeString(found), ", not ",
                                                 tensorflow::DataTypeString(dtype)));
}

absl::Status Restore(OpKernelContext* context, const OwnedSlot& slot, Tensor* whole) {
  TF_RETURN_IF_ERROR(context->allocate_temp(slot.part.dtype(), slot.whole, whole));
  if (slot.part.TotalBytes() > 0) {
    std::memcpy(static_cast<char*>(whole->data()) + slot.begin, slot.part.data(),
                slot.part.TotalBytes());
  }
  return absl::OkStatus();
}

}  // namespace tf_libra
