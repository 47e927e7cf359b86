#include "ops/lanes/epoll_set.h"

#include <sys/socket.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::epoll_set_test {
namespace {

using testing::kGenerousSeconds;

// Connections, and the test's own ends of them, by index.
struct Watched {
  std::vector<Connection> peers;
  std::vector<Socket> ends;
  std::unique_ptr<EpollSet> watch;

  explicit Watched(int count) : peers(count), ends(count) {
    for (int index = 0; index < count; ++index) {
      int fds[2];
      CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      peers[index].socket = Socket(fds[0]);
      ends[index] = Socket(fds[1]);
    }
    CHECK_EQ(EpollSet::Make(peers, nullptr, nullptr, &watch), testing::IsOk());
    All();  // that there is room
  }

  void Say(int index) {
    CHECK_EQ(SendAll(ends[index], "x", 1, After(kGenerousSeconds)), testing::IsOk());
  }

  // What there is now, in the order of indices.
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

TEST_CASE("NewsIsToldOnce") {
  Watched watched(5);
  CHECK(watched.All().empty());
  watched.Say(3);
  std::vector<int> indices;
  watched.watch->Wait(After(kGenerousSeconds), &indices);
  CHECK((indices == std::vector<int>{3}));
  CHECK(watched.All().empty());  // though no thread has read it
  watched.Say(3);
  watched.Say(1);
  CHECK((watched.All() == std::vector<int>{1, 3}));
  CHECK(!watched.watch->has_trouble());
}

// More of them than one call reports.
TEST_CASE("ManyHaveNews") {
  constexpr int kCount = 300;
  Watched watched(kCount);
  for (int index = 0; index < kCount; ++index) watched.Say(index);
  std::vector<int> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(watched.All() == expected);
}

TEST_CASE("RoomAfterThereWasNone") {
  Watched watched(2);
  std::vector<char> bytes(1 << 16);
  const int fd = watched.peers[1].socket.fd();
  while (send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
  CHECK(watched.All().empty());
  while (recv(watched.ends[1].fd(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  CHECK((watched.All() == std::vector<int>{1}));
}

TEST_CASE("EndsAreRemembered") {
  Watched watched(3);
  watched.Say(2);
  watched.ends[2] = Socket();
  CHECK((watched.All() == std::vector<int>{2}));
  CHECK(watched.All().empty());
  CHECK(watched.watch->has_trouble());
  for (int index = 0; index < 3; ++index) {
    CHECK_EQ(watched.watch->has_ended(index), index == 2);
    CHECK(!watched.watch->is_link_broken(index));
  }
}

// A link, as by number of its rank; nothing is said on it, and it is reset.
TEST_CASE("BrokenLinksAreRemembered") {
  Socket listener, link, other;
  Address address;
  CHECK_EQ(Listen("127.0.0.1", 0, &listener, &address), testing::IsOk());
  CHECK_EQ(Connect(address, After(kGenerousSeconds), &link), testing::IsOk());
  while (!other.valid()) CHECK_EQ(Accept(listener, &other), testing::IsOk());
  Watched watched(2);
  std::vector<Socket> links(9);
  links[7] = std::move(link);
  const std::vector<int> names = {4, 7};
  CHECK_EQ(EpollSet::Make(watched.peers, &names, &links, &watched.watch), testing::IsOk());
  watched.All();
  const linger at_once{1, 0};
  CHECK_EQ(setsockopt(other.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  other = Socket();
  std::vector<int> indices;
  watched.watch->Wait(After(kGenerousSeconds), &indices);
  CHECK((indices == std::vector<int>{1}));
  CHECK(watched.watch->has_trouble());
  CHECK((watched.watch->is_link_broken(1) && !watched.watch->is_link_broken(0)));
  CHECK(!watched.watch->has_ended(1));
}

}  // namespace
}  // namespace tf_libra::epoll_set_test
