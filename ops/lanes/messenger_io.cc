// Bytes between a messenger and its peers, over sockets and through shared memory.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "ops/lanes/direct_all_reduce_header.h"
#include "ops/lanes/messenger.h"
#include "ops/lanes/text.h"

namespace tf_libra {
namespace {

// Most bytes that are read from one peer before the next has its turn.
constexpr size_t kTurnBytes = 1 << 20;
// The same in shared memory, where the peer uses what was moved in the meantime.
constexpr size_t kMemoryTurnBytes = 256 << 10;
// Most bytes that are copied before the peer may use their room.
constexpr size_t kCopyBytes = 128 << 10;
constexpr char kClosed[] = "it closed the connection";

Status InvalidMemory(int rank) {
  return Status(StatusCode::kFailedPrecondition,
                RankText(rank) + " wrote an invalid position into the shared memory");
}

}  // namespace

// A thread that is awake looks into memory by itself: wake-ups would cost both sides system calls.
void Messenger::StopAwaitingMemory() {
  for (Peer& peer : peers_) {
    if (peer.memory == nullptr || peer.num_active == 0 || !peer.gone.empty()) continue;
    peer.memory->AwaitNothing();
    GiveTurn(&peer);
  }
}

void Messenger::AwaitRoom(Peer* peer, bool room) {
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
      AwaitRoom(peer, true);
      return Status();
    }
    if (sent < 0) {
      // As in ControlPlane::Send.
      peer->is_deaf = true;
      connections_[peer->rank].Shutdown();
      break;
    }
    if (const TransferPtr through = peer->outgoing.Sent(static_cast<size_t>(sent))) {
      Complete(through);
    }
  }
  AwaitRoom(peer, false);
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
    if (received < 0) return OnPeerGone(peer, ErrnoText(errno));
    if (received == 0) return OnPeerGone(peer, kClosed);
    peer->incoming.Received(static_cast<size_t>(received));
    if (Status status = HandleAll(peer); !status.ok()) return status;
    left -= std::min(left, static_cast<size_t>(received));
  }
  return Status();
}

Status Messenger::WriteTo(RingEnd* ring, SendQueue* queue, Peer* peer, bool* moved) {
  for (size_t left = kMemoryTurnBytes; left > 0;) {
    iovec runs[2];
    if (!queue->Next(runs)) break;
    size_t sent = 0;
    const Step step = StreamThroughRing(runs, 2, true, left, peer->fd, ring, &sent);
    if (step == Step::kFailed) return InvalidMemory(peer->rank);
    if (step == Step::kBlocked) break;
    *moved = true;
    left -= sent;
    // One that is not requested may have to be sent again.
    if (const TransferPtr all = queue->Sent(sent); all != nullptr && all->is_matched) Complete(all);
  }
  return Status();
}

Status Messenger::WriteInMemory(Peer* peer, bool* moved) {
  SharedMemory* const memory = peer->memory;
  // Eager bytes before their offer: the peer, which waits for either, wakes once and finds both.
  Status status = WriteTo(memory->outgoing_sums(), &peer->outgoing_in_place, peer, moved);
  if (!status.ok()) return status;
  bool wrote = false;
  status = WriteTo(memory->outgoing_parts(), &peer->outgoing, peer, &wrote);
  const bool wakes = peer->awaits_confirmation || peer->num_reads > 0;
  if (wakes && wrote) send(peer->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  *moved = *moved || wrote;
  return status;
}

Status Messenger::BeginFragmentInPlace(Peer* peer) {
  RingEnd* const ring = peer->memory->incoming_sums();
  const size_t size = BytesToHeaderEnd(ring->position());
  char bytes[sizeof(Frame)];  // a copy: the peer may change the ring
  std::memcpy(bytes, ring->here() + size - kHeaderRoom, sizeof(bytes));
  Frame frame;
  size_t length = 0;
  Status status = ReadFrame(bytes, sizeof(bytes), &frame, &length);
  if (!status.ok()) {
    return Status(status.code(), RankText(peer->rank) + " " + status.message());
  }
  if (frame.kind != Frame::kData) return UnexpectedFrame(*peer);
  if (frame.id >= peer->offers_end) return Status();  // its offer is still in the other ring
  const auto found = peer->offers.find(frame.id);
  if (found == peer->offers.end()) return UnexpectedFrame(*peer);
  const TransferPtr& receive = found->second.receive;
  if (receive == nullptr) return DropFragment(peer, frame, &found->second);
  if (frame.num_bytes > receive->num_movable()) return UnexpectedFrame(*peer);
  AdvanceRing(peer->fd, ring, size);
  peer->receiving_in_place = receive;
  peer->fragment_left = frame.num_bytes;
  return Status();
}

Status Messenger::DropFragment(Peer* peer, const Frame& frame, Peer::Offer* offer) {
  if (peer->num_in_place == 0) return Status();  // it may wait in the ring
  // Once per offer: frames to a peer that reads nothing must not pile up.
  const bool is_eager = frame.num_bytes > 0 && frame.num_bytes <= SendQueue::kFragmentBytes;
  if (!is_eager || std::exchange(offer->is_dropped, true)) return UnexpectedFrame(*peer);
  RingEnd* const ring = peer->memory->incoming_sums();
  AdvanceRing(peer->fd, ring, BytesToHeaderEnd(ring->position()));
  peer->drops = true;
  peer->fragment_left = frame.num_bytes;
  Frame answer;
  answer.kind = Frame::kDropped;
  answer.id = frame.id;
  AddFrame(peer, ToBytes(answer));
  return Status();
}

Status Messenger::ReadInPlace(Peer* peer, bool* moved) {
  RingEnd* const ring = peer->memory->incoming_sums();
  const uint64_t begin = ring->position();
  peer->holds_header = false;
  while (ring->position() - begin < kMemoryTurnBytes) {
    size_t there = 0;
    if (LookIntoRing(ring, &there) == Step::kFailed) return InvalidMemory(peer->rank);
    if (peer->drops) {
      const size_t dropped = std::min(there, peer->fragment_left);
      if (dropped == 0) return Status();
      AdvanceRing(peer->fd, ring, dropped);
      peer->fragment_left -= dropped;
      peer->drops = peer->fragment_left > 0;
      *moved = true;
      continue;
    }
    if (peer->receiving_in_place == nullptr) {
      if (there < BytesToHeaderEnd(ring->position())) return Status();
      if (Status status = BeginFragmentInPlace(peer); !status.ok()) return status;
      peer->holds_header = peer->receiving_in_place == nullptr && !peer->drops;
      if (peer->holds_header) return Status();
      *moved = true;
      continue;
    }
    Transfer* const receive = peer->receiving_in_place.get();
    const size_t visible = std::min(there, peer->fragment_left);
    const bool copies = receive->copies || peer->num_in_place > 1;
    size_t taken = 0;
    if (receive->num_consumed > receive->num_taken) {
      taken = receive->num_consumed - receive->num_taken;
    } else if (copies && visible > 0) {
      const size_t at = receive->num_taken % receive->ring_bytes;
      taken = std::min({visible, receive->ring_bytes - at, kCopyBytes});
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
      if (received->num_taken == received->num_bytes) Complete(received);
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
  if (peer->drops) return AwaitRing(ring, peer->fragment_left);
  if (peer->receiving_in_place == nullptr) {
    const size_t size = BytesToHeaderEnd(ring->position());
    size_t there = 0;
    if (LookIntoRing(ring, &there) == Step::kFailed) return Step::kFailed;
    if (there < size) return AwaitRing(ring, size);
    return peer->holds_header ? Step::kBlocked : Step::kProgress;  // it may just have come
  }
  // Beyond that, the bytes in memory wait for other ranks.
  const Transfer& receive = *peer->receiving_in_place;
  const size_t unread = receive.num_moved - receive.num_taken;
  const size_t awaited =
      std::min({peer->fragment_left, ring->capacity() / 2, unread + kMemoryTurnBytes});
  return unread < awaited ? AwaitRing(ring, awaited) : Step::kBlocked;
}

Status Messenger::ReadInMemory(Peer* peer, bool* moved) {
  for (size_t left = kMemoryTurnBytes; left > 0;) {
    iovec runs[2];
    peer->incoming.Room(runs);
    size_t received = 0;
    const Step step = StreamThroughRing(runs, 2, false, left, peer->fd,
                                        peer->memory->incoming_parts(), &received);
    if (step == Step::kFailed) return InvalidMemory(peer->rank);
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
  // Announcements wait in memory until this rank has transfers with the peer. The peer wakes this
  // rank for a kConfirm and for one-sided reads, which are answered at any time.
  if (peer->num_active > 0 || peer->awaits_confirmation) {
    const size_t expected = std::clamp<size_t>(peer->incoming.num_expected(), 1, kMemoryTurnBytes);
    step = AwaitRing(peer->memory->incoming_parts(), expected);
    if (step == Step::kBlocked) step = AwaitInPlace(peer);
  }
  const auto await_room = [&step](SendQueue* queue, RingEnd* ring) {
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
  // Writes first, so that the peer learns of a difference before this rank fails.
  if (Status status = WriteInMemory(peer, &moved); !status.ok()) return status;
  bool received = false;
  if (Status status = ReadInMemory(peer, &received); !status.ok()) return status;
  if (Status status = ReadInPlace(peer, &received); !status.ok()) return status;
  if (!received && !peer->ended.empty() && !HoldsInPlace(*peer))
    return OnPeerGone(peer, peer->ended);
  moved = moved || received;
  peer->is_idle = !moved;
  if (moved) GiveTurn(peer);
  return Status();
}

Status Messenger::AwaitIdlePeers() {
  const bool looks =
      !active_.empty() && num_large_ == 0 && AdaptiveLook::HasCores(num_in_memory_ + 1);
  const bool found = looks && look_.Find([this] {
    bool has_moved = false;
    for (Peer& peer : peers_) {
      if (!peer.is_idle || peer.num_active == 0 || !peer.gone.empty()) continue;
      const bool parts = peer.memory->incoming_parts()->HasMoved();
      const bool sums = peer.num_in_place > 0 && peer.memory->incoming_sums()->HasMoved();
      if (!parts && !sums) continue;
      GiveTurn(&peer);
      has_moved = true;
    }
    return has_moved;
  });
  if (found) return Status();
  for (Peer& peer : peers_) {
    if (!std::exchange(peer.is_idle, false) || !peer.gone.empty()) continue;
    const Step step = AwaitInMemory(&peer);
    if (step == Step::kFailed) return InvalidMemory(peer.rank);
    if (step == Step::kProgress) GiveTurn(&peer);
  }
  return Status();
}

void Messenger::OnWakeUp(Peer* peer) {
  char bytes[64];
  const ssize_t received = recv(peer->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (received == 0 || (received < 0 && !WouldBlock(errno))) {
    peer->ended = received == 0 ? kClosed : ErrnoText(errno);
    epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, peer->fd, nullptr);
  }
  GiveTurn(peer);
}

}  // namespace tf_libra
