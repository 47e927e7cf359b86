// Set of a lane's connections to wait for. The system keeps the set, so the cost of a wait depends
// on the number of events, not of connections.
#ifndef TF_LIBRA_OPS_LANES_EPOLL_SET_H_
#define TF_LIBRA_OPS_LANES_EPOLL_SET_H_

#include <memory>
#include <vector>

#include "ops/lanes/adaptive_look.h"
#include "ops/lanes/clock.h"
#include "ops/lanes/connection.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

// Watch over the connections of one row or column. For one thread at a time.
class EpollSet {
 public:
  // Watches peers by index, and the links to them: those at `names` among `links`, or at the same
  // indices if `names` is nullptr. A nullptr or invalid link is left out. ResourceExhausted: the
  // system has no room.
  static Status Make(const std::vector<Connection>& peers, const std::vector<int>* names,
                     const std::vector<Socket>* links, std::unique_ptr<EpollSet>* watch);

  // Sleeps until there is news or the deadline passes, perhaps less; `indices` receives the indices
  // of the peers with news. News is a change: bytes that came, room after there was none, an end.
  // Bytes that the caller leaves unread are not reported again.
  // An error: the system cannot say.
  Status Wait(TimePoint deadline, std::vector<int>* indices);

  // What waits do before they sleep.
  AdaptiveLook* look() { return &look_; }

  // Lasting observations: the peer writes no more; the link has broken.
  bool has_ended(int index) const { return has_ended_[index]; }
  bool is_link_broken(int index) const { return is_link_broken_[index]; }
  // Returns whether either holds for any.
  bool has_trouble() const { return has_trouble_; }

 private:
  EpollSet(Socket set, size_t num_places)
      : set_(std::move(set)), has_ended_(num_places), is_link_broken_(num_places) {}

  Socket set_;
  AdaptiveLook look_;
  std::vector<bool> has_ended_, is_link_broken_;  // [index]
  bool has_trouble_ = false;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_EPOLL_SET_H_
