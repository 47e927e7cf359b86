#include "ops/lanes/messenger.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <tuple>
#include <utility>

#include "ops/lanes/descriptors.h"
#include "ops/lanes/text.h"

namespace tf_libra {
namespace {

// While shared memory makes progress, epoll is called once in so many turns.
constexpr int kTurnsPerPoll = 8;
constexpr uint64_t kWaker = UINT64_MAX;

bool IsLarge(const Transfer& transfer) { return transfer.num_bytes > AdaptiveLook::kMostBytes; }

// Ends a transfer on the first call. Returns an error if its callback throws.
Status Finish(const TransferPtr& transfer, const Status& status) noexcept {
  const auto done = std::exchange(transfer->done, nullptr);
  transfer->on_progress = nullptr;
  try {
    if (done != nullptr) done(status);
  } catch (...) {
    return CaughtStatus("the callback of a message failed");
  }
  return Status();
}

}  // namespace

Messenger::Messenger(MessengerOptions options, std::vector<Connection> peers,
                     const std::vector<Socket>* links)
    : options_(std::move(options)), connections_(std::move(peers)), links_(links) {}

void Messenger::Join() {
  if (thread_.joinable()) thread_.join();
}

Status Messenger::Post(const std::vector<TransferPtr>& transfers) {
  for (const TransferPtr& transfer : transfers) {
    const int world_size = static_cast<int>(connections_.size());
    Status status = CheckTransfer(*transfer, options_.rank, world_size);
    if (!status.ok()) return status;
  }
  Status end;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!has_ended_) {
      if (Status status = Start(); !status.ok()) return status;
      posted_.insert(posted_.end(), transfers.begin(), transfers.end());
      waker_.Wake();
      return Status();
    }
    end = end_;
  }
  for (const TransferPtr& transfer : transfers) Finish(transfer, end);
  return Status();
}

Status Messenger::Start() {
  if (thread_.joinable()) return Status();
  Status status = TakeDescriptor("epoll_create", epoll_create1(EPOLL_CLOEXEC), &poll_);
  if (status.ok()) status = waker_.Open();
  if (status.ok()) thread_ = std::thread([this] { Main(); });
  return status;
}

void Messenger::Release(TransferPtr transfer, size_t num_ready) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (has_ended_) return;  // with the others
  released_.emplace_back(std::move(transfer), num_ready);
  if (std::this_thread::get_id() == thread_.get_id()) {
    turns_again_ = true;
  } else {
    waker_.Wake();
  }
}

void Messenger::Consume(Transfer* transfer, size_t num_consumed) {
  transfer->num_consumed = num_consumed;
  if (num_consumed <= transfer->num_taken) return;
  transfer->last_progress = Clock::now();
  GiveTurn(&peers_[transfer->peer]);
}

ScratchBuffer Messenger::TakeScratch(size_t num_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (scratch_.num_bytes >= num_bytes) return std::exchange(scratch_, {});
  }
  return {std::unique_ptr<char[]>(new char[num_bytes]), num_bytes};
}

void Messenger::ReturnScratch(ScratchBuffer scratch) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (scratch.num_bytes > scratch_.num_bytes) std::swap(scratch, scratch_);
}

std::string Messenger::Flush(double seconds) noexcept {
  try {
    std::unique_lock<std::mutex> lock(mutex_);
    if (has_ended_ || !thread_.joinable()) return "";
    flushes_ = true;
    waker_.Wake();
    flushed_.wait_until(lock, After(seconds), [this] { return is_flushed_ || has_ended_; });
    return is_flushed_ || has_ended_ ? "" : unflushed_;
  } catch (...) {
    return "";  // no memory for words
  }
}

Status Messenger::AwaitRead(double seconds, int* peer, std::string* name) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (has_ended_) return end_;
  if (Status status = Start(); !status.ok()) return status;
  read_.wait_until(lock, After(seconds), [this] { return !reads_.empty() || has_ended_; });
  if (has_ended_) return end_;
  *peer = -1;
  if (reads_.empty()) return Status();
  std::tie(*peer, *name) = std::move(reads_.front());
  reads_.pop_front();
  return Status();
}

void Messenger::End(const Status& cause) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(has_ended_, true)) return;
  end_ = cause;
  for (Connection& connection : connections_) connection.Shutdown();
  waker_.Wake();
  flushed_.notify_all();
  read_.notify_all();
}

void Messenger::Main() noexcept {
  pthread_setname_np(pthread_self(), "libra messages");
  if (options_.on_thread) options_.on_thread();
  bool is_first = true;
  for (;;) {
    Status status;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (has_ended_) break;
    }
    try {
      status = std::exchange(is_first, false) ? WatchPeers() : Turn();
    } catch (...) {
      status = CaughtStatus("the messenger's thread failed");
    }
    if (status.ok()) continue;
    options_.on_failure(status);
    End(status);  // unless on_failure has called it
  }
  EndAll();
}

void Messenger::EndAll() noexcept {
  std::vector<TransferPtr> left;
  Status end;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end = end_;
    left.swap(posted_);
    released_.clear();
  }
  // A transfer may be in two of the lists.
  for (const TransferPtr& transfer : left) Finish(transfer, end);
  for (const TransferPtr& transfer : std::exchange(taken_, {})) Finish(transfer, end);
  for (const TransferPtr& transfer : std::exchange(active_, {})) Finish(transfer, end);
}

Status Messenger::WatchPeers() {
  peers_.resize(connections_.size());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWaker;
  if (epoll_ctl(poll_.fd(), EPOLL_CTL_ADD, waker_.descriptor().fd(), &event) != 0) {
    return OutOfDescriptors("epoll_ctl", errno);
  }
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    Peer& peer = peers_[rank];
    peer.rank = static_cast<int>(rank);
    peer.fd = connections_[rank].socket.fd();
    peer.memory = connections_[rank].memory.get();
    if (peer.fd < 0) continue;
    if (peer.memory != nullptr) {
      ++num_in_memory_;
      GiveTurn(&peer);  // to wait for it
    }
    event.data.u64 = rank;
    event.events = EPOLLIN;
    bool watched = epoll_ctl(poll_.fd(), EPOLL_CTL_ADD, peer.fd, &event) == 0;
    if (links_ != nullptr && (*links_)[rank].valid()) {
      event.data.u64 = peers_.size() + rank;
      event.events = 0;  // epoll reports errors alone
      watched = watched && epoll_ctl(poll_.fd(), EPOLL_CTL_ADD, (*links_)[rank].fd(), &event) == 0;
    }
    if (!watched) return OutOfDescriptors("epoll_ctl", errno);
  }
  next_check_ = After(options_.timeout_seconds);
  return Status();
}

Status Messenger::Turn() {
  if (Status status = TakePosted(); !status.ok()) return status;
  for (const int rank : std::exchange(turns_, {})) {
    Peer& peer = peers_[rank];
    peer.has_turn = false;
    const Status status = peer.memory == nullptr ? Write(&peer) : MoveInMemory(&peer);
    if (!status.ok()) return status;
  }
  ConfirmFlush();
  if (Status status = CheckWaits(); !status.ok()) return status;
  if (!thrown_.ok()) return thrown_;
  epoll_event events[64];
  const int wait = active_.empty() ? -1 : PollMilliseconds(next_check_);
  if (turns_.empty() && !turns_again_) {
    if (Status status = AwaitIdlePeers(); !status.ok()) return status;
  }
  const bool sleeps = turns_.empty() && !std::exchange(turns_again_, false);
  if (!sleeps && ++turns_without_poll_ < kTurnsPerPoll) return Status();
  turns_without_poll_ = 0;
  const int count = epoll_wait(poll_.fd(), events, std::size(events), sleeps ? wait : 0);
  if (count < 0 && errno != EINTR) return OutOfDescriptors("epoll_wait", errno);
  if (sleeps) StopAwaitingMemory();
  for (int i = 0; i < count; ++i) {
    const uint64_t who = events[i].data.u64;
    Status status;
    if (who == kWaker) {
      waker_.Rest();
    } else if (who >= peers_.size()) {
      const size_t rank = who - peers_.size();
      epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, (*links_)[rank].fd(), nullptr);
      status = OnPeerGone(&peers_[rank], WhyLinkBroke((*links_)[rank]));
    } else if (peers_[who].memory != nullptr) {
      OnWakeUp(&peers_[who]);
    } else {
      Peer& peer = peers_[who];
      if ((events[i].events & EPOLLOUT) != 0) status = Write(&peer);
      if (status.ok() && (events[i].events & ~EPOLLOUT) != 0) status = Read(&peer);
    }
    if (!status.ok()) return status;
  }
  return Status();
}

Status Messenger::TakePosted() {
  std::vector<std::pair<TransferPtr, size_t>> released;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken_.swap(posted_);
    released.swap(released_);
  }
  for (const TransferPtr& transfer : taken_) {
    active_.insert(transfer);
    num_large_ += IsLarge(*transfer);
    ++peers_[transfer->peer].num_active;
    if (transfer->is_read()) ++peers_[transfer->peer].num_reads;
  }
  for (const TransferPtr& transfer : std::exchange(taken_, {})) {
    if (Status status = Begin(transfer); !status.ok()) return status;
  }
  for (const auto& [transfer, num_ready] : released) Continue(transfer, num_ready);
  if (!released.empty()) next_check_ = std::min(next_check_, After(SecondsToNextCheck()));
  return Status();
}

double Messenger::SecondsToNextCheck() const {
  return std::min(options_.timeout_seconds, options_.stall_warning_seconds);
}

void Messenger::GiveTurn(Peer* peer) {
  if (peer->awaits_room || std::exchange(peer->has_turn, true)) return;
  turns_.push_back(peer->rank);
}

void Messenger::Complete(const TransferPtr& transfer, const Status& status) noexcept {
  active_.erase(transfer);
  num_large_ -= IsLarge(*transfer);
  Peer& peer = peers_[transfer->peer];
  if (transfer->way == Transfer::Way::kSend) {
    peer.on_credit.erase(transfer->request_id);
  } else {
    peer.requested.erase(transfer->request_id);
    if (transfer->in_place) {
      peer.offers.erase(transfer->offer_id);
      --peer.num_in_place;
    }
  }
  --peer.num_active;
  if (transfer->is_read()) --peer.num_reads;
  if (const Status thrown = Finish(transfer, status); !thrown.ok()) thrown_ = thrown;
}

}  // namespace tf_libra
