// How functions of the C interface return: codes, the last error of a thread, and texts.
#ifndef TF_LIBRA_OPS_C_API_RESULTS_H_
#define TF_LIBRA_OPS_C_API_RESULTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ops/lanes/status.h"

namespace tf_libra {

// What TfLibraLastError says to this thread.
inline thread_local Status last_error;
// Texts that this thread was returned; each call may replace them.
inline thread_local std::string returned_text;

inline int Report(const Status& status) noexcept {
  if (!status.ok()) last_error = status;
  return static_cast<int>(status.code());
}

// Catches every exception: one that reached Python would end the process.
template <typename Body>
int Guarded(Body body) noexcept {
  try {
    return Report(body());
  } catch (...) {
    return Report(CaughtStatus("the engine cannot do this"));
  }
}

inline Status NotRunning() {
  return Status(StatusCode::kFailedPrecondition, "no engine is running in this process");
}

// Messages in one buffer: of each its length, 8 bytes little-endian, and its bytes.
inline std::string WithLengths(const std::vector<std::string>& messages) {
  std::string packed;
  for (const std::string& message : messages) {
    uint64_t size = message.size();
    for (int i = 0; i < 8; ++i, size >>= 8) packed += static_cast<char>(size & 0xff);
    packed += message;
  }
  return packed;
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_C_API_RESULTS_H_
