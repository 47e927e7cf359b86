#include "ops/lanes/epoll_set.h"

#include <sys/epoll.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "ops/lanes/descriptors.h"

namespace tf_libra {
namespace {

constexpr int kEventsAtOnce = 64;

bool Add(const Socket& set, const Socket& socket, uint32_t events, uint64_t number) {
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = number;
  return epoll_ctl(set.fd(), EPOLL_CTL_ADD, socket.fd(), &event) == 0;
}

}  // namespace

Status EpollSet::Make(const std::vector<Connection>& peers, const std::vector<int>* names,
                      const std::vector<Socket>* links, std::unique_ptr<EpollSet>* watch) {
  Socket set;
  Status status = TakeDescriptor("epoll_create", epoll_create1(EPOLL_CLOEXEC), &set);
  if (!status.ok()) return status;
  for (size_t index = 0; index < peers.size(); ++index) {
    const Connection& peer = peers[index];
    if (!peer.valid()) continue;
    // A socket that accompanies shared memory never needs EPOLLOUT: no thread waits for its room.
    const uint32_t room = peer.memory == nullptr ? EPOLLOUT : 0u;
    bool added = Add(set, peer.socket, EPOLLIN | EPOLLRDHUP | room, index);
    const size_t rank = names == nullptr ? index : static_cast<size_t>((*names)[index]);
    if (links != nullptr && rank < links->size() && (*links)[rank].valid()) {
      added = added && Add(set, (*links)[rank], 0, peers.size() + index);  // errors alone
    }
    if (!added) return OutOfDescriptors("epoll_ctl", errno);
  }
  watch->reset(new EpollSet(std::move(set), peers.size()));
  return status;
}

Status EpollSet::Wait(TimePoint deadline, std::vector<int>* indices) {
  indices->clear();
  epoll_event events[kEventsAtOnce];
  const int count = epoll_wait(set_.fd(), events, std::size(events), PollMilliseconds(deadline));
  if (count < 0 && errno != EINTR) return OutOfDescriptors("epoll_wait", errno);
  for (int i = 0; i < count; ++i) {
    const size_t number = events[i].data.u64;
    const size_t index = number % has_ended_.size();
    const bool of_link = number >= has_ended_.size();
    if (of_link) is_link_broken_[index] = true;
    if (!of_link && (events[i].events & ~(EPOLLIN | EPOLLOUT)) != 0) has_ended_[index] = true;
    has_trouble_ = has_trouble_ || is_link_broken_[index] || has_ended_[index];
    indices->push_back(static_cast<int>(index));
  }
  return Status();
}

}  // namespace tf_libra
