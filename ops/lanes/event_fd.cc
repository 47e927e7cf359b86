#include "ops/lanes/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "ops/lanes/descriptors.h"

namespace tf_libra {

Status EventFd::Open() {
  return TakeDescriptor("eventfd", eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), &event_);
}

void EventFd::Wake() noexcept {
  const uint64_t one = 1;
  const ssize_t ignored = write(event_.fd(), &one, sizeof(one));  // if it is full it wakes as well
  static_cast<void>(ignored);
}

void EventFd::Rest() noexcept {
  uint64_t count;
  const ssize_t ignored = read(event_.fd(), &count, sizeof(count));
  static_cast<void>(ignored);
}

}  // namespace tf_libra
