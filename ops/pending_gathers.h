// Gathers of variables that go on when the graph that has started them has ended.
#ifndef TF_LIBRA_OPS_PENDING_GATHERS_H_
#define TF_LIBRA_OPS_PENDING_GATHERS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "ops/lanes/status.h"

namespace tf_libra {

// Thread-safe record of the variables, by address, that are being gathered. Each gather ends, well
// or not, within the engine's deadlines.
class PendingGathers {
 public:
  using Variables = std::vector<const void*>;

  static PendingGathers& Global();

  void Begin(const Variables& variables);
  // Calls the callbacks of waits that this ends.
  void End(const Variables& variables, const Status& status);

  // Calls `done` once none of `variables` is being gathered: here, or where the last one ends.
  void Await(const Variables& variables, std::function<void()> done);

  // Waits until no variable is being gathered. DeadlineExceeded: for `seconds` none of them has
  // ended.
  Status AwaitAll(double seconds);

  // Why a gather has failed since the engine started; OK if none has.
  Status failure() const;
  void ForgetFailure();

 private:
  struct Waiter {
    Variables variables;
    std::function<void()> done;
  };

  // With the mutex locked.
  bool AnyPending(const Variables& variables) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const void*, int> pending_;  // number of gathers
  std::vector<Waiter> waiters_;
  uint64_t num_ended_ = 0;
  Status failure_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_PENDING_GATHERS_H_
