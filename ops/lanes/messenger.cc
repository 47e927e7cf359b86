#include "ops/lanes/messenger.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "ops/lanes/descriptors.h"

namespace tf_libra {
namespace {

// What is read from a peer before the next has its turn.
constexpr size_t kTurnBytes = 1 << 20;
// The same in memory, where the peer goes on with what it has meanwhile.
constexpr size_t kMemoryTurnBytes = 128 << 10;
constexpr int kTurnsPerPoll = 8;
// Maximum number of a peer's announcements that have no match on this rank.
constexpr size_t kMaxAnnounced = 1 << 16;
constexpr size_t kMaxAnnouncedBytes = 16 << 20;  // of their names and what they are
// Named in a message.
constexpr size_t kMaxNamed = 3;
constexpr uint64_t kWaker = UINT64_MAX;
constexpr char kClosed[] = "it closed the connection";

std::string Named(int rank) { return "rank " + std::to_string(rank); }

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

Status Impossible(int rank) {
  return Status(StatusCode::kFailedPrecondition,
                Named(rank) + " has written into the shared memory what cannot be");
}

void Append(std::string* list, const std::string& text) {
  *list += (list->empty() ? "" : ", ") + text;
}

// The first of these for a transfer ends it. Returns what follows it has thrown.
Status Finish(const TransferPtr& transfer, const Status& status) noexcept {
  const auto done = std::exchange(transfer->done, nullptr);
  transfer->on_progress = nullptr;
  try {
    if (done != nullptr) done(status);
  } catch (...) {
    return CaughtStatus("what follows a message has failed");
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
      if (!thread_.joinable()) {
        Status status = TakeDescriptor("epoll_create", epoll_create1(EPOLL_CLOEXEC), &poll_);
        if (status.ok()) status = waker_.Open();
        if (!status.ok()) return status;
        thread_ = std::thread([this] { Main(); });
      }
      posted_.insert(posted_.end(), transfers.begin(), transfers.end());
      waker_.Wake();
      return Status();
    }
    end = end_;
  }
  for (const TransferPtr& transfer : transfers) Finish(transfer, end);
  return Status();
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

void Messenger::End(const Status& cause) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(has_ended_, true)) return;
  end_ = cause;
  for (Connection& connection : connections_) connection.Shutdown();
  waker_.Wake();
  flushed_.notify_all();
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
      status = std::exchange(is_first, false) ? WatchAll() : Turn();
    } catch (...) {
      status = CaughtStatus("messages cannot go on");
    }
    if (status.ok()) continue;
    options_.on_failure(status);
    End(status);  // if it has not
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
  // One may be in two of them.
  for (const TransferPtr& transfer : left) Finish(transfer, end);
  for (const TransferPtr& transfer : std::exchange(taken_, {})) Finish(transfer, end);
  for (const TransferPtr& transfer : std::exchange(active_, {})) Finish(transfer, end);
}

Status Messenger::WatchAll() {
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
    if (peer.memory != nullptr) GiveTurn(&peer);  // to wait for it
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
  next_look_ = After(options_.timeout_seconds);
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
  Confirm();
  if (Status status = CheckWaits(); !status.ok()) return status;
  if (!thrown_.ok()) return thrown_;
  epoll_event events[64];
  const int wait = active_.empty() ? -1 : PollMilliseconds(next_look_);
  const bool sleeps = turns_.empty() && !std::exchange(turns_again_, false);
  // While memory moves, a call of the system now and then is enough.
  if (!sleeps && ++turns_without_poll_ < kTurnsPerPoll) return Status();
  turns_without_poll_ = 0;
  const int count = epoll_wait(poll_.fd(), events, std::size(events), sleeps ? wait : 0);
  if (count < 0 && errno != EINTR) return OutOfDescriptors("epoll_wait", errno);
  if (sleeps) LookIntoMemory();
  for (int i = 0; i < count; ++i) {
    const uint64_t who = events[i].data.u64;
    Status status;
    if (who == kWaker) {
      waker_.Rest();
    } else if (who >= peers_.size()) {
      const size_t rank = who - peers_.size();
      epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, (*links_)[rank].fd(), nullptr);
      status = Gone(&peers_[rank], WhyLinkBroke((*links_)[rank]));
    } else if (peers_[who].memory != nullptr) {
      WakeUp(&peers_[who]);
    } else {
      Peer& peer = peers_[who];
      if ((events[i].events & EPOLLOUT) != 0) status = Write(&peer);
      if (status.ok() && (events[i].events & ~EPOLLOUT) != 0) status = Read(&peer);
    }
    if (!status.ok()) return status;
  }
  return Status();
}

// What comes to a thread that is awake needs no wake-up of its own, which costs both sides a call.
void Messenger::LookIntoMemory() {
  for (Peer& peer : peers_) {
    if (peer.memory == nullptr || peer.num_active == 0 || !peer.gone.empty()) continue;
    peer.memory->AwaitNothing();
    GiveTurn(&peer);
  }
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
    ++peers_[transfer->peer].num_active;
  }
  for (const TransferPtr& transfer : std::exchange(taken_, {})) {
    if (Status status = Begin(transfer); !status.ok()) return status;
  }
  for (const auto& [transfer, num_ready] : released) Continue(transfer, num_ready);
  if (!released.empty()) next_look_ = std::min(next_look_, After(Patience()));
  return Status();
}

void Messenger::Continue(const TransferPtr& transfer, size_t num_ready) {
  Peer& peer = peers_[transfer->peer];
  const size_t before = transfer->num_ready;
  transfer->num_ready = std::min(num_ready, transfer->num_bytes);
  if (transfer->num_ready == before) return;
  transfer->last_progress = Clock::now();
  if (transfer->way == Transfer::Way::kSend) {
    if (transfer->is_matched) Stream(&peer, transfer);
    return;
  }
  Frame frame;
  frame.kind = Frame::kCredit;
  frame.id = transfer->asked_as;
  frame.num_bytes = transfer->num_ready - before;
  AddFrame(&peer, ToBytes(frame));
}

double Messenger::Patience() const {
  return std::min(options_.timeout_seconds, options_.stall_warning_seconds);
}

Status Messenger::Begin(const TransferPtr& transfer) {
  Peer& peer = peers_[transfer->peer];
  transfer->last_progress = Clock::now();
  const bool sends = transfer->way == Transfer::Way::kSend;
  const size_t window = std::min(transfer->window, transfer->num_bytes);
  if (sends) transfer->credit = window;
  transfer->num_ready = std::min(transfer->num_ready, sends ? transfer->num_bytes : window);
  next_look_ = std::min(next_look_, After(Patience()));
  if (!peer.gone.empty()) {
    return Status(StatusCode::kUnavailable,
                  Wait(*transfer) + ": " + Named(peer.rank) + " is gone: " + peer.gone);
  }
  const uint64_t id = peer.next_id++;
  Frame frame;
  frame.kind = sends ? Frame::kOffer : Frame::kAsk;
  frame.id = id;
  frame.num_bytes = transfer->num_bytes;
  AddFrame(&peer, WithText(frame, transfer->key, transfer->content));
  if (!sends) {
    transfer->asked_as = id;
    // What the only one left in memory is now copied.
    if (transfer->in_place && ++peer.num_in_place > 1) GiveTurn(&peer);
    peer.asked[id] = transfer;
  }
  (sends ? peer.sends : peer.receives).Post(transfer);
  return Match(&peer, transfer->key, sends);
}

Status Messenger::Match(Peer* peer, const std::string& key, bool sends) {
  Channels& channels = sends ? peer->sends : peer->receives;
  TransferPtr transfer;
  Announced theirs;
  while (channels.Meet(key, &transfer, &theirs)) {
    if (theirs.content != transfer->content || theirs.num_bytes != transfer->num_bytes) {
      const auto text = [](const std::string& content, uint64_t num_bytes) {
        return content + " (" + std::to_string(num_bytes) + " bytes)";
      };
      return Status(StatusCode::kFailedPrecondition,
                    Quoted(transfer->name()) + " is " +
                        text(transfer->content, transfer->num_bytes) + " at this rank, and " +
                        text(theirs.content, theirs.num_bytes) + " at " + Named(peer->rank));
    }
    transfer->last_progress = Clock::now();
    transfer->is_matched = true;
    if (sends) {
      transfer->asked_as = theirs.id;
      if (transfer->credit < transfer->num_bytes) peer->on_credit[theirs.id] = transfer;
      Stream(peer, transfer);
    }
  }
  return Status();
}

void Messenger::Stream(Peer* peer, const TransferPtr& send) {
  peer->QueueOf(*send)->Add(send);
  peer->has_sent = true;
  GiveTurn(peer);
}

void Messenger::AddFrame(Peer* peer, const std::string& bytes) {
  peer->outgoing.Add(bytes);
  GiveTurn(peer);
}

void Messenger::GiveTurn(Peer* peer) {
  if (peer->awaits_room || std::exchange(peer->has_turn, true)) return;
  turns_.push_back(peer->rank);
}

void Messenger::Watch(Peer* peer, bool room) {
  if (peer->awaits_room == room) return;
  peer->awaits_room = room;
  epoll_event event{};
  event.events = EPOLLIN | (room ? EPOLLOUT : 0u);
  event.data.u64 = static_cast<uint64_t>(peer->rank);
  epoll_ctl(poll_.fd(), EPOLL_CTL_MOD, peer->fd, &event);
}

Status Messenger::Write(Peer* peer) {
  while (peer->gone.empty() && !peer->is_deaf) {
    iovec runs[2];
    if (!peer->outgoing.Next(runs)) break;
    msghdr message{};
    message.msg_iov = runs;
    message.msg_iovlen = 2;
    const ssize_t sent = sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && WouldBlock(errno)) {
      Watch(peer, true);
      return Status();
    }
    if (sent < 0) {
      // As in ControlPlane::Send.
      peer->is_deaf = true;
      connections_[peer->rank].Shutdown();
      break;
    }
    if (const TransferPtr through = peer->outgoing.Sent(static_cast<size_t>(sent))) {
      Through(through);
    }
  }
  Watch(peer, false);
  return Status();
}

Status Messenger::Read(Peer* peer) {
  for (size_t left = kTurnBytes; left > 0 && peer->gone.empty();) {
    iovec runs[2];
    peer->incoming.Room(runs);
    msghdr message{};
    message.msg_iov = runs;
    message.msg_iovlen = 2;
    const ssize_t received = recvmsg(peer->fd, &message, MSG_DONTWAIT);
    if (received < 0 && WouldBlock(errno)) return Status();
    if (received < 0) return Gone(peer, ErrnoText(errno));
    if (received == 0) return Gone(peer, kClosed);
    peer->incoming.Received(static_cast<size_t>(received));
    if (Status status = HandleAll(peer); !status.ok()) return status;
    left -= std::min(left, static_cast<size_t>(received));
  }
  return Status();
}

Status Messenger::WriteTo(RingEnd* ring, Outgoing* queue, Peer* peer, bool* moved) {
  for (size_t left = kMemoryTurnBytes; left > 0;) {
    iovec runs[2];
    if (!queue->Next(runs)) break;
    size_t sent = 0;
    const Step step = StreamThroughRing(runs, 2, true, left, peer->fd, ring, &sent);
    if (step == Step::kFailed) return Impossible(peer->rank);
    if (step == Step::kBlocked) break;
    *moved = true;
    left -= sent;
    if (const TransferPtr through = queue->Sent(sent)) Through(through);
  }
  return Status();
}

Status Messenger::WriteInMemory(Peer* peer, bool* moved) {
  SharedMemory* const memory = peer->memory;
  Status status = WriteTo(memory->outgoing_parts(), &peer->outgoing, peer, moved);
  if (peer->asked_to_confirm && *moved) send(peer->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (!status.ok()) return status;
  return WriteTo(memory->outgoing_sums(), &peer->outgoing_in_place, peer, moved);
}

Status Messenger::BeginFragmentInPlace(Peer* peer) {
  RingEnd* const ring = peer->memory->incoming_sums();
  const size_t size = BytesToHeaderEnd(ring->position());
  char bytes[sizeof(Frame)];  // the peer may change those in the ring
  std::memcpy(bytes, ring->here() + size - kHeaderRoom, sizeof(bytes));
  Frame frame;
  size_t length = 0;
  Status status = ReadFrame(bytes, sizeof(bytes), &frame, &length);
  if (!status.ok()) {
    return Status(status.code(), Named(peer->rank) + " " + status.message());
  }
  const auto found = peer->asked.find(frame.id);
  if (frame.kind != Frame::kData || found == peer->asked.end() || !found->second->in_place ||
      frame.num_bytes > found->second->num_movable()) {
    return Unexpected(*peer);
  }
  if (!found->second->is_matched) return Status();  // the offer is still in the other ring
  AdvanceRing(peer->fd, ring, size);
  peer->receiving_in_place = found->second;
  peer->fragment_left = frame.num_bytes;
  return Status();
}

Status Messenger::ReadInPlace(Peer* peer, bool* moved) {
  RingEnd* const ring = peer->memory->incoming_sums();
  const uint64_t begin = ring->position();
  while (ring->position() - begin < kMemoryTurnBytes) {
    size_t there = 0;
    if (LookIntoRing(ring, &there) == Step::kFailed) return Impossible(peer->rank);
    if (peer->receiving_in_place == nullptr) {
      if (there < BytesToHeaderEnd(ring->position())) return Status();
      if (Status status = BeginFragmentInPlace(peer); !status.ok()) return status;
      if (peer->receiving_in_place == nullptr) return Status();
      *moved = true;
      continue;
    }
    Transfer* const receive = peer->receiving_in_place.get();
    const size_t visible = std::min(there, peer->fragment_left);
    const bool copies = peer->num_in_place > 1;
    size_t taken = 0;
    if (receive->num_consumed > receive->num_taken) {
      taken = receive->num_consumed - receive->num_taken;
    } else if (copies && visible > 0) {
      const size_t at = receive->num_taken % receive->ring_bytes;
      taken = std::min(visible, receive->ring_bytes - at);
      std::memcpy(receive->data + at, ring->here(), taken);
    }
    if (taken > 0) {
      AdvanceRing(peer->fd, ring, taken);
      receive->num_taken += taken;
      peer->fragment_left -= taken;
    }
    const size_t arrived = receive->num_taken + visible - std::min(visible, taken);
    const bool progress = arrived > receive->num_moved || (copies && taken > 0);
    receive->in_ring = ring->here();
    if (progress) {
      receive->num_moved = std::max(receive->num_moved, copies ? receive->num_taken : arrived);
      receive->last_progress = Clock::now();
      if (receive->on_progress) receive->on_progress(receive->num_moved);
    }
    if (peer->fragment_left == 0) {
      const TransferPtr received = std::exchange(peer->receiving_in_place, nullptr);
      if (received->num_taken == received->num_bytes) {
        peer->asked.erase(received->asked_as);
        --peer->num_in_place;
        Through(received);
      }
    } else if (taken == 0 && !progress) {
      return Status();
    }
    *moved = true;
  }
  return Status();
}

bool Messenger::HoldsInPlace(const Peer& peer) {
  const Transfer* const receive = peer.receiving_in_place.get();
  return receive != nullptr && receive->num_moved > receive->num_taken;
}

Step Messenger::AwaitInPlace(Peer* peer) {
  RingEnd* const ring = peer->memory->incoming_sums();
  if (peer->num_in_place == 0) return Step::kBlocked;
  if (peer->receiving_in_place == nullptr) {
    const size_t size = BytesToHeaderEnd(ring->position());
    size_t there = 0;
    if (LookIntoRing(ring, &there) == Step::kFailed) return Step::kFailed;
    return there < size ? AwaitRing(ring, size) : Step::kBlocked;
  }
  // Of a half, or all, what is there waits for other ranks.
  const Transfer& receive = *peer->receiving_in_place;
  const size_t held = receive.num_moved - receive.num_taken;
  const size_t awaited =
      std::min({peer->fragment_left, ring->capacity() / 2, held + kMemoryTurnBytes});
  return held < awaited ? AwaitRing(ring, awaited) : Step::kBlocked;
}

Status Messenger::ReadInMemory(Peer* peer, bool* moved) {
  for (size_t left = kMemoryTurnBytes; left > 0;) {
    iovec runs[2];
    peer->incoming.Room(runs);
    size_t received = 0;
    const Step step = StreamThroughRing(runs, 2, false, left, peer->fd,
                                        peer->memory->incoming_parts(), &received);
    if (step == Step::kFailed) return Impossible(peer->rank);
    if (step == Step::kBlocked) break;
    *moved = true;
    left -= received;
    peer->incoming.Received(received);
    if (Status status = HandleAll(peer); !status.ok()) return status;
  }
  return Status();
}

Step Messenger::AwaitInMemory(Peer* peer) {
  Step step = Step::kBlocked;
  // What comes while this rank has nothing to do with the peer waits until it does. The peer wakes
  // it for a kConfirm, which has to be answered at any time.
  if (peer->num_active > 0 || peer->asked_to_confirm) {
    const size_t expected = std::clamp<size_t>(peer->incoming.num_expected(), 1, kMemoryTurnBytes);
    step = AwaitRing(peer->memory->incoming_parts(), expected);
    if (step == Step::kBlocked) step = AwaitInPlace(peer);
  }
  const auto await_room = [&step](Outgoing* queue, RingEnd* ring) {
    iovec runs[2];
    if (step != Step::kBlocked || !queue->Next(runs)) return;
    step = AwaitRing(ring, runs[0].iov_len + runs[1].iov_len);
  };
  await_room(&peer->outgoing, peer->memory->outgoing_parts());
  await_room(&peer->outgoing_in_place, peer->memory->outgoing_sums());
  return step;
}

Status Messenger::MoveInMemory(Peer* peer) {
  if (!peer->gone.empty()) return Status();
  bool moved = false;
  // Writes first: the peer learns what differs here, too, before this rank fails.
  if (Status status = WriteInMemory(peer, &moved); !status.ok()) return status;
  bool received = false;
  if (Status status = ReadInMemory(peer, &received); !status.ok()) return status;
  if (Status status = ReadInPlace(peer, &received); !status.ok()) return status;
  if (!received && !peer->ended.empty() && !HoldsInPlace(*peer)) return Gone(peer, peer->ended);
  moved = moved || received;
  const Step step = moved ? Step::kProgress : AwaitInMemory(peer);
  if (step == Step::kFailed) return Impossible(peer->rank);
  if (step == Step::kProgress) GiveTurn(peer);
  return Status();
}

void Messenger::WakeUp(Peer* peer) {
  char bytes[64];
  const ssize_t received = recv(peer->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (received == 0 || (received < 0 && !WouldBlock(errno))) {
    peer->ended = received == 0 ? kClosed : ErrnoText(errno);
    epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, peer->fd, nullptr);
  }
  GiveTurn(peer);
}

Status Messenger::HandleAll(Peer* peer) {
  for (;;) {
    Frame frame;
    const char* text = nullptr;
    TransferPtr through;
    Status status;
    switch (peer->incoming.Next(&frame, &text, &through, &status)) {
      case Incoming::News::kNothing:
        return Status();
      case Incoming::News::kInvalid:
        return Status(status.code(), Named(peer->rank) + " " + status.message());
      case Incoming::News::kThrough:
        peer->asked.erase(through->asked_as);
        if (through->in_place) --peer->num_in_place;
        Through(through);
        break;
      case Incoming::News::kFrame:
        if (status = Handle(peer, frame, text); !status.ok()) return status;
    }
  }
}

Status Messenger::Unexpected(const Peer& peer) {
  return Status(StatusCode::kFailedPrecondition,
                Named(peer.rank) + " sent what nobody has asked for");
}

Status Messenger::Handle(Peer* peer, const Frame& frame, const char* text) {
  switch (frame.kind) {
    case Frame::kOffer:
    case Frame::kAsk: {
      if (peer->sends.num_announced() + peer->receives.num_announced() >= kMaxAnnounced ||
          peer->sends.announced_bytes() + peer->receives.announced_bytes() >= kMaxAnnouncedBytes) {
        return Status(StatusCode::kFailedPrecondition,
                      Named(peer->rank) + " has more than " + std::to_string(kMaxAnnounced) +
                          " messages, or " + std::to_string(kMaxAnnouncedBytes >> 20) +
                          " MiB of their names, under way that this rank has none of");
      }
      const bool sends = frame.kind == Frame::kAsk;
      std::string key;
      Announced announced{frame.id, frame.num_bytes, ""};
      SplitText(text, frame.num_text_bytes, &key, &announced.content);
      (sends ? peer->sends : peer->receives).Announce(key, std::move(announced));
      return Match(peer, key, sends);
    }
    case Frame::kData: {
      const auto found = peer->asked.find(frame.id);
      if (found == peer->asked.end() || !found->second->is_matched ||
          (found->second->in_place && peer->memory != nullptr) ||
          frame.num_bytes > found->second->num_movable()) {
        return Unexpected(*peer);
      }
      peer->incoming.Expect(found->second, frame.num_bytes);
      return Status();
    }
    case Frame::kCredit: {
      const auto found = peer->on_credit.find(frame.id);
      if (found == peer->on_credit.end() ||
          frame.num_bytes > found->second->num_bytes - found->second->credit) {
        return Status(StatusCode::kFailedPrecondition,
                      Named(peer->rank) + " has room for what is not sent to it");
      }
      found->second->credit += frame.num_bytes;
      found->second->last_progress = Clock::now();
      Stream(peer, found->second);
      return Status();
    }
    case Frame::kConfirm: {
      // A rank asks once. Answers to more would wait without end for a peer that reads none.
      if (std::exchange(peer->was_asked_to_confirm, true)) return Unexpected(*peer);
      Frame answer;
      answer.kind = Frame::kConfirmed;
      AddFrame(peer, ToBytes(answer));
      return Status();
    }
    default:
      if (!peer->asked_to_confirm) return Unexpected(*peer);
      peer->has_confirmed = true;
      return Status();
  }
}

Status Messenger::Gone(Peer* peer, const std::string& why) {
  if (!peer->gone.empty()) return Status();
  peer->gone = why;
  epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, peer->fd, nullptr);
  if (peer->num_active == 0) return Status();  // it may well have left
  for (const TransferPtr& transfer : active_) {
    if (transfer->peer != peer->rank) continue;
    return Status(StatusCode::kUnavailable,
                  Wait(*transfer) + ": " + Named(peer->rank) + " is gone: " + why);
  }
  return Status();
}

// Behind all that was sent.
void Messenger::Confirm() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!flushes_ || is_flushed_) return;
  }
  std::string left;
  size_t num_named = 0;
  for (const TransferPtr& transfer : active_) {
    if (transfer->way != Transfer::Way::kSend || ++num_named > kMaxNamed) continue;
    Append(&left, Quoted(transfer->name()) + " to " + Named(transfer->peer));
  }
  if (num_named > kMaxNamed) left += " and more";
  for (Peer& peer : peers_) {
    if (!left.empty() || !peer.has_sent || !peer.gone.empty() || peer.has_confirmed) continue;
    Append(&left, "the last to " + Named(peer.rank));
    if (std::exchange(peer.asked_to_confirm, true)) continue;
    Frame frame;
    frame.kind = Frame::kConfirm;
    AddFrame(&peer, ToBytes(frame));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  is_flushed_ = left.empty();
  unflushed_ = std::move(left);
  if (is_flushed_) flushed_.notify_all();
}

Status Messenger::CheckWaits() {
  const TimePoint now = Clock::now();
  if (now < next_look_) return Status();
  const double timeout = options_.timeout_seconds;
  const Waits waits =
      LookForWaits(active_, now, timeout, options_.warn ? options_.stall_warning_seconds : timeout);
  const auto listed = [this](const std::vector<const Transfer*>& found) {
    std::string text;
    for (size_t i = 0; i < std::min(found.size(), kMaxNamed); ++i) {
      text += (i == 0 ? "" : "; for ") + Wait(*found[i]);
    }
    return text + (found.size() > kMaxNamed ? "; and for more" : "");
  };
  if (!waits.overdue.empty()) {
    return Status(StatusCode::kDeadlineExceeded, WaitedTooLong(timeout, listed(waits.overdue)));
  }
  if (!waits.late.empty()) {
    options_.warn(Named(options_.rank) + " has waited " +
                  SecondsText(options_.stall_warning_seconds) + " s for " + listed(waits.late) +
                  "; still waiting");
  }
  next_look_ = After(waits.next_look_seconds);
  return Status();
}

std::string Messenger::Wait(const Transfer& transfer) const {
  const bool sends = transfer.way == Transfer::Way::kSend;
  std::string text = Named(transfer.peer) + (sends ? " to receive " : " to send ") +
                     Quoted(transfer.name()) + " (" + transfer.content + ")";
  if (transfer.is_matched) return text;
  // What it has announced instead tells which name is wrong.
  const Peer& peer = peers_[transfer.peer];
  const std::string names = (sends ? peer.sends : peer.receives).NameAnnounced(kMaxNamed);
  if (names.empty()) return text;
  return text + ", which " + (sends ? "wants to receive " : "sends ") + names + " instead";
}

void Messenger::Through(const TransferPtr& transfer) noexcept {
  active_.erase(transfer);
  Peer& peer = peers_[transfer->peer];
  if (transfer->way == Transfer::Way::kSend) peer.on_credit.erase(transfer->asked_as);
  --peer.num_active;
  if (const Status thrown = Finish(transfer, Status()); !thrown.ok()) thrown_ = thrown;
}

}  // namespace tf_libra
