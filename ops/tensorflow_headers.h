// Precompiled header of units that use TensorFlow (setup.py). A unit includes what it uses all the
// same.
#ifndef TF_LIBRA_OPS_TENSORFLOW_HEADERS_H_
#define TF_LIBRA_OPS_TENSORFLOW_HEADERS_H_

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/tensor_id.h"

#endif  // TF_LIBRA_OPS_TENSORFLOW_HEADERS_H_
