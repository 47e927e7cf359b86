#include "ops/step_backups.h"

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "ops/owned_slot.h"
#include "ops/testing/tensorflow.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_libra {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::core::RefCountPtr;

Tensor Filled(float value) {
  Tensor tensor(tensorflow::DT_FLOAT, TensorShape({4}));
  tensor.flat<float>().setConstant(value);
  return tensor;
}

RefCountPtr<Var> Variable(Tensor value) {
  RefCountPtr<Var> variable(new Var(value.dtype()));
  *variable->tensor() = std::move(value);
  variable->is_initialized = true;
  return variable;
}

RefCountPtr<Var> Slot(const Tensor& part) {
  OwnedSlot slot;
  slot.part = part;
  slot.whole = TensorShape({8});
  Tensor holder(tensorflow::DT_VARIANT, TensorShape({}));
  holder.scalar<tensorflow::Variant>()() = std::move(slot);
  return Variable(holder);
}

float First(const Tensor& tensor) { return tensor.flat<float>()(0); }
float First(const RefCountPtr<Var>& variable) {
  const OwnedSlot* const slot = SlotOf(variable.get());
  return First(slot != nullptr ? slot->part : *variable->tensor());
}

constexpr ByteRange kPart = {0, 2 * sizeof(float)};

absl::Status AllocateTensor(tensorflow::DataType dtype, const TensorShape& shape, Tensor* tensor) {
  *tensor = Tensor(dtype, shape);
  return absl::OkStatus();
}

// A step of a weight, and of a slot to which it adds 1.
struct Step {
  StepBackups backups;
  StepBackups::Weights weights;
  RefCountPtr<Var> slot = Slot(Filled(1));

  Step() { weights.push_back(Variable(Filled(1))); }

  void UpdateSlot() {
    Tensor* const part = &SlotOf(slot.get())->part;
    const float before = First(*part);
    if (backups.AddSlot(slot.get(), *part)) *part = Filled(0);
    part->flat<float>().setConstant(before + 1);
  }
  // Adds 1 to the part of the weight.
  void UpdatePart() {
    PartBackup backup;
    DOCTEST_CHECK(backups.AddWeight(AllocateTensor, weights[0].get(), kPart, &backup).ok());
    char* const part = static_cast<char*>(weights[0]->tensor()->data());
    std::memcpy(backup.data, part, kPart.size());
    weights[0]->tensor()->flat<float>()(0) += 1;
    backups.CompleteWeight(backup, weights[0].get());
  }
  StepBackups::StepPtr Gather(bool is_last = true, bool stays_locked = false) {
    return backups.BeginGather(weights, is_last, stays_locked);
  }
  void EndGather(const StepBackups::StepPtr& step) {
    if (backups.MayAssign(*step)) *weights[0]->tensor() = Filled(First(weights[0]) + 1);
    backups.EndGather(step, true);
  }
  float BeforeSteps() {
    Tensor part;
    return backups.FindSlot(slot.get(), &part) ? First(part) : First(slot);
  }
};

DOCTEST_TEST_CASE("AStepIsUndoneUntilItsLastGatherHasEnded") {
  for (const int num_ended : {0, 1, 2, 3}) {
    Step step;
    step.UpdateSlot();
    step.UpdateSlot();  // by another op
    DOCTEST_CHECK_EQ(First(step.slot), 3);
    DOCTEST_CHECK_EQ(step.BeforeSteps(), 1);
    std::vector<StepBackups::StepPtr> gathers;
    if (num_ended > 0) {
      gathers = {step.Gather(false), step.Gather(num_ended > 1)};
      step.EndGather(gathers[0]);
    }
    if (num_ended == 3) step.EndGather(gathers[1]);
    step.backups.Undo();
    const bool is_complete = num_ended == 3;
    DOCTEST_CHECK_EQ(step.backups.num_complete(), is_complete);
    DOCTEST_CHECK_EQ(First(step.slot), is_complete ? 3 : 1);
    DOCTEST_CHECK_EQ(First(step.weights[0]), is_complete ? 3 : 1);
    DOCTEST_CHECK_EQ(step.BeforeSteps(), First(step.slot));
  }
}

DOCTEST_TEST_CASE("StepsThatOverlapAreUndoneTogether") {
  Step step;
  step.UpdateSlot();
  const auto first = step.Gather();
  step.UpdateSlot();  // of the next step
  DOCTEST_CHECK_EQ(step.BeforeSteps(), 1);
  DOCTEST_SUBCASE("before the gather has ended") {
    step.backups.Undo();
    DOCTEST_CHECK_EQ(First(step.slot), 1);
    step.EndGather(first);
    DOCTEST_CHECK_EQ(First(step.weights[0]), 1);
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 0);
  }
  DOCTEST_SUBCASE("after it") {
    step.EndGather(first);
    DOCTEST_CHECK_EQ(step.BeforeSteps(), 2);
    step.backups.Undo();
    DOCTEST_CHECK_EQ(First(step.slot), 2);
    DOCTEST_CHECK_EQ(First(step.weights[0]), 2);
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 1);
  }
  DOCTEST_SUBCASE("or not, as it has failed") {
    step.backups.EndGather(first, false);
    step.backups.Undo();
    DOCTEST_CHECK_EQ(First(step.slot), 1);
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 0);
  }
}

DOCTEST_TEST_CASE("AWeightThatChangesWhileItsStepIsUndoneIsUndone") {
  Step step;
  Var* const weight = step.weights[0].get();
  weight->mu()->lock();
  PartBackup backup;
  DOCTEST_CHECK(step.backups.AddWeight(AllocateTensor, weight, kPart, &backup).ok());
  std::thread undo([&] { step.backups.Undo(); });
  while (step.backups.MayAssign(*backup.step)) std::this_thread::yield();
  std::memcpy(backup.data, weight->tensor()->data(), kPart.size());
  weight->tensor()->flat<float>()(0) = 2;
  step.backups.CompleteWeight(backup, weight);
  weight->mu()->unlock();
  undo.join();
  DOCTEST_CHECK_EQ(First(step.weights[0]), 1);
}

DOCTEST_TEST_CASE("AReaderSeesASlotBeforeTheStepWhileItIsUndone") {
  Step step;
  step.UpdateSlot();
  const auto gather = step.Gather(false);
  step.slot->mu()->lock();
  std::thread undo([&] { step.backups.Undo(); });
  while (step.backups.MayAssign(*gather)) std::this_thread::yield();
  DOCTEST_CHECK_EQ(First(step.slot), 2);
  DOCTEST_CHECK_EQ(step.BeforeSteps(), 1);
  step.slot->mu()->unlock();
  undo.join();
  DOCTEST_CHECK_EQ(First(step.slot), 1);
  DOCTEST_CHECK_EQ(step.backups.num_begun(), 0);
}

DOCTEST_TEST_CASE("UndoingDoesNotWaitForAGatherThatLocksWeights") {
  for (const bool is_assigned : {false, true}) {
    Step step;
    step.UpdateSlot();
    Var* const weight = step.weights[0].get();
    step.UpdatePart();
    LockedVariables locked;
    locked.Lock(step.weights);
    const auto gather = step.Gather(true, true);
    DOCTEST_CHECK(step.backups.MayAssign(*gather));
    if (is_assigned) *weight->tensor() = Filled(2);
    step.backups.Undo();
    DOCTEST_CHECK_EQ(First(step.slot), 1);
    DOCTEST_CHECK_EQ(First(step.weights[0]), 2);
    step.backups.Unlock(gather.get(), step.weights);
    step.backups.EndGather(gather, true);
    DOCTEST_CHECK_EQ(First(step.weights[0]), 1);
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 0);
  }
}

DOCTEST_TEST_CASE("OnlyStepsThatMayCompleteAreWaitedFor") {
  Step step;
  DOCTEST_CHECK(step.backups.Await(0));
  const auto first = step.Gather(false);
  DOCTEST_CHECK(step.backups.Await(0));
  DOCTEST_SUBCASE("which end") {
    const auto last = step.Gather();
    DOCTEST_CHECK_EQ(step.backups.num_begun(), 1);
    DOCTEST_CHECK(!step.backups.Await(0));
    step.EndGather(first);
    std::thread end([&] { step.EndGather(last); });
    DOCTEST_CHECK(step.backups.Await(60));
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 1);
    end.join();
    step.UpdateSlot();
    DOCTEST_CHECK_EQ(step.backups.num_begun(), 2);
    step.backups.Undo();
    DOCTEST_CHECK_EQ(step.backups.num_begun(), 1);
  }
  DOCTEST_SUBCASE("or fail") {
    const auto last = step.Gather();
    step.backups.EndGather(last, false);
    DOCTEST_CHECK(!step.backups.Await(60));
  }
  DOCTEST_SUBCASE("or fail on another rank") {
    const auto last = step.Gather();
    step.backups.Fail();
    DOCTEST_CHECK(!step.backups.Await(60));
    step.EndGather(first);
    step.EndGather(last);
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 0);
    step.backups.Undo();
    DOCTEST_CHECK(step.backups.Await(0));
    DOCTEST_CHECK_EQ(First(step.weights[0]), 1);
  }
}

DOCTEST_TEST_CASE("StepsUseMemoryOfTheStepBefore") {
  Step step;
  const auto gather = [&] {
    Tensor whole;
    DOCTEST_CHECK(
        step.backups.Allocate(AllocateTensor, tensorflow::DT_FLOAT, TensorShape({4}), &whole).ok());
    const auto present = step.Gather();
    *step.weights[0]->tensor() = std::move(whole);
    return present;
  };
  const auto memory = [&] { return step.weights[0]->tensor()->data(); };
  const void* const first = memory();
  step.backups.EndGather(gather(), true);
  const void* const second = memory();
  DOCTEST_CHECK_NE(second, first);
  DOCTEST_SUBCASE("if it is complete") {
    const auto present = gather();
    DOCTEST_CHECK_EQ(memory(), first);
    DOCTEST_SUBCASE("and undone") {
      step.backups.Undo();
      step.backups.EndGather(present, true);
      DOCTEST_CHECK_EQ(memory(), second);
    }
    DOCTEST_SUBCASE("in all steps") {
      step.backups.EndGather(present, true);
      gather();
      DOCTEST_CHECK_EQ(memory(), second);
    }
  }
  const auto is_spare = [&] {
    Tensor found;
    bool is_found = true;
    const auto allocate = [&](tensorflow::DataType, const TensorShape&, Tensor*) {
      is_found = false;
      return absl::OkStatus();
    };
    const TensorShape shape({4});
    DOCTEST_CHECK(step.backups.Allocate(allocate, tensorflow::DT_FLOAT, shape, &found).ok());
    return is_found;
  };
  DOCTEST_SUBCASE("unless a reader has its value") {
    const Tensor read = *step.weights[0]->tensor();
    step.backups.EndGather(gather(), true);
    DOCTEST_CHECK(!is_spare());
  }
  DOCTEST_SUBCASE("until it is freed") {
    step.backups.EndCall();  // of the updates
    DOCTEST_SUBCASE("which one with updates does not") { DOCTEST_CHECK(is_spare()); }
    DOCTEST_SUBCASE("or the function ends") {
      step.backups.FreeSpares();
      DOCTEST_CHECK(!is_spare());
    }
    DOCTEST_SUBCASE("or the next call has none") {
      step.backups.EndCall();
      DOCTEST_CHECK(!is_spare());
    }
  }
}

DOCTEST_TEST_CASE("WhatIsKeptIsNotUndone") {
  Step step;
  step.UpdateSlot();
  DOCTEST_SUBCASE("at the end of the data") {
    step.backups.KeepChanges();
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 0);
  }
  DOCTEST_SUBCASE("at the end of a call without gathers") {
    step.backups.EndCall();
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 1);
    step.backups.EndCall();
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 1);
    step.backups.Reset();
    DOCTEST_CHECK_EQ(step.backups.num_complete(), 0);
  }
  step.backups.Undo();
  DOCTEST_CHECK_EQ(First(step.slot), 2);
}

DOCTEST_TEST_CASE("ASlotThatTheStepHasDividedBecomesWhole") {
  StepBackups backups;
  const RefCountPtr<Var> slot = Slot(Filled(1));
  Tensor whole = Filled(5);
  backups.AddWholeSlot(slot.get(), whole, Filled(1));
  DOCTEST_CHECK(!backups.AddSlot(slot.get(), Filled(2)));
  DOCTEST_SUBCASE("if it is undone") {
    backups.Undo();
    DOCTEST_CHECK_EQ(First(slot), 5);
  }
  DOCTEST_SUBCASE("unless the script has assigned it") {
    *slot->tensor() = Filled(7);
    backups.Undo();
    DOCTEST_CHECK_EQ(First(slot), 7);
  }
}

}  // namespace
}  // namespace tf_libra
