// Bytes from one peer (messenger.h): frames, and between them fragments of messages, which are
// received directly into their destination.
#ifndef TF_LIBRA_OPS_LANES_RECEIVE_PARSER_H_
#define TF_LIBRA_OPS_LANES_RECEIVE_PARSER_H_

#include <sys/uio.h>

#include <cstddef>
#include <vector>

#include "ops/lanes/frame.h"
#include "ops/lanes/message_transfer.h"
#include "ops/lanes/status.h"

namespace tf_libra {

class ReceiveParser {
 public:
  // Returns the free space for the next bytes, in two runs, one of which may be empty.
  void Room(iovec (&runs)[2]);
  // So many have come there.
  void Received(size_t num_bytes);

  enum class News {
    kNothing,  // until more is received
    kFrame,    // the next one, with its text, which stays until the next call
    kThrough,  // a receive has all its bytes
    kInvalid,  // the peer has sent what is no frame
  };
  // Returns the next event of the received bytes; `status` describes an error.
  News Next(Frame* frame, const char** text, TransferPtr* through, Status* status);
  // Bytes that are certain to come next; 0: not known.
  size_t num_expected() const { return receiving_ == nullptr ? 0 : fragment_left_; }
  // The frame that was next has so many bytes of this receive behind it.
  void Expect(TransferPtr receive, size_t num_bytes);

 private:
  // Returns the bytes of the fragment that are contiguous.
  size_t NumHere() const;
  void Take(size_t num_bytes);

  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what of it is not looked at
  TransferPtr receiving_;
  size_t fragment_left_ = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_RECEIVE_PARSER_H_
