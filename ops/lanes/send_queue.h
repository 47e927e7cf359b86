// Bytes to one peer (messenger.h): frames, and between them fragments of messages, which take
// turns.
#ifndef TF_LIBRA_OPS_LANES_SEND_QUEUE_H_
#define TF_LIBRA_OPS_LANES_SEND_QUEUE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "ops/lanes/frame.h"
#include "ops/lanes/message_transfer.h"

namespace tf_libra {

class SendQueue {
 public:
  // Limit of bytes that one message sends before the next has its turn.
  static constexpr size_t kFragmentBytes = 512 << 10;

  // `in_place`: of transfers `in_place` through shared memory. Frames name the sender's id. They
  // take kHeaderRoom bytes and begin at multiples of it, so that the elements of fragments are
  // aligned.
  explicit SendQueue(bool in_place = false) : in_place_(in_place) {}

  // A frame with its text.
  void Add(const std::string& frame) { next_frames_ += frame; }
  // A send that is eager or requested by its receiver, if something of it may move and it is not
  // here already.
  void Add(const TransferPtr& send);

  // The bytes that are next, in two runs, of which one may be empty. False: there are none.
  bool Next(iovec (&runs)[2]);
  // So many of these were sent. The message of which all bytes are sent with them, or null.
  TransferPtr Sent(size_t num_bytes);

 private:
  void AddDataFrame(const Frame& frame);

  const bool in_place_;
  uint64_t position_ = 0;  // bytes that were next, those of `frames_` and its fragment included
  std::string next_frames_, frames_;  // the last of these with a fragment behind it
  size_t frames_sent_ = 0;
  std::deque<TransferPtr> streaming_;  // to take turns
  TransferPtr sending_;
  size_t fragment_end_ = 0;  // within the message
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_SEND_QUEUE_H_
