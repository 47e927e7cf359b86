// Element-wise updates of variables as programs, which pass over memory once.
//
// TensorFlow runs each op of an update over whole tensors: Adam writes and reads about twelve of
// them. A program runs all ops over one block of elements after the other, which stays in the
// cache. Each element sees the same operations in the same order and precision, so bits are equal.
#ifndef TF_LIBRA_OPS_UPDATE_PROGRAM_H_
#define TF_LIBRA_OPS_UPDATE_PROGRAM_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"

namespace tf_libra {

// Only operations whose results IEEE 754 defines: vector instructions and loops agree on them. (A
// TensorFlow that was built for AVX-512 approximates square roots; its wheels are not.)
enum class UpdateOp {
  kRead,            // of variable `first`
  kAssign,          // to variable `first` from `second`
  kAssignAdd,       // the same
  kAssignSubtract,  // the same
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kNegate,  // of `first` alone, as the next
  kSquare,
  kSqrt,
};
inline constexpr int kNumUpdateOps = static_cast<int>(UpdateOp::kSqrt) + 1;

constexpr bool ChangesVariable(UpdateOp op) {
  return op == UpdateOp::kAssign || op == UpdateOp::kAssignAdd || op == UpdateOp::kAssignSubtract;
}
constexpr bool IsUnary(UpdateOp op) { return op >= UpdateOp::kNegate; }

// Operands are numbers of values: first those that are passed in, then the results of all
// instructions, in order.
struct UpdateInstruction {
  UpdateOp op;
  int first;
  int second;  // not of kRead, nor of unary operations
};

// A vector, or one element that stands for all.
struct UpdateValue {
  const float* data;
  bool is_scalar;
};

// Elements that are copied, as to or from a variable.
struct UpdateCopy {
  const float* from;
  float* to;
};

class UpdateProgram {
 public:
  // Parses triples of an operation and its operands. InvalidArgument: an operand is none of the
  // variables, or no value that is known by then.
  static absl::Status Parse(const std::vector<int>& triples, int num_variables, int num_values,
                            UpdateProgram* program);

  // Updates elements [begin, end) of all variables, after `copies`. Concurrent runs need disjoint
  // elements.
  void Run(const std::vector<float*>& variables, const std::vector<UpdateValue>& values,
           size_t begin, size_t end, const std::vector<UpdateCopy>& copies = {}) const;

  size_t num_instructions() const { return instructions_.size(); }

 private:
  std::vector<UpdateInstruction> instructions_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_UPDATE_PROGRAM_H_
