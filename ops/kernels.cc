#include "ops/kernels.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "ops/engine_slot.h"

namespace tf_libra {

ElementType ElementTypeOf(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_HALF:
      return ElementType::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return ElementType::kBFloat16;
    case tensorflow::DT_DOUBLE:
      return ElementType::kFloat64;
    default:  // the ops' registrations admit no other
      return ElementType::kFloat32;
  }
}

absl::Status ToTensorFlow(const char* op, const Status& status) {
  const std::string message = absl::StrCat(op, ": ", status.message());
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(message);
    case StatusCode::kFailedPrecondition:
      return absl::FailedPreconditionError(message);
    case StatusCode::kUnavailable:
      // Not Unavailable: TensorFlow takes that for trouble of its own network and rewords it.
      return absl::AbortedError(message);
    case StatusCode::kDeadlineExceeded:
      return absl::DeadlineExceededError(message);
    case StatusCode::kResourceExhausted:
      return absl::ResourceExhaustedError(message);
    case StatusCode::kInternal:
      break;
  }
  return absl::InternalError(message);
}

absl::Status FindEngine(const char* op, std::shared_ptr<Engine>* engine) {
  *engine = ActiveEngine();
  if (*engine != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(op, ": no engine is running in this process"));
}

absl::Status CannotStart(const char* op) {
  const Status status = CaughtStatus("what is exchanged cannot start");
  if (const auto engine = ActiveEngine()) engine->Abort(status);
  return ToTensorFlow(op, status);
}

}  // namespace tf_libra
