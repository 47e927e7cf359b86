// Memory of tensors that are needed again in each step.
#ifndef TF_LIBRA_OPS_SPARE_TENSORS_H_
#define TF_LIBRA_OPS_SPARE_TENSORS_H_

#include <cstdint>
#include <map>
#include <utility>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {

// Tensors whose values nothing needs. The caller keeps it thread-safe.
class SpareTensors {
 public:
  // Adds a tensor, to which others may still refer.
  void Add(tensorflow::Tensor tensor);
  // Sets `tensor` to one of this dtype and size to which nothing else refers; returns false if
  // there is none. A tensor that is found, but still referred to, is dropped.
  bool Take(tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
            tensorflow::Tensor* tensor);
  void swap(SpareTensors& other) { tensors_.swap(other.tensors_); }

 private:
  // By dtype and number of elements.
  std::multimap<std::pair<tensorflow::DataType, int64_t>, tensorflow::Tensor> tensors_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_SPARE_TENSORS_H_
