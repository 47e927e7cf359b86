// Code that is common to kernels which submit tensors to the engine.
#ifndef TF_LIBRA_OPS_KERNELS_H_
#define TF_LIBRA_OPS_KERNELS_H_

#include <memory>

#include "absl/status/status.h"
#include "ops/lanes/element.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {

// Requires a type that can be summed.
ElementType ElementTypeOf(tensorflow::DataType type);

// "OP: message", as TensorFlow's errors are.
absl::Status ToTensorFlow(const char* op, const Status& status);

// Finds the engine that takes requests; an error if no engine runs.
absl::Status FindEngine(const char* op, std::shared_ptr<Engine>* engine);

// In a `catch`: the request has not got to the engine, and the other ranks are not to wait for it.
absl::Status CannotStart(const char* op);

// Calls `hand_over`, which has the engine call `done`. If it throws, the kernel fails instead.
template <typename HandOver>
void StartOrFail(const char* op, tensorflow::OpKernelContext* context,
                 const tensorflow::AsyncOpKernel::DoneCallback& done, HandOver hand_over) {
  try {
    hand_over();
  } catch (...) {
    context->SetStatus(CannotStart(op));
    done();
  }
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_KERNELS_H_
