#include "ops/lanes/receive_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ops/lanes/clock.h"

namespace tf_libra {
namespace {

constexpr size_t kBufferBytes = 2 * kMaxFrameBytes;

}  // namespace

void ReceiveParser::Room(iovec (&runs)[2]) {
  if (buffer_.empty()) buffer_.resize(kBufferBytes);
  // Less than a frame remains.
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  runs[0] = {nullptr, 0};
  runs[1] = {buffer_.data() + end_, buffer_.size() - end_};
  if (receiving_ == nullptr) return;
  runs[0] = {receiving_->here(), NumHere()};
  if (NumHere() < fragment_left_) runs[1].iov_len = 0;  // later bytes belong elsewhere
}

void ReceiveParser::Received(size_t num_bytes) {
  const size_t of_payload = receiving_ == nullptr ? 0 : std::min(num_bytes, NumHere());
  end_ += num_bytes - of_payload;
  if (of_payload > 0) Take(of_payload);
}

ReceiveParser::News ReceiveParser::Next(Frame* frame, const char** text, TransferPtr* through,
                                        Status* status) {
  if (receiving_ != nullptr) {
    while (const size_t count = std::min(end_ - begin_, NumHere())) {
      std::memcpy(receiving_->here(), buffer_.data() + begin_, count);
      begin_ += count;
      Take(count);
    }
    if (fragment_left_ > 0) return News::kNothing;
    const TransferPtr received = std::exchange(receiving_, nullptr);
    if (received->num_moved == received->num_bytes) {
      *through = received;
      return News::kThrough;
    }
  }
  if (begin_ == end_) return News::kNothing;
  size_t length = 0;
  *status = ReadFrame(buffer_.data() + begin_, end_ - begin_, frame, &length);
  if (!status->ok()) return News::kInvalid;
  if (length == 0) return News::kNothing;
  *text = buffer_.data() + begin_ + sizeof(Frame);
  begin_ += length;
  return News::kFrame;
}

void ReceiveParser::Expect(TransferPtr receive, size_t num_bytes) {
  receiving_ = std::move(receive);
  fragment_left_ = num_bytes;
}

size_t ReceiveParser::NumHere() const { return std::min(fragment_left_, receiving_->num_here()); }

void ReceiveParser::Take(size_t num_bytes) {
  receiving_->num_moved += num_bytes;
  receiving_->num_taken = receiving_->num_moved;
  receiving_->last_progress = Clock::now();
  fragment_left_ -= num_bytes;
  if (receiving_->on_progress) receiving_->on_progress(receiving_->num_moved);
}

}  // namespace tf_libra
