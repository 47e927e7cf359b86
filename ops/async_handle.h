// Handle of an operation that one op starts and another op waits for.
#ifndef TF_LIBRA_OPS_ASYNC_HANDLE_H_
#define TF_LIBRA_OPS_ASYNC_HANDLE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace tf_libra {

// Its tensors are alive until it has ended, whatever becomes of the step.
class Pending {
 public:
  explicit Pending(std::vector<tensorflow::Tensor> tensors) : tensors_(std::move(tensors)) {}

  void End(const Status& status) {
    std::function<void(const Status&)> then;
    std::vector<tensorflow::Tensor> tensors;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      has_ended_ = true;
      status_ = status;
      tensors.swap(tensors_);
      then.swap(then_);
    }
    tensors.clear();
    if (then) then(status);
  }

  // Calls `then` once, here or where it ends.
  void Then(std::function<void(const Status&)> then) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!has_ended_) {
        then_ = std::move(then);
        return;
      }
    }
    then(status_);  // which stays
  }

  // Returns the status of the operation; OK until it has ended.
  Status status() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  bool has_ended_ = false;
  Status status_;
  std::vector<tensorflow::Tensor> tensors_;
  std::function<void(const Status&)> then_;
};

// As a tensor holds it. It means nothing outside of the process.
struct PendingHandle {
  std::shared_ptr<Pending> pending;

  std::string TypeName() const { return "tf_libra::PendingHandle"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_ASYNC_HANDLE_H_
