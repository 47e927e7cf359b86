// Error feedback: rounding errors of float32 tensors that travel in 16 bits (wire_format.h). This
// rank adds them to the same elements the next time it sends them.
#ifndef TF_LIBRA_OPS_LANES_ERROR_FEEDBACK_H_
#define TF_LIBRA_OPS_LANES_ERROR_FEEDBACK_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/lanes/buffers.h"
#include "ops/lanes/telemetry.h"

namespace tf_libra {

// Errors of consecutive elements of one tensor.
using RoundingErrors = std::shared_ptr<std::vector<float>>;

class ErrorFeedback {
 public:
  // Returns the errors of this process.
  static ErrorFeedback& Global();

  // Returns the errors of elements [first, first + count), zeros at first. The caller changes them
  // in place. If a tensor is cut elsewhere than before, errors are copied to their new place: no
  // all-reduce of the tensor may then be running.
  RoundingErrors Of(const std::string& function, const std::string& tensor, size_t first,
                    size_t count);
  // Returns those of the float32 tensors of an all-reduce, or nothing if it has no error feedback.
  std::vector<RoundingErrors> Of(const OperationInfo& operation,
                                 const std::vector<TensorView>& tensors);

  // Whole tensors of a function by name; elements without errors are zeros. No all-reduce of the
  // function may be running.
  std::map<std::string, std::vector<float>> Copy(const std::string& function) const;
  void Set(const std::string& function, const std::string& tensor, std::vector<float> errors);
  // Restarts from zeros.
  void Clear(const std::string& function);

 private:
  using Pieces = std::map<size_t, RoundingErrors>;  // by first element, disjoint

  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, Pieces>> functions_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ERROR_FEEDBACK_H_
