#include "ops/weight_backups.h"

#include <cstring>
#include <utility>

#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {

using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

WeightBackups& WeightBackups::Global() {
  static WeightBackups* const backups = new WeightBackups;
  return *backups;
}

absl::Status WeightBackups::Add(tensorflow::OpKernelContext* context, Var* weight, ByteRange bytes,
                                char** data) {
  *data = nullptr;
  if (bytes.size() == 0) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (backups_.count(weight) > 0) return absl::OkStatus();
  const tensorflow::DataType dtype = weight->tensor()->dtype();
  const int64_t size = bytes.size() / tensorflow::DataTypeSize(dtype);
  Tensor part;
  TF_RETURN_IF_ERROR(context->allocate_temp(dtype, tensorflow::TensorShape({size}), &part));
  *data = static_cast<char*>(part.data());
  weight->Ref();
  backups_.emplace(weight, Backup{RefCountPtr<Var>(weight), bytes.begin, std::move(part)});
  return absl::OkStatus();
}

void WeightBackups::Complete(const Var* weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  backups_.at(weight).is_complete = true;
}

void WeightBackups::Drop(const std::vector<RefCountPtr<Var>>& weights) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (backups_.empty()) return;
  for (const auto& weight : weights) backups_.erase(weight.get());
}

void WeightBackups::Restore() {
  std::unordered_map<const Var*, Backup> backups;
  {
    // Kernels lock a weight first.
    const std::lock_guard<std::mutex> lock(mutex_);
    backups.swap(backups_);
  }
  for (auto& [address, backup] : backups) {
    const tensorflow::mutex_lock lock(*backup.weight->mu());
    Tensor* const tensor = backup.weight->tensor();
    if (!backup.is_complete) continue;  // the kernel has failed before it changed the part
    const size_t end = backup.begin + backup.part.TotalBytes();
    if (tensor->dtype() != backup.part.dtype() || tensor->TotalBytes() < end) continue;
    if (!tensor->RefCountIsOne()) *tensor = tensorflow::tensor::DeepCopy(*tensor);
    std::memcpy(static_cast<char*>(tensor->data()) + backup.begin, backup.part.data(),
                backup.part.TotalBytes());
  }
}

}  // namespace tf_libra
