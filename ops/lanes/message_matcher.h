// Matching of posted transfers with the peer's announcements, first in, first out per key, for one
// peer and direction (messenger.h).
#ifndef TF_LIBRA_OPS_LANES_MESSAGE_MATCHER_H_
#define TF_LIBRA_OPS_LANES_MESSAGE_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "ops/lanes/message_transfer.h"

namespace tf_libra {

struct Announced {
  uint64_t id = 0;
  uint64_t num_bytes = 0;
  std::string content;
};

class MessageMatcher {
 public:
  void Post(const TransferPtr& transfer);
  void Announce(const std::string& key, Announced announced);
  // Takes out the next two of a key that meet. False: there are none.
  bool MatchNext(const std::string& key, TransferPtr* transfer, Announced* announced);

  // Announced messages that match no posted transfer yet.
  size_t num_announced() const { return num_announced_; }
  // Bytes of their texts.
  size_t announced_bytes() const { return announced_bytes_; }
  // The first of each name, so many of them, with what they are.
  std::string NameAnnounced(size_t most) const;

 private:
  struct Queues {
    // Lists, since most queues hold one element: an empty deque allocates more than that.
    std::list<TransferPtr> posted;
    std::list<Announced> announced;
  };

  std::map<std::string, Queues> queues_;  // by key; none is empty
  size_t num_announced_ = 0, announced_bytes_ = 0;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_MESSAGE_MATCHER_H_
