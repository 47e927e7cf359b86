#include "ops/step_backups.h"

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
  StepBackups::StepPtr Gather(bool is_last = true) { return backups.BeginGather(weights, is_last); }
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
