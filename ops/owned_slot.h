// Slot variables that hold only the part that this rank owns.
#ifndef TF_LIBRA_OPS_OWNED_SLOT_H_
#define TF_LIBRA_OPS_OWNED_SLOT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/owned_parts.h"
#include "ops/step_backups.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_libra {

// Content of a slot variable that holds the owned part alone.
struct OwnedSlot {
  tensorflow::Tensor part;        // a vector
  size_t begin = 0;               // of the part, in bytes
  tensorflow::TensorShape whole;  // shape of the variable

  std::string TypeName() const { return "tf_libra::OwnedSlot"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

// The variable's owned part, if it holds nothing else; otherwise null.
OwnedSlot* SlotOf(tensorflow::Var* variable);

// Returns `OpKernelContext::allocate_temp`.
inline auto AllocatorOf(tensorflow::OpKernelContext* context) {
  return [context](tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                   tensorflow::Tensor* tensor) {
    return context->allocate_temp(dtype, shape, tensor);
  };
}

// Finds the variable of an input, which must be of this dtype, whole or not.
absl::Status LookUpOwned(tensorflow::OpKernelContext* context, const char* op, int input,
                         tensorflow::DataType dtype,
                         tensorflow::core::RefCountPtr<tensorflow::Var>* variable);

// Allocates the whole tensor of a slot, with the owned part at its place.
absl::Status Restore(tensorflow::OpKernelContext* context, const OwnedSlot& slot,
                     tensorflow::Tensor* whole);

// The bytes of a tensor that this rank owns.
ByteRange OwnedBytes(const Engine& engine, int64_t num_elements, size_t element_size);

// Copies `bytes` of a tensor into a new vector.
absl::Status CopyPart(tensorflow::OpKernelContext* context, const tensorflow::Tensor& whole,
                      ByteRange bytes, tensorflow::Tensor* part);

// Makes a slot hold its owned part alone, unless it does already. Its mutex is locked.
absl::Status KeepPart(tensorflow::OpKernelContext* context, const Engine& engine,
                      tensorflow::Var* variable);

// The owned part of a slot or weight, to be changed.
struct ChangedPart {
  char* data = nullptr;
  const char* before = nullptr;  // the part before it changes: `data`, unless it moves
  size_t num_bytes = 0;
  PartBackup backup;
};

// Finds the owned part: what holds the present value keeps it. The variable's mutex is locked.
absl::Status ChangePart(tensorflow::OpKernelContext* context, const Engine& engine, bool is_slot,
                        tensorflow::Var* variable, ChangedPart* part);

// Variables that stay locked, so that whatever reads or writes them waits. TensorFlow's mutex is
// one of Abseil, which another thread may unlock (outside of Abseil's debug builds).
class LockedVariables {
 public:
  LockedVariables() = default;
  LockedVariables(const LockedVariables&) = delete;
  LockedVariables& operator=(const LockedVariables&) = delete;
  ~LockedVariables();

  // In the order in which TensorFlow's kernels lock several.
  void Lock(const std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>& variables);

  std::vector<const void*> addresses() const { return {locked_.begin(), locked_.end()}; }

 private:
  std::vector<tensorflow::Var*> locked_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_OWNED_SLOT_H_
