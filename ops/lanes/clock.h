// Time as the lanes use it: a monotonic clock for deadlines, wall-clock nanoseconds for telemetry.
#ifndef TF_LIBRA_OPS_LANES_CLOCK_H_
#define TF_LIBRA_OPS_LANES_CLOCK_H_

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace tf_libra {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

inline TimePoint After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

inline double SecondsUntil(TimePoint deadline) {
  return std::chrono::duration<double>(deadline - Clock::now()).count();
}

// Milliseconds for poll(2): rounded up, so that a wait never ends just before its deadline.
inline int PollMilliseconds(TimePoint deadline) {
  const double seconds = SecondsUntil(deadline);
  if (seconds <= 0) return 0;
  return seconds > 1e6 ? 1000000000 : static_cast<int>(seconds * 1e3) + 1;
}

// For messages: "0.5", "31".
inline std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 10 ? "%.2g" : "%.0f", seconds);
  return text;
}

// Nanoseconds since the epoch: the clock of TensorFlow's profiler.
inline int64_t WallNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CLOCK_H_
