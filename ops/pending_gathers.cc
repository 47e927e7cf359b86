#include "ops/pending_gathers.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "ops/lanes/clock.h"

namespace tf_libra {

PendingGathers& PendingGathers::Global() {
  // Never destroyed: lanes may outlive static destruction.
  static PendingGathers* const gathers = new PendingGathers;
  return *gathers;
}

void PendingGathers::Begin(const Variables& variables) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const void* const variable : variables) ++pending_[variable];
}

void PendingGathers::End(const Variables& variables, const Status& status) {
  std::vector<Waiter> over;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) failure_ = status;
    ++num_ended_;
    for (const void* const variable : variables) {
      const auto found = pending_.find(variable);
      if (--found->second == 0) pending_.erase(found);
    }
    const auto waits = [this](const Waiter& waiter) { return AnyPending(waiter.variables); };
    const auto first_over = std::stable_partition(waiters_.begin(), waiters_.end(), waits);
    std::move(first_over, waiters_.end(), std::back_inserter(over));
    waiters_.erase(first_over, waiters_.end());
    changed_.notify_all();
  }
  for (const Waiter& waiter : over) waiter.done();
}

void PendingGathers::Await(const Variables& variables, std::function<void()> done) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (AnyPending(variables)) {
      waiters_.push_back({variables, std::move(done)});
      return;
    }
  }
  done();
}

Status PendingGathers::AwaitAll(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!pending_.empty()) {
    const uint64_t before = num_ended_;
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return num_ended_ != before; })) {
      return Status(StatusCode::kDeadlineExceeded,
                    "no weight has been gathered for " + SecondsText(seconds) + " s");
    }
  }
  return failure_;
}

void PendingGathers::ForgetFailure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = Status();
}

Status PendingGathers::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool PendingGathers::AnyPending(const Variables& variables) const {
  return std::any_of(variables.begin(), variables.end(),
                     [this](const void* variable) { return pending_.count(variable) > 0; });
}

}  // namespace tf_libra
