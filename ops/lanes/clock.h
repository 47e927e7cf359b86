// Clocks of the lanes: a monotonic clock for deadlines and durations, and a wall clock for
// telemetry that advances with the monotonic one.
#ifndef TF_LIBRA_OPS_LANES_CLOCK_H_
#define TF_LIBRA_OPS_LANES_CLOCK_H_

#include <time.h>

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

// Returns the message of every deadline between ranks: `seconds` have passed without an answer of
// `whom`, as in "rank(s) 1".
inline std::string WaitedTooLong(double seconds, const std::string& whom) {
  return "waited " + SecondsText(seconds) + " s for " + whom +
         ", the limit of timeout_seconds (TF_LIBRA_TIMEOUT_SECONDS); if a rank works longer between"
         " steps, as in an evaluation, raise it or let the others wait in a barrier without a"
         " limit";
}

inline int64_t SteadyNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// Core time of the calling thread.
inline int64_t ThreadCpuNanos() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

// Nanoseconds since the epoch, the clock of TensorFlow's profiler. The wall clock is read once, on
// construction. Setting the wall clock later changes neither the order of times nor the time
// between them.
class WallClock {
 public:
  WallClock() {
    // A thread that has to wait between two looks at clocks would shift all that follows.
    int64_t shortest = INT64_MAX;
    for (int look = 0; look < 20 && shortest > 1000; ++look) {
      const int64_t before = SteadyNanos();
      const int64_t wall = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
      const int64_t after = SteadyNanos();
      if (after - before >= shortest) continue;
      shortest = after - before;
      offset_ = wall - before;
    }
  }

  int64_t Nanos() const { return At(SteadyNanos()); }
  // Converts a time of the monotonic clock to this clock. Zero stands for never on both.
  int64_t At(int64_t steady_nanos) const { return steady_nanos == 0 ? 0 : steady_nanos + offset_; }

 private:
  int64_t offset_ = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CLOCK_H_
