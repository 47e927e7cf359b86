// A bounded look for what another rank is about to do, before this thread sleeps.
//
// To fall asleep and to be woken takes each side several microseconds. A look saves them if the
// other rank is almost ready, and costs its bound if not. Therefore looks that find nothing become
// rare: each doubles the number of waits without one, and each success halves this number.
#ifndef TF_LIBRA_OPS_LANES_ADAPTIVE_LOOK_H_
#define TF_LIBRA_OPS_LANES_ADAPTIVE_LOOK_H_

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "ops/lanes/clock.h"

namespace tf_libra {

// For one thread at a time.
class AdaptiveLook {
 public:
  // More than a rank takes to wake up, so that two ranks of which one sleeps come to look together.
  static constexpr std::chrono::microseconds kMostTime{20};
  static constexpr int kMostSkipped = 63;
  // A wake-up is little of the time of larger transfers.
  static constexpr size_t kMostBytes = 128 << 10;

  // Returns whether `num_ranks` that share memory have a core each. Otherwise the rank that is
  // awaited needs the core of the rank that looks.
  static bool HasCores(size_t num_ranks) {
    static const long num_cores = sysconf(_SC_NPROCESSORS_ONLN);
    return static_cast<long>(num_ranks) <= num_cores;
  }

  // Returns whether `is_there()`, which is called until it is or the time is over. False without a
  // call: this wait is skipped.
  template <typename IsThere>
  bool Find(IsThere is_there) {
    if (num_skipped_ < num_to_skip_) {
      ++num_skipped_;
      return false;
    }
    num_skipped_ = 0;
    const TimePoint end = Clock::now() + kMostTime;
    do {
      if (is_there()) {
        num_to_skip_ /= 2;
        return true;
      }
    } while (Clock::now() < end);
    num_to_skip_ = std::min(2 * num_to_skip_ + 1, kMostSkipped);
    return false;
  }

 private:
  int num_to_skip_ = 0, num_skipped_ = 0;  // waits after a look
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ADAPTIVE_LOOK_H_
