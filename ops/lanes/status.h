// Outcome of a lane operation, without any dependency on TensorFlow.
#ifndef TF_LIBRA_OPS_LANES_STATUS_H_
#define TF_LIBRA_OPS_LANES_STATUS_H_

#include <memory>
#include <string>
#include <utility>

#include "ops/lanes/text.h"

namespace tf_libra {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller's request cannot be done
  kFailedPrecondition,  // the ranks disagree, or the engine is not running
  kUnavailable,         // a peer is dead, disconnected, or gave up
  kDeadlineExceeded,    // a peer did not arrive in time
  kResourceExhausted,   // this process cannot have memory, threads or descriptors
  kInternal,            // an unexpected failure
};

// Can be made and copied when there is no memory left; the message then states that. Messages are
// always valid UTF-8.
class Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) noexcept : code_(code) {
    Keep([&message] { return std::make_shared<const std::string>(ValidText(std::move(message))); });
  }
  Status(StatusCode code, const char* message) noexcept : code_(code) {
    Keep([message] { return std::make_shared<const std::string>(ValidText(message)); });
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const noexcept {
    static const std::string no_memory("out of memory"), nothing;  // too short to need any
    if (message_ != nullptr) return *message_;
    return ok() ? nothing : no_memory;
  }

 private:
  template <typename Make>
  void Keep(Make make) noexcept {
    try {
      message_ = make();
    } catch (...) {
    }
  }

  StatusCode code_ = StatusCode::kOk;
  std::shared_ptr<const std::string> message_;
};

// Returns the exception that a `catch` handles as a status. `what` names the failed action.
Status CaughtStatus(const char* what) noexcept;

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_STATUS_H_
