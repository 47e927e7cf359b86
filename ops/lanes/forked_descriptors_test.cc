#include "ops/lanes/forked_descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "ops/lanes/socket.h"
#include "ops/lanes/testing.h"

namespace tf_libra::forked_descriptors_test {
namespace {

// Up to the highest descriptor that this process may have.
TEST_CASE("HighDescriptorsAreClosedInAForkedChild") {
  const pid_t parent = fork();
  if (parent == 0) {
    alarm(60);
    rlimit limit{200'000, 200'000};  // which root may have
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = limit.rlim_max;
      setrlimit(RLIMIT_NOFILE, &limit);
    }
    const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 200'000));
    std::vector<Socket> sockets;
    for (const int part : {0, 1, 2, 3, 4}) {
      const int least = (most - 10) / 4 * part;
      sockets.emplace_back(fcntl(0, F_DUPFD_CLOEXEC, least));
      if (sockets.back().fd() < least) _exit(1);
    }
    const int closed = sockets[3].fd();
    sockets[3] = Socket();
    const int of_others = fcntl(0, F_DUPFD_CLOEXEC, closed);  // which is not closed
    const pid_t child = fork();
    if (child == 0) {
      bool are_closed = fcntl(of_others, F_GETFD) >= 0;
      for (const Socket& socket : sockets) {
        are_closed = are_closed && (!socket.valid() || fcntl(socket.fd(), F_GETFD) < 0);
      }
      _exit(are_closed ? 0 : 1);
    }
    int outcome = -1;
    waitpid(child, &outcome, 0);
    _exit(outcome == 0 ? 0 : 1);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(parent, &outcome, 0), parent);
  CHECK_EQ(outcome, 0);
}

}  // namespace
}  // namespace tf_libra::forked_descriptors_test
