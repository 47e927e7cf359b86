// Event that wakes a thread which waits for descriptors in poll(2) or epoll(7).
#ifndef TF_LIBRA_OPS_LANES_EVENT_FD_H_
#define TF_LIBRA_OPS_LANES_EVENT_FD_H_

#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"

namespace tf_libra {

class EventFd {
 public:
  // ResourceExhausted: there is no descriptor for it.
  Status Open();
  // Becomes readable when the thread is to wake.
  const Socket& descriptor() const { return event_; }
  // From any thread; nothing before Open.
  void Wake() noexcept;
  // For the thread, once it is awake: from then on Wake wakes it again.
  void Rest() noexcept;

 private:
  Socket event_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_EVENT_FD_H_
