#include "ops/lanes/engine_shutdown.h"

#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "ops/lanes/clock.h"

namespace tf_libra {

Status EndWithin(std::shared_ptr<Engine> engine, const std::string& why) {
  const Status reason(StatusCode::kUnavailable, why);
  const double timeout_seconds = engine->timeout_seconds();
  engine->Flush();
  // A `done` may lead to any code, the user's included. Held here if no thread can start: then this
  // thread must not wait for the lanes.
  auto* const owner = new std::shared_ptr<Engine>(std::move(engine));
  std::future<void> end;
  try {
    std::promise<void> ended;
    end = ended.get_future();
    std::thread([owner, reason, ended = std::move(ended)]() mutable {
      (*owner)->Abort(reason);
      delete owner;
      ended.set_value();
    }).detach();
  } catch (...) {  // threads or memory
    (*owner)->Abort(reason);
    return Status(StatusCode::kResourceExhausted,
                  "no thread can start that would end the engine's; they are left behind");
  }
  if (end.wait_for(std::chrono::duration<double>(timeout_seconds)) == std::future_status::ready) {
    return Status();
  }
  return Status(StatusCode::kDeadlineExceeded, "a callback of an all-reduce has not returned for " +
                                                   SecondsText(timeout_seconds) +
                                                   " s; the engine's threads are left behind");
}

}  // namespace tf_libra
