#include "ops/lanes/watch.h"

#include <sys/socket.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

using testing::kGenerousSeconds;

// Connections, and the test's own ends of them, by place.
struct Watched {
  std::vector<Connection> peers;
  std::vector<Socket> ends;
  std::unique_ptr<Watch> watch;

  explicit Watched(int count) : peers(count), ends(count) {
    for (int place = 0; place < count; ++place) {
      int fds[2];
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      peers[place].socket = Socket(fds[0]);
      ends[place] = Socket(fds[1]);
    }
    CHECK_OK(Watch::Make(peers, nullptr, nullptr, &watch));
    All();  // that there is room
  }

  void Say(int place) { CHECK_OK(SendAll(ends[place], "x", 1, After(kGenerousSeconds))); }

  // What there is now, in the order of places.
  std::vector<int> All() {
    std::vector<int> all, some;
    do {
      watch->Wait(Clock::now(), &some);
      all.insert(all.end(), some.begin(), some.end());
    } while (!some.empty());
    std::sort(all.begin(), all.end());
    return all;
  }
};

void NewsIsToldOnce() {
  Watched watched(5);
  CHECK_TRUE(watched.All().empty());
  watched.Say(3);
  std::vector<int> places;
  watched.watch->Wait(After(kGenerousSeconds), &places);
  CHECK_TRUE((places == std::vector<int>{3}));
  CHECK_TRUE(watched.All().empty());  // though nobody has read it
  watched.Say(3);
  watched.Say(1);
  CHECK_TRUE((watched.All() == std::vector<int>{1, 3}));
  CHECK_TRUE(!watched.watch->has_trouble());
}

// More of them than are told at once.
void ManyHaveNews() {
  constexpr int kCount = 300;
  Watched watched(kCount);
  for (int place = 0; place < kCount; ++place) watched.Say(place);
  std::vector<int> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK_TRUE(watched.All() == expected);
}

void RoomAfterThereWasNone() {
  Watched watched(2);
  std::vector<char> bytes(1 << 16);
  const int fd = watched.peers[1].socket.fd();
  while (send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  CHECK_TRUE(watched.All().empty());
  while (recv(watched.ends[1].fd(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  CHECK_TRUE((watched.All() == std::vector<int>{1}));
}

void EndsAreRemembered() {
  Watched watched(3);
  watched.Say(2);
  watched.ends[2] = Socket();
  CHECK_TRUE((watched.All() == std::vector<int>{2}));
  CHECK_TRUE(watched.All().empty());
  CHECK_TRUE(watched.watch->has_trouble());
  for (int place = 0; place < 3; ++place) {
    CHECK_EQ(watched.watch->has_ended(place), place == 2);
    CHECK_TRUE(!watched.watch->is_link_broken(place));
  }
}

// A link, as by number of its rank; nothing is said on it, and it is reset.
void BrokenLinksAreRemembered() {
  Socket listener, link, other;
  Address address;
  CHECK_OK(Listen("127.0.0.1", 0, &listener, &address));
  CHECK_OK(Connect(address, After(kGenerousSeconds), &link));
  while (!other.valid()) CHECK_OK(Accept(listener, &other));
  Watched watched(2);
  std::vector<Socket> links(9);
  links[7] = std::move(link);
  const std::vector<int> names = {4, 7};
  CHECK_OK(Watch::Make(watched.peers, &names, &links, &watched.watch));
  watched.All();
  const linger at_once{1, 0};
  CHECK_EQ(setsockopt(other.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  other = Socket();
  std::vector<int> places;
  watched.watch->Wait(After(kGenerousSeconds), &places);
  CHECK_TRUE((places == std::vector<int>{1}));
  CHECK_TRUE(watched.watch->has_trouble());
  CHECK_TRUE(watched.watch->is_link_broken(1) && !watched.watch->is_link_broken(0));
  CHECK_TRUE(!watched.watch->has_ended(1));
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  using namespace tf_libra;
  return testing::RunTests({{"NewsIsToldOnce", NewsIsToldOnce},
                            {"ManyHaveNews", ManyHaveNews},
                            {"RoomAfterThereWasNone", RoomAfterThereWasNone},
                            {"EndsAreRemembered", EndsAreRemembered},
                            {"BrokenLinksAreRemembered", BrokenLinksAreRemembered}},
                           argc, argv);
}
