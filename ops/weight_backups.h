// Owned parts of weights as they were before a step has updated them.
#ifndef TF_LIBRA_OPS_WEIGHT_BACKUPS_H_
#define TF_LIBRA_OPS_WEIGHT_BACKUPS_H_

#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "ops/lanes/owned_parts.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_libra {

// Thread-safe record of the weights whose owned parts have been updated, and that have not been
// gathered since: a step that fails before its gathers leaves the weights of the last step.
class WeightBackups {
 public:
  static WeightBackups& Global();

  // Allocates memory for the part `bytes` of a weight, to be filled before the part changes; sets
  // `data` to it, or to null if the part has a backup or is empty. The weight's mutex is locked
  // until the backup is complete.
  absl::Status Add(tensorflow::OpKernelContext* context, tensorflow::Var* weight, ByteRange bytes,
                   char** data);

  void Complete(const tensorflow::Var* weight);

  // Drops the backups of weights that are gathered from now on.
  void Drop(const std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>& weights);

  // Undoes the updates. No op may be running.
  void Restore();

 private:
  struct Backup {
    tensorflow::core::RefCountPtr<tensorflow::Var> weight;
    size_t begin;  // of the part, in bytes
    tensorflow::Tensor part;
    bool is_complete = false;
  };

  std::mutex mutex_;
  std::unordered_map<const tensorflow::Var*, Backup> backups_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_WEIGHT_BACKUPS_H_
