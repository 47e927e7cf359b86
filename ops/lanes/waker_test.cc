#include "ops/lanes/waker.h"

#include <poll.h>
#include <sys/resource.h>

#include <thread>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

bool IsAwake(const Waker& waker, int milliseconds = 0) {
  pollfd entry{waker.descriptor().fd(), POLLIN, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

void WakesUntilItRests() {
  Waker waker;
  CHECK_OK(waker.Open());
  CHECK_TRUE(!IsAwake(waker));
  for (int round = 0; round < 3; ++round) {
    for (int time = 0; time <= round; ++time) waker.Wake();
    CHECK_TRUE(IsAwake(waker));
    CHECK_TRUE(IsAwake(waker));
    waker.Rest();
    CHECK_TRUE(!IsAwake(waker));
    waker.Rest();  // waits for nobody
  }
}

void FromAnotherThread() {
  Waker waker;
  CHECK_OK(waker.Open());
  std::thread other([&waker] { waker.Wake(); });
  CHECK_TRUE(IsAwake(waker, PollMilliseconds(After(testing::kGenerousSeconds))));
  other.join();
}

void NobodyBeforeItIsOpen() {
  Waker waker;
  waker.Wake();
  waker.Rest();
  CHECK_TRUE(!waker.descriptor().valid());
}

void WithoutADescriptor() {
  rlimit before;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Waker waker;
  CHECK_STATUS(waker.Open(), StatusCode::kResourceExhausted, "eventfd: ");
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  using namespace tf_libra;
  return testing::RunTests({{"WakesUntilItRests", WakesUntilItRests},
                            {"FromAnotherThread", FromAnotherThread},
                            {"NobodyBeforeItIsOpen", NobodyBeforeItIsOpen},
                            {"WithoutADescriptor", WithoutADescriptor}},
                           argc, argv);
}
