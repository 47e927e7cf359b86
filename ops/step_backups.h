// Values of weights and slots from before steps that may still fail.
#ifndef TF_LIBRA_OPS_STEP_BACKUPS_H_
#define TF_LIBRA_OPS_STEP_BACKUPS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "ops/lanes/owned_parts.h"
#include "ops/spare_tensors.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {

// The sharded updates of one step. It is closed when its last gather begins, after all its updates,
// and complete when all its gathers have ended well: then every rank has made all its updates.
struct UpdatedStep;

// Memory to be filled with the part of a weight before the part changes.
struct PartBackup {
  char* data = nullptr;  // null: nothing has to be filled
  std::shared_ptr<UpdatedStep> step;
};

// Thread-safe record of what steps have changed that are not complete. A step that fails on one
// rank completes on none, as no other rank gathers what it lacks, and all ranks undo it. Callers
// lock the mutex of a variable first.
class StepBackups {
 public:
  using StepPtr = std::shared_ptr<UpdatedStep>;
  using Weights = std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>;

  // As `OpKernelContext::allocate_temp`.
  using Allocator = absl::FunctionRef<absl::Status(
      tensorflow::DataType, const tensorflow::TensorShape&, tensorflow::Tensor*)>;

  static StepBackups& Global();

  // Allocates a tensor, in memory that an earlier step has allocated for a weight if there is some:
  // page faults of fresh memory take longer than copies to it.
  absl::Status Allocate(Allocator allocator, tensorflow::DataType dtype,
                        const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor);

  // Allocates memory for the part `bytes` of a weight, unless the part has a backup or is empty.
  // The weight's mutex is locked until the backup is complete.
  absl::Status AddWeight(Allocator allocator, tensorflow::Var* weight, ByteRange bytes,
                         PartBackup* backup);
  void CompleteWeight(const PartBackup& backup, const tensorflow::Var* weight);

  // Keeps the part that a slot holds, unless it has a backup in this step; returns whether it does.
  // If so, the caller has to write the new part to other memory.
  bool AddSlot(tensorflow::Var* slot, const tensorflow::Tensor& part);
  // Keeps the whole value of a slot that holds `part` alone from now on.
  void AddWholeSlot(tensorflow::Var* slot, const tensorflow::Tensor& whole,
                    const tensorflow::Tensor& part);

  // Begins a gather of locked weights to other memory than theirs; closes the step if it is its
  // last one. With `stays_locked`, the weights stay locked until `Unlock`, and no undoing waits for
  // that.
  StepPtr BeginGather(const Weights& weights, bool is_last, bool stays_locked);
  // Returns whether the gathered values may be assigned, which is false if the step was undone. The
  // weights are locked.
  bool MayAssign(const UpdatedStep& step);
  // Prepares weights to be unlocked: undoes them if the step was undone meanwhile.
  void Unlock(UpdatedStep* step, const Weights& weights);
  // Ends it when they have been assigned, or when it has failed.
  void EndGather(const StepPtr& step, bool is_whole);

  // Closes the open step, if there is one, when all its ops have ended.
  void EndCall();
  // Waits until each step whose updates have all been made is complete; returns false if one has
  // failed, or after `seconds`. A step that fails while it is open is not waited for.
  bool Await(double seconds);
  // Makes what has been changed the values to which a failure returns.
  void KeepChanges();
  // Keeps all steps that are not complete from completing: another rank has undone them.
  void Fail();
  // Undoes all steps that are not complete, the last one first.
  void Undo();

  // Sets `part` to the own part of a slot before all steps that are not complete; returns false if
  // none of them has changed it.
  bool FindSlot(const tensorflow::Var* slot, tensorflow::Tensor* part);

  // Number of complete steps, the same on all ranks that have failed at the same place.
  int64_t num_complete();
  // Number of steps that are complete, or not undone.
  int64_t num_begun();
  // Frees the memory of earlier steps.
  void FreeSpares();
  // For other ranks: forgets all steps, and counts from 0.
  void Reset();

 private:
  UpdatedStep* OpenStep();
  void RemoveIfComplete(const StepPtr& step);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepPtr> steps_;  // not complete, the last one perhaps open
  int64_t num_complete_ = 0;
  bool has_updates_ = false;  // the present call has some
  SpareTensors spares_;       // of weights in the last complete step
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_STEP_BACKUPS_H_
