// The functions of the C interface about executed steps, which need no engine: counts of
// all-reduces, rounding errors, and updates of sharded variables.
#include <cstdint>
#include <string>
#include <vector>

#include "ops/c_api.h"
#include "ops/c_api_results.h"
#include "ops/lanes/error_feedback.h"
#include "ops/lanes/execution_counter.h"
#include "ops/lanes/wire_format.h"
#include "ops/pending_gathers.h"
#include "ops/step_backups.h"

using tf_libra::Guarded;
using tf_libra::returned_text;
using tf_libra::Status;
using tf_libra::StatusCode;

extern "C" {

int64_t TfLibraNumExecuted(const char* function) {
  int64_t count = -1;
  Guarded([&] {
    count = tf_libra::Executions::Global().Count(function);
    return Status();
  });
  return count;
}

int TfLibraTakeExecuted(const char* function, const char** json) {
  return Guarded([&] {
    const auto times = tf_libra::Executions::Global().Take(function);
    if (json != nullptr) {
      returned_text = tf_libra::ExecutionsJson(times);
      *json = returned_text.c_str();
    }
    return Status();
  });
}

int TfLibraRoundingSeconds(const char* wire_dtype, int error_feedback, double* seconds) {
  return Guarded([&] {
    const auto type = tf_libra::WireTypeOf(wire_dtype);
    if (!type) {
      return Status(StatusCode::kInvalidArgument, "wire_dtype must be float16 or bfloat16, got '" +
                                                      std::string(wire_dtype) + "'");
    }
    *seconds = tf_libra::RoundingSeconds(*type, error_feedback != 0);
    return Status();
  });
}

int TfLibraCopyErrorFeedback(const char* function, const char** packed, int64_t* num_bytes) {
  return Guarded([&] {
    std::vector<std::string> messages;
    for (const auto& [name, errors] : tf_libra::ErrorFeedback::Global().Copy(function)) {
      messages.push_back(name);
      messages.emplace_back(reinterpret_cast<const char*>(errors.data()),
                            errors.size() * sizeof(float));
    }
    returned_text = tf_libra::WithLengths(messages);
    *packed = returned_text.data();
    *num_bytes = static_cast<int64_t>(returned_text.size());
    return Status();
  });
}

int TfLibraSetErrorFeedback(const char* function, const char* tensor, const float* errors,
                            int64_t count) {
  return Guarded([&] {
    tf_libra::ErrorFeedback::Global().Set(function, tensor,
                                          std::vector<float>(errors, errors + count));
    return Status();
  });
}

int TfLibraClearErrorFeedback(const char* function) {
  return Guarded([&] {
    tf_libra::ErrorFeedback::Global().Clear(function);
    return Status();
  });
}

int TfLibraAwaitGathers(double seconds) {
  return Guarded([&] { return tf_libra::PendingGathers::Global().AwaitAll(seconds); });
}

int TfLibraEndCall() {
  return Guarded([] {
    tf_libra::StepBackups::Global().EndCall();
    return Status();
  });
}

int TfLibraKeepChanges() {
  return Guarded([] {
    tf_libra::StepBackups::Global().KeepChanges();
    return Status();
  });
}

int TfLibraAwaitSteps(double seconds) { return tf_libra::StepBackups::Global().Await(seconds); }

int TfLibraFailSteps() {
  return Guarded([] {
    tf_libra::StepBackups::Global().Fail();
    return Status();
  });
}

int TfLibraUndoSteps() {
  return Guarded([] {
    tf_libra::StepBackups::Global().Undo();
    return Status();
  });
}

int64_t TfLibraNumCompleteSteps() { return tf_libra::StepBackups::Global().num_complete(); }

int64_t TfLibraNumBegunSteps() { return tf_libra::StepBackups::Global().num_begun(); }

int TfLibraFreeSpares() {
  return Guarded([] {
    tf_libra::StepBackups::Global().FreeSpares();
    return Status();
  });
}

}  // extern "C"
