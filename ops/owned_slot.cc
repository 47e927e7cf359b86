#include "ops/owned_slot.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_libra {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
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

ByteRange OwnedBytes(const Engine& engine, int64_t num_elements, size_t element_size) {
  const ByteRange owned = OwnedElements(num_elements, engine.world_size(), engine.rank());
  return {owned.begin * element_size, owned.end * element_size};
}

absl::Status CopyPart(OpKernelContext* context, const Tensor& whole, ByteRange bytes,
                      Tensor* part) {
  const int64_t size = bytes.size() / tensorflow::DataTypeSize(whole.dtype());
  TF_RETURN_IF_ERROR(context->allocate_temp(whole.dtype(), TensorShape({size}), part));
  if (size > 0) {
    std::memcpy(part->data(), static_cast<const char*>(whole.data()) + bytes.begin, bytes.size());
  }
  return absl::OkStatus();
}

// Makes the variable hold its owned part alone, unless it does already. Its mutex is locked.
absl::Status KeepPart(OpKernelContext* context, const Engine& engine, Var* variable) {
  if (SlotOf(variable) != nullptr) return absl::OkStatus();
  const Tensor whole = *variable->tensor();
  OwnedSlot slot;
  slot.whole = whole.shape();
  const ByteRange bytes =
      OwnedBytes(engine, whole.NumElements(), tensorflow::DataTypeSize(whole.dtype()));
  TF_RETURN_IF_ERROR(CopyPart(context, whole, bytes, &slot.part));
  slot.begin = bytes.begin;
  Tensor holder;
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_VARIANT, {}, &holder, attributes));
  StepBackups::Global().AddWholeSlot(variable, whole, slot.part);
  holder.scalar<tensorflow::Variant>()() = std::move(slot);
  *variable->tensor() = holder;
  return absl::OkStatus();
}

absl::Status ChangePart(OpKernelContext* context, const Engine& engine, bool is_slot, Var* variable,
                        ChangedPart* part) {
  StepBackups& backups = StepBackups::Global();
  Tensor* tensor = variable->tensor();
  ByteRange bytes;
  if (is_slot) {
    TF_RETURN_IF_ERROR(KeepPart(context, engine, variable));
    tensor = &SlotOf(variable)->part;
    if (backups.AddSlot(variable, *tensor)) {
      Tensor moved;
      TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &moved));
      part->before = static_cast<const char*>(tensor->data());
      part->data = static_cast<char*>(moved.data());
      part->num_bytes = moved.TotalBytes();
      *tensor = std::move(moved);
      return absl::OkStatus();
    }
    bytes = {0, tensor->TotalBytes()};
  } else {
    bytes = OwnedBytes(engine, tensor->NumElements(), tensorflow::DataTypeSize(tensor->dtype()));
    TF_RETURN_IF_ERROR(backups.AddWeight(AllocatorOf(context), variable, bytes, &part->backup));
  }
  if (!tensor->RefCountIsOne()) {  // its present value is still read
    Tensor copy;
    TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
    if (copy.TotalBytes() > 0) std::memcpy(copy.data(), tensor->data(), copy.TotalBytes());
    *tensor = copy;
  }
  part->before = part->data = static_cast<char*>(tensor->data()) + bytes.begin;
  part->num_bytes = bytes.size();
  return absl::OkStatus();
}

LockedVariables::~LockedVariables() {
  for (Var* const variable : locked_) variable->mu()->unlock();
}

void LockedVariables::Lock(const std::vector<RefCountPtr<Var>>& variables) {
  std::vector<Var*> found;
  for (const auto& variable : variables) found.push_back(variable.get());
  std::sort(found.begin(), found.end(),
            [](Var* first, Var* second) { return first->mu() < second->mu(); });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  locked_.reserve(found.size());
  for (Var* const variable : found) {
    variable->mu()->lock();
    locked_.push_back(variable);
  }
}

}  // namespace tf_libra
