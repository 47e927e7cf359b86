// The outcome of a lane operation, without any dependency on TensorFlow.
#ifndef TF_LIBRA_OPS_LANES_STATUS_H_
#define TF_LIBRA_OPS_LANES_STATUS_H_

#include <string>
#include <utility>

namespace tf_libra {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller asked for something that cannot be done
  kFailedPrecondition,  // the ranks disagree, or the engine is not running
  kUnavailable,         // a peer is dead, disconnected, or gave up
  kDeadlineExceeded,    // a peer did not arrive in time
};

class Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_STATUS_H_
