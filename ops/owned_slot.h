// Slot variables that hold only the part that this rank owns.
#ifndef TF_LIBRA_OPS_OWNED_SLOT_H_
#define TF_LIBRA_OPS_OWNED_SLOT_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
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

// Finds the variable of an input, which must be of this dtype, whole or not.
absl::Status LookUpOwned(tensorflow::OpKernelContext* context, const char* op, int input,
                         tensorflow::DataType dtype,
                         tensorflow::core::RefCountPtr<tensorflow::Var>* variable);

// Allocates the whole tensor of a slot, with the owned part at its place.
absl::Status Restore(tensorflow::OpKernelContext* context, const OwnedSlot& slot,
                     tensorflow::Tensor* whole);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_OWNED_SLOT_H_
