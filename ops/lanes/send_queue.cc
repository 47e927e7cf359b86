#include "ops/lanes/send_queue.h"

#include <algorithm>
#include <utility>

#include "ops/lanes/clock.h"
#include "ops/lanes/direct_all_reduce_header.h"

namespace tf_libra {

void SendQueue::Add(const TransferPtr& send) {
  if (send->is_queued || (send->num_movable() == 0 && send->num_bytes > 0)) return;
  send->is_queued = true;
  streaming_.push_back(send);
}

bool SendQueue::Next(iovec (&runs)[2]) {
  if (frames_sent_ == frames_.size() && sending_ == nullptr) {
    // Frames stand between fragments.
    frames_sent_ = 0;
    frames_.clear();
    frames_.swap(next_frames_);
    if (!streaming_.empty()) {
      sending_ = std::move(streaming_.front());
      streaming_.pop_front();
      const size_t at = sending_->num_moved;
      fragment_end_ = at + std::min(kFragmentBytes, sending_->num_movable());
      Frame frame;
      frame.kind = Frame::kData;
      frame.id = in_place_ ? sending_->offer_id : sending_->request_id;
      frame.num_bytes = fragment_end_ - at;
      AddDataFrame(frame);
      position_ += frame.num_bytes;
    }
    if (frames_.empty()) return false;
    position_ += frames_.size();
  }
  runs[0] = {&frames_[frames_sent_], frames_.size() - frames_sent_};
  runs[1] = {nullptr, 0};
  if (sending_ != nullptr && fragment_end_ > sending_->num_moved) {
    runs[1] = {sending_->data + sending_->num_moved, fragment_end_ - sending_->num_moved};
  }
  return true;
}

void SendQueue::AddDataFrame(const Frame& frame) {
  const size_t end = BytesToHeaderEnd(position_ + frames_.size());
  if (in_place_) frames_.append(end - kHeaderRoom, 0);
  frames_.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  if (in_place_) frames_.append(kHeaderRoom - sizeof(frame), 0);
}

TransferPtr SendQueue::Sent(size_t num_bytes) {
  const size_t of_frames = std::min(num_bytes, frames_.size() - frames_sent_);
  frames_sent_ += of_frames;
  if (sending_ == nullptr) return nullptr;
  sending_->num_moved += num_bytes - of_frames;
  sending_->last_progress = Clock::now();
  if (frames_sent_ < frames_.size() || sending_->num_moved < fragment_end_) return nullptr;
  TransferPtr sent = std::move(sending_);
  sending_ = nullptr;
  sent->is_queued = false;
  if (std::exchange(sent->is_dropped, false)) sent->num_moved = 0;
  if (sent->num_moved == sent->num_bytes) return sent;
  Add(sent);
  return nullptr;
}

}  // namespace tf_libra
