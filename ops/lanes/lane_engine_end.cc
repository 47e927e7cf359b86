// The end of an engine: failures, their explanation by other ranks, and destruction.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "ops/lanes/lane_engine.h"

namespace tf_libra {
namespace {

// Ranks that disagree are alive, and both find the difference: worth a longer wait for the reason.
constexpr double kDisagreementSeconds = 5;

Status Closed() { return Status(StatusCode::kUnavailable, "the engine was closed"); }

}  // namespace

LaneEngine::LaneEngine(const LaneEngineOptions& options, Mesh* mesh)
    : options_(options),
      process_(getpid()),
      rank_(mesh->rank),
      world_size_(mesh->world_size),
      ranks_per_host_(mesh->ranks_per_host),
      hosts_(std::move(mesh->hosts)),
      grid_(std::move(mesh->grid)),
      links_(std::move(mesh->links)),
      control_(std::make_unique<ControlPlane>(std::move(mesh->tree), std::move(mesh->control),
                                              OptionsOfControl(), &links_)),
      messenger_(
          std::make_unique<Messenger>(MessagesOptions(), std::move(mesh->messages), &links_)) {}

LaneEngine::~LaneEngine() {
  if (InForkedChild()) {
    // The threads are the parent's. What they wait on cannot be destroyed, only left.
    for (auto& lane : lanes_) static_cast<void>(lane.release());
    static_cast<void>(messenger_.release());
    static_cast<void>(control_.release());
    return;
  }
  Abort(Closed());
  {
    // A job may just be on its way to the lanes: none of them leaves before it is through.
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return num_running_ == 0; });
  }
  StopAndJoin(&lanes_);
  // While all that they may call is there.
  messenger_->Join();
  control_->Join();
}

void LaneEngine::Delete(LaneEngine* engine) noexcept {
  if (of_this_thread_ != engine) {
    delete engine;
    return;
  }
  engine->Abort(Closed());
  try {
    std::thread([engine] { delete engine; }).detach();
  } catch (...) {
    // The engine has ended; only its memory and its sleeping threads remain.
  }
}

ControlOptions LaneEngine::OptionsOfControl() {
  ControlOptions options;
  options.stall_warning_seconds = options_.stall_warning_seconds;
  if (options_.warn) {
    options.warn = [this](const std::string& ranks) {
      options_.warn("rank " + std::to_string(rank_) + " has waited " +
                    SecondsText(options_.stall_warning_seconds) + " s for rank(s) " + ranks +
                    " before a step; still waiting");
    };
  }
  options.on_thread = [this] { of_this_thread_ = this; };
  options.on_failure = [this](const Status& status) { Fail(status); };
  return options;
}

MessengerOptions LaneEngine::MessagesOptions() {
  MessengerOptions options;
  options.rank = rank_;
  options.timeout_seconds = options_.timeout_seconds;
  options.stall_warning_seconds = options_.stall_warning_seconds;
  options.warn = options_.warn;
  options.on_thread = [this] { of_this_thread_ = this; };
  options.on_failure = [this](const Status& status) { Fail(Explain(status, "messages", step_)); };
  return options;
}

Status LaneEngine::Explain(const Status& status, const std::string& what, int64_t step) noexcept {
  if (Status known = failure(); !known.ok()) return known;
  try {
    std::string message = "rank " + std::to_string(rank_) + ", " + what + ": " + status.message();
    const bool disagree = status.code() == StatusCode::kFailedPrecondition;
    // Sent before listening: the other side listens for it, too.
    if (disagree) control_->BroadcastAbort(message);
    // A rank that was stopped finds itself late with all that it waits for: the others know why.
    const bool is_late = status.code() == StatusCode::kDeadlineExceeded;
    if (disagree || is_late || status.code() == StatusCode::kUnavailable) {
      const std::string words = control_->WaitForAborts(
          std::min(disagree ? kDisagreementSeconds : kAbortWaitSeconds, options_.timeout_seconds));
      if (!words.empty()) message += " (" + words + ")";
    }
    if (step >= 0) message += "; step " + std::to_string(step) + " was not completed";
    return Status(status.code(), std::move(message));
  } catch (...) {  // no memory for more words
    return status;
  }
}

bool LaneEngine::InForkedChild() const { return getpid() != process_; }

Status LaneEngine::failure() noexcept {
  if (InForkedChild()) {
    // Without a look at the mutex: a thread that is not here may hold it.
    return Status(StatusCode::kFailedPrecondition,
                  "the engine runs in the process that started it, not in one forked from it");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Status LaneEngine::Fail(const Status& cause) noexcept {
  if (InForkedChild()) return failure();  // the connections are the parent's too
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = cause;
  }
  control_->BroadcastAbort(cause.message());
  for (auto& lane : lanes_) {  // which grow no more
    for (Connection& connection : lane->peers.row) connection.Shutdown();
    for (Connection& connection : lane->peers.column) connection.Shutdown();
  }
  control_->Shutdown();
  messenger_->End(cause);
  StartNext();  // ends what is queued
  return cause;
}

void LaneEngine::Abort(const Status& reason) noexcept { Fail(reason); }

}  // namespace tf_libra
