#include "ops/spare_tensors.h"

#include <utility>

namespace tf_libra {

using tensorflow::Tensor;

void SpareTensors::Add(Tensor tensor) {
  if (tensor.NumElements() == 0) return;
  const auto key = std::make_pair(tensor.dtype(), tensor.NumElements());
  tensors_.emplace(key, std::move(tensor));
}

bool SpareTensors::Take(tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                        Tensor* tensor) {
  const auto [first, last] = tensors_.equal_range({dtype, shape.num_elements()});
  for (auto found = first; found != last;) {
    const Tensor spare = std::move(found->second);
    found = tensors_.erase(found);
    // A reader may still have the value that a variable held.
    if (spare.RefCountIsOne()) return tensor->CopyFrom(spare, shape);
  }
  return false;
}

}  // namespace tf_libra
