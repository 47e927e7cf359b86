// Operations of the engine over some of the ranks: sends, receives, and collectives over sets of
// ranks.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "ops/lanes/collective.h"
#include "ops/lanes/lane_engine.h"

namespace tf_libra {

template <typename Post>
void LaneEngine::PostMessages(const std::function<void(const Status&)>& done, Post post) noexcept {
  Status status = failure();
  bool is_over = false;
  try {
    if (status.ok()) status = post(&is_over);
  } catch (...) {
    status = CaughtStatus("a message cannot start");
  }
  if (status.ok() && !is_over) return;
  // A rejected request is the caller's mistake. After any other failure peers must not keep
  // waiting.
  const bool goes_on = status.ok() || status.code() == StatusCode::kInvalidArgument;
  if (!goes_on) status = Fail(status);
  try {
    done(status);
  } catch (...) {
    Fail(CaughtStatus("the callback of a message failed"));
  }
}

void LaneEngine::Exchange(Transfer::Way way, MessageRequest request) noexcept {
  PostMessages(request.done, [&](bool*) {
    const auto transfer = std::make_shared<Transfer>();
    transfer->way = way;
    transfer->peer = request.peer;
    transfer->key = (request.is_read ? Transfer::kRead : 'm') + request.name;
    transfer->content = std::move(request.content);
    transfer->data = request.data;
    transfer->num_bytes = request.num_bytes;
    transfer->done = request.done;
    transfer->in_place = transfer->copies = !request.is_read;  // a read begins with its request
    return messenger_->Post({transfer});
  });
}

void LaneEngine::Send(MessageRequest request) noexcept {
  Exchange(Transfer::Way::kSend, std::move(request));
}

void LaneEngine::Receive(MessageRequest request) noexcept {
  Exchange(Transfer::Way::kReceive, std::move(request));
}

void LaneEngine::Run(CollectiveRequest request) noexcept {
  PostMessages(request.done, [&](bool* is_over) {
    return RunCollective(messenger_.get(), rank_, world_size_, request, is_over);
  });
}

Status LaneEngine::AwaitRead(double seconds, int* peer, std::string* name) noexcept {
  if (Status status = failure(); !status.ok()) return status;
  try {
    return messenger_->AwaitRead(seconds, peer, name);
  } catch (...) {
    return CaughtStatus("the wait for a read failed");
  }
}

void LaneEngine::Flush() noexcept {
  if (InForkedChild()) return;
  const double seconds = std::min(options_.timeout_seconds, options_.stall_warning_seconds);
  const std::string left = messenger_->Flush(seconds);
  if (left.empty() || !options_.warn) return;
  try {
    options_.warn("rank " + std::to_string(rank_) + " ends, and has waited " +
                  SecondsText(seconds) + " s for others to receive what it sent: " + left);
  } catch (...) {  // no memory for words
  }
}

}  // namespace tf_libra
