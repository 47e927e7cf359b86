#include "ops/lanes/event_fd.h"

#include <poll.h>
#include <sys/resource.h>

#include <thread>

#include "ops/lanes/testing.h"

namespace tf_libra::event_fd_test {
namespace {

bool IsAwake(const EventFd& waker, int milliseconds = 0) {
  pollfd entry{waker.descriptor().fd(), POLLIN, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

TEST_CASE("WakesUntilItRests") {
  EventFd waker;
  CHECK_EQ(waker.Open(), testing::IsOk());
  CHECK(!IsAwake(waker));
  for (int round = 0; round < 3; ++round) {
    for (int time = 0; time <= round; ++time) waker.Wake();
    CHECK(IsAwake(waker));
    CHECK(IsAwake(waker));
    waker.Rest();
    CHECK(!IsAwake(waker));
    waker.Rest();  // does not block
  }
}

TEST_CASE("FromAnotherThread") {
  EventFd waker;
  CHECK_EQ(waker.Open(), testing::IsOk());
  std::thread other([&waker] { waker.Wake(); });
  CHECK(IsAwake(waker, PollMilliseconds(After(testing::kGenerousSeconds))));
  other.join();
}

TEST_CASE("NobodyBeforeItIsOpen") {
  EventFd waker;
  waker.Wake();
  waker.Rest();
  CHECK(!waker.descriptor().valid());
}

TEST_CASE("WithoutADescriptor") {
  rlimit before;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EventFd waker;
  CHECK_EQ(waker.Open(), testing::StatusIs(StatusCode::kResourceExhausted, "eventfd: "));
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace tf_libra::event_fd_test
