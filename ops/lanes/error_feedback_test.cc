#include "ops/lanes/error_feedback.h"

#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::error_feedback_test {
namespace {

using Floats = std::vector<float>;

TEST_CASE("ErrorsStartAtZeroAndStay") {
  ErrorFeedback feedback;
  const RoundingErrors errors = feedback.Of("step", "kernel", 0, 3);
  CHECK(*errors == Floats(3));
  *errors = {1, 2, 3};
  CHECK(feedback.Of("step", "kernel", 0, 3) == errors);
  CHECK(*feedback.Of("step", "bias", 0, 3) == Floats(3));
  CHECK(*feedback.Of("other step", "kernel", 0, 3) == Floats(3));
  feedback.Clear("step");
  CHECK(feedback.Copy("step").empty());
  CHECK(*feedback.Of("step", "kernel", 0, 3) == Floats(3));
}

TEST_CASE("ErrorsFollowTheirElementsIntoOtherParts") {
  ErrorFeedback feedback;
  feedback.Set("step", "kernel", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(*feedback.Of("step", "kernel", 4, 3) == Floats{4, 5, 6});
  CHECK(*feedback.Of("step", "kernel", 0, 4) == Floats{0, 1, 2, 3});
  CHECK(*feedback.Of("step", "kernel", 7, 3) == Floats{7, 8, 9});
  CHECK(feedback.Copy("step").at("kernel") == Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(*feedback.Of("step", "kernel", 2, 6) == Floats{2, 3, 4, 5, 6, 7});
  CHECK(*feedback.Of("step", "kernel", 0, 12) == Floats{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0});
  CHECK(*feedback.Of("step", "kernel", 3, 0) == Floats{});
  CHECK_EQ(feedback.Copy("step").at("kernel").size(), 12);
}

TEST_CASE("OnlyRoundedAllReducesWithFeedbackHaveErrors") {
  ErrorFeedback feedback;
  OperationInfo operation;
  operation.function = "step";
  operation.tensor_names = {"kernel", "bias"};
  operation.part_starts = {8, -1};
  const std::vector<TensorView> tensors = {{nullptr, nullptr, 16}, {nullptr, nullptr, 4}};
  CHECK(feedback.Of(operation, tensors).empty());
  operation.error_feedback = true;
  CHECK(feedback.Of(operation, tensors).empty());
  operation.wire_type = ElementType::kBFloat16;
  const std::vector<RoundingErrors> errors = feedback.Of(operation, tensors);
  CHECK_EQ(errors.size(), 2);
  *errors[0] = {1, 2, 3, 4};
  CHECK_EQ(errors[1]->size(), 1);
  CHECK(feedback.Copy("step").at("kernel") == Floats{0, 0, 1, 2, 3, 4});
}

}  // namespace
}  // namespace tf_libra::error_feedback_test
