#include "ops/step_backups.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "ops/owned_slot.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace tf_libra {

using tensorflow::Tensor;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

namespace {

struct Backup {
  RefCountPtr<Var> variable;
  bool is_slot = false;
  bool is_complete = false;  // the part is there
  bool is_locked = false;    // until the end of a gather, which undoes the weight
  size_t begin = 0;          // of a weight's part, in bytes
  Tensor part;
  // Of a slot: what it held if it was whole. Of a weight that is gathered: what it held until then,
  // with the part changed.
  std::optional<Tensor> whole;
};

void UndoSlot(const Backup& backup) {
  OwnedSlot* const slot = SlotOf(backup.variable.get());
  if (slot == nullptr) return;  // the script has assigned it since
  if (backup.whole) {
    *backup.variable->tensor() = *backup.whole;
  } else {
    slot->part = backup.part;
  }
}

void UndoWeight(Backup* backup) {
  Tensor* const tensor = backup->variable->tensor();
  if (backup->whole) *tensor = *std::exchange(backup->whole, std::nullopt);
  if (!backup->is_complete) return;  // the kernel has failed before it changed the part
  const size_t end = backup->begin + backup->part.TotalBytes();
  if (tensor->dtype() != backup->part.dtype() || tensor->TotalBytes() < end) return;
  if (!tensor->RefCountIsOne()) *tensor = tensorflow::tensor::DeepCopy(*tensor);
  std::memcpy(static_cast<char*>(tensor->data()) + backup->begin, backup->part.data(),
              backup->part.TotalBytes());
}

}  // namespace

struct UpdatedStep {
  std::unordered_map<const Var*, Backup> backups;
  int num_gathers = 0;  // that have not ended
  bool is_closed = false, has_failed = false, is_undone = false;

  Backup* Add(Var* variable) {
    Backup* const backup = &backups[variable];
    if (backup->variable == nullptr) {
      variable->Ref();
      backup->variable.reset(variable);
    }
    return backup;
  }
};

StepBackups& StepBackups::Global() {
  static StepBackups* const backups = new StepBackups;
  return *backups;
}

absl::Status StepBackups::Allocate(Allocator allocator, tensorflow::DataType dtype,
                                   const tensorflow::TensorShape& shape, Tensor* tensor) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spares_.Take(dtype, shape, tensor)) return absl::OkStatus();
  }
  return allocator(dtype, shape, tensor);
}

absl::Status StepBackups::AddWeight(Allocator allocator, Var* weight, ByteRange bytes,
                                    PartBackup* backup) {
  *backup = {};
  if (bytes.size() == 0) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex_);
  UpdatedStep* const step = OpenStep();
  if (step->backups.count(weight) > 0) return absl::OkStatus();
  const tensorflow::DataType dtype = weight->tensor()->dtype();
  const tensorflow::TensorShape shape(
      {static_cast<int64_t>(bytes.size() / tensorflow::DataTypeSize(dtype))});
  Tensor part;
  if (!spares_.Take(dtype, shape, &part)) TF_RETURN_IF_ERROR(allocator(dtype, shape, &part));
  backup->data = static_cast<char*>(part.data());
  backup->step = steps_.back();
  Backup* const added = step->Add(weight);
  added->begin = bytes.begin;
  added->part = std::move(part);
  return absl::OkStatus();
}

void StepBackups::CompleteWeight(const PartBackup& backup, const Var* weight) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // Another thread may have begun to undo the step, and waits for the weight's mutex.
  const auto found = backup.step->backups.find(weight);
  if (found != backup.step->backups.end()) found->second.is_complete = true;
}

void StepBackups::AddWholeSlot(Var* slot, const Tensor& whole, const Tensor& part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Backup* const backup = OpenStep()->Add(slot);
  backup->is_slot = backup->is_complete = true;
  backup->whole = whole;
  backup->part = part;
}

bool StepBackups::AddSlot(Var* slot, const Tensor& part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  UpdatedStep* const step = OpenStep();
  if (step->backups.count(slot) > 0) return false;
  Backup* const backup = step->Add(slot);
  backup->is_slot = backup->is_complete = true;
  backup->part = part;
  return true;
}

StepBackups::StepPtr StepBackups::BeginGather(const Weights& weights, bool is_last,
                                              bool stays_locked) {
  const std::lock_guard<std::mutex> lock(mutex_);
  UpdatedStep* const step = OpenStep();
  for (const auto& weight : weights) {
    Backup* const backup = step->Add(weight.get());
    if (!backup->whole) backup->whole = *weight->tensor();
    backup->is_locked = stays_locked;
  }
  ++step->num_gathers;
  step->is_closed = is_last;
  return steps_.back();
}

bool StepBackups::MayAssign(const UpdatedStep& step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !step.is_undone;
}

void StepBackups::Unlock(UpdatedStep* step, const Weights& weights) {
  std::vector<Backup*> undone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& weight : weights) {
      Backup* const backup = &step->backups.at(weight.get());
      // A variable may be there twice.
      const bool was_locked = std::exchange(backup->is_locked, false);
      if (was_locked && step->is_undone) undone.push_back(backup);
    }
  }
  for (Backup* const backup : undone) UndoWeight(backup);
}

void StepBackups::EndGather(const StepPtr& step, bool is_whole) {
  StepPtr complete;  // freed without the mutex, as it may be the last to refer to variables
  const std::lock_guard<std::mutex> lock(mutex_);
  --step->num_gathers;
  if (!is_whole) step->has_failed = true;
  complete = step;
  RemoveIfComplete(step);
  changed_.notify_all();
}

void StepBackups::EndCall() {
  StepPtr ended;
  SpareTensors spares;
  const std::lock_guard<std::mutex> lock(mutex_);
  // Calls without sharded updates may follow, as under another plan.
  if (!std::exchange(has_updates_, false)) spares.swap(spares_);
  if (steps_.empty() || steps_.back()->is_closed) return;
  ended = steps_.back();
  ended->is_closed = true;
  RemoveIfComplete(ended);
}

void StepBackups::KeepChanges() {
  std::deque<StepPtr> steps;
  const std::lock_guard<std::mutex> lock(mutex_);
  steps.swap(steps_);
}

bool StepBackups::Await(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t num_closed =
      num_complete_ + std::count_if(steps_.begin(), steps_.end(),
                                    [](const StepPtr& step) { return step->is_closed; });
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] {
    return std::none_of(steps_.begin(), steps_.end(), [](const StepPtr& step) {
      return step->is_closed && step->num_gathers > 0 && !step->has_failed;
    });
  });
  return num_complete_ >= num_closed;
}

void StepBackups::Fail() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const StepPtr& step : steps_) step->has_failed = true;
  changed_.notify_all();
}

void StepBackups::Undo() {
  std::vector<StepPtr> steps;
  std::vector<Backup*> undone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      if ((*step)->is_undone) continue;  // by another thread
      (*step)->is_undone = (*step)->has_failed = true;
      steps.push_back(*step);
      for (auto& [address, backup] : (*step)->backups) {
        if (!backup.is_locked) undone.push_back(&backup);
      }
    }
    changed_.notify_all();
  }
  for (Backup* const backup : undone) {
    const tensorflow::mutex_lock lock(*backup->variable->mu());
    backup->is_slot ? UndoSlot(*backup) : UndoWeight(backup);
  }
  // Until now, other threads have found the values before the steps here.
  const std::lock_guard<std::mutex> lock(mutex_);
  steps_.erase(std::remove_if(steps_.begin(), steps_.end(),
                              [&](const StepPtr& step) {
                                return std::find(steps.begin(), steps.end(), step) != steps.end();
                              }),
               steps_.end());
}

bool StepBackups::FindSlot(const Var* slot, Tensor* part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const StepPtr& step : steps_) {
    const auto found = step->backups.find(slot);
    if (found == step->backups.end()) continue;
    *part = found->second.part;
    return true;
  }
  return false;
}

int64_t StepBackups::num_complete() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_complete_;
}

int64_t StepBackups::num_begun() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_complete_ + static_cast<int64_t>(steps_.size());
}

void StepBackups::FreeSpares() {
  SpareTensors spares;
  const std::lock_guard<std::mutex> lock(mutex_);
  spares.swap(spares_);
}

void StepBackups::Reset() {
  std::deque<StepPtr> steps;
  SpareTensors spares;
  const std::lock_guard<std::mutex> lock(mutex_);
  steps.swap(steps_);
  spares.swap(spares_);
  num_complete_ = 0;
}

// With the mutex locked, as the next.
UpdatedStep* StepBackups::OpenStep() {
  has_updates_ = true;
  if (steps_.empty() || steps_.back()->is_closed || steps_.back()->is_undone) {
    steps_.push_back(std::make_shared<UpdatedStep>());
  }
  return steps_.back().get();
}

void StepBackups::RemoveIfComplete(const StepPtr& step) {
  if (!step->is_closed || step->num_gathers > 0 || step->has_failed || step->is_undone) return;
  const auto found = std::find(steps_.begin(), steps_.end(), step);
  if (found == steps_.end()) return;
  steps_.erase(found);
  ++num_complete_;
  // Without what the step before has left, and this one did not need.
  SpareTensors spares;
  for (auto& [address, backup] : step->backups) {
    if (backup.is_slot) continue;  // ranks store slots once, between steps
    spares.Add(std::move(backup.part));
    if (backup.whole) spares.Add(std::move(*backup.whole));
  }
  spares.swap(spares_);
}

}  // namespace tf_libra
