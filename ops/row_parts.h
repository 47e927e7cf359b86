// Rows of one tensor, of which each rank has some of its own.
#ifndef TF_LIBRA_OPS_ROW_PARTS_H_
#define TF_LIBRA_OPS_ROW_PARTS_H_

#include <vector>

#include "absl/status/status.h"
#include "ops/lanes/buffers.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_libra {

struct RowParts {
  tensorflow::TensorShape shape;  // of all ranks' rows
  std::vector<ByteRange> parts;   // [rank]
};

// Returns where the rows of each rank are, given those of `rank` and where the rows of each end.
// InvalidArgument: they do not ascend, are not as many as ranks, `rank` has other rows, or the rows
// are larger than this machine's memory.
absl::Status FindRowParts(const tensorflow::Tensor& own, const tensorflow::Tensor& ends,
                          int world_size, int rank, RowParts* rows);

// Copies the own rows to their part of `all`, whose other parts stay.
void PlaceOwnRows(const tensorflow::Tensor& own, ByteRange part, tensorflow::Tensor* all);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_ROW_PARTS_H_
