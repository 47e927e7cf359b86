#include "ops/kernels.h"

#include <memory>
#include <new>
#include <string>

#include "ops/engine_slot.h"
#include "ops/testing/engine_of_one.h"
#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

DOCTEST_TEST_CASE("TypesThatAreSummed") {
  DOCTEST_CHECK(ElementTypeOf(tensorflow::DT_HALF) == ElementType::kFloat16);
  DOCTEST_CHECK(ElementTypeOf(tensorflow::DT_BFLOAT16) == ElementType::kBFloat16);
  DOCTEST_CHECK(ElementTypeOf(tensorflow::DT_FLOAT) == ElementType::kFloat32);
  DOCTEST_CHECK(ElementTypeOf(tensorflow::DT_DOUBLE) == ElementType::kFloat64);
}

// A lost rank is Aborted: TensorFlow takes Unavailable for trouble of its own network.
DOCTEST_TEST_CASE("ErrorsAreTensorFlows") {
  DOCTEST_CHECK(ToTensorFlow("TheOp", Status()).ok());
  const auto told = [](StatusCode code) { return ToTensorFlow("TheOp", Status(code, "why")); };
  DOCTEST_CHECK(absl::IsInvalidArgument(told(StatusCode::kInvalidArgument)));
  DOCTEST_CHECK(absl::IsFailedPrecondition(told(StatusCode::kFailedPrecondition)));
  DOCTEST_CHECK(absl::IsAborted(told(StatusCode::kUnavailable)));
  DOCTEST_CHECK(absl::IsDeadlineExceeded(told(StatusCode::kDeadlineExceeded)));
  DOCTEST_CHECK(absl::IsResourceExhausted(told(StatusCode::kResourceExhausted)));
  DOCTEST_CHECK(absl::IsInternal(told(StatusCode::kInternal)));
  DOCTEST_CHECK_EQ(std::string(told(StatusCode::kUnavailable).message()), "TheOp: why");
}

DOCTEST_TEST_CASE("AnEngineIsFoundWhereOneRuns") {
  std::shared_ptr<Engine> found;
  const absl::Status none = FindEngine("TheOp", &found);
  DOCTEST_CHECK(absl::IsFailedPrecondition(none));
  DOCTEST_CHECK_EQ(std::string(none.message()), "TheOp: no engine is running in this process");
  const std::shared_ptr<Engine> engine = testing::EngineOfOne();
  ExchangeActiveEngine(engine);
  DOCTEST_CHECK(FindEngine("TheOp", &found).ok());
  DOCTEST_CHECK(found == engine);
  ExchangeActiveEngine(nullptr);
}

absl::Status OutOfMemory() {
  try {
    throw std::bad_alloc();
  } catch (...) {
    return CannotStart("TheOp");
  }
}

// Other ranks would wait for what has not got to the engine: it ends, if there is one.
DOCTEST_TEST_CASE("WhatCannotStartEndsTheEngine") {
  DOCTEST_CHECK(absl::IsResourceExhausted(OutOfMemory()));
  const std::shared_ptr<LaneEngine> engine = testing::EngineOfOne();
  DOCTEST_CHECK(testing::Asked(engine.get()).ok());
  ExchangeActiveEngine(engine);
  DOCTEST_CHECK(absl::IsResourceExhausted(OutOfMemory()));
  ExchangeActiveEngine(nullptr);
  DOCTEST_CHECK_EQ(testing::Asked(engine.get()).message(),
                   testing::Contains("what is exchanged cannot start: out of memory"));
}

}  // namespace
}  // namespace tf_libra
