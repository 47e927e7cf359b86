// Frames of a messenger: announcements, their matching, credit, and what waits for too long.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "ops/lanes/messenger.h"
#include "ops/lanes/text.h"

namespace tf_libra {
namespace {

// Limits of the announcements of one peer that have no match on this rank.
constexpr size_t kMaxAnnounced = 1 << 16;
constexpr size_t kMaxAnnouncedBytes = 16 << 20;  // of their names and contents
// Most bytes that a send `in_place` moves before it is requested: one fragment.
constexpr size_t kEagerBytes = SendQueue::kFragmentBytes;
// Most transfers that one error names.
constexpr size_t kMaxNamed = 3;

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

void AppendItem(std::string* list, const std::string& item) {
  *list += (list->empty() ? "" : ", ") + item;
}

}  // namespace

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
  frame.id = transfer->request_id;
  frame.num_bytes = transfer->num_ready - before;
  AddFrame(&peer, ToBytes(frame));
}

Status Messenger::Begin(const TransferPtr& transfer) {
  Peer& peer = peers_[transfer->peer];
  transfer->last_progress = Clock::now();
  const bool sends = transfer->way == Transfer::Way::kSend;
  const size_t window = std::min(transfer->window, transfer->num_bytes);
  if (sends) transfer->credit = window;
  transfer->num_ready = std::min(transfer->num_ready, sends ? transfer->num_bytes : window);
  next_check_ = std::min(next_check_, After(SecondsToNextCheck()));
  if (!peer.gone.empty()) {
    if (!transfer->is_notice()) return PeerGone(peer, *transfer);
    Complete(transfer, Status());
    return Status();
  }
  const uint64_t id = peer.next_id++;
  Frame frame;
  frame.kind = sends ? Frame::kOffer : Frame::kRequest;
  frame.id = id;
  frame.num_bytes = transfer->num_bytes;
  AddFrame(&peer, WithText(frame, transfer->key, transfer->content));
  const bool in_ring = transfer->in_place && peer.memory != nullptr;
  if (sends) {
    transfer->offer_id = id;
    transfer->is_eager =
        in_ring && transfer->num_bytes > 0 && transfer->num_ready == transfer->num_bytes;
  } else {
    transfer->request_id = id;
    // Bytes that the previous one left in memory are copied now.
    if (transfer->in_place && ++peer.num_in_place > 1) GiveTurn(&peer);
    if (!in_ring) peer.requested[id] = transfer;
  }
  (sends ? peer.sends : peer.receives).Post(transfer);
  if (Status status = Match(&peer, transfer->key, sends); !status.ok()) return status;
  if (transfer->is_eager && !transfer->is_matched) {
    transfer->credit = std::min(window, kEagerBytes);
    peer.eager[id] = transfer;
    Stream(&peer, transfer);
  }
  return Status();
}

Status Messenger::Match(Peer* peer, const std::string& key, bool sends) {
  MessageMatcher& channels = sends ? peer->sends : peer->receives;
  TransferPtr transfer;
  Announced theirs;
  while (channels.MatchNext(key, &transfer, &theirs)) {
    if (theirs.content != transfer->content || theirs.num_bytes != transfer->num_bytes) {
      const auto text = [](const std::string& content, uint64_t num_bytes) {
        return content + " (" + std::to_string(num_bytes) + " bytes)";
      };
      return Status(StatusCode::kFailedPrecondition,
                    Quoted(transfer->name()) + " is " +
                        text(transfer->content, transfer->num_bytes) + " at this rank, and " +
                        text(theirs.content, theirs.num_bytes) + " at " + RankText(peer->rank));
    }
    transfer->last_progress = Clock::now();
    transfer->is_matched = true;
    const bool in_ring = transfer->in_place && peer->memory != nullptr;
    if (!sends && peer->memory != nullptr) {
      transfer->offer_id = theirs.id;
      if (in_ring) {
        peer->offers[theirs.id].receive = transfer;
      } else {
        peer->offers.erase(theirs.id);
      }
    }
    if (sends) {
      transfer->request_id = theirs.id;
      peer->eager.erase(transfer->offer_id);
      transfer->credit = std::min(transfer->window, transfer->num_bytes);
      if (transfer->credit < transfer->num_bytes) peer->on_credit[theirs.id] = transfer;
      if (transfer->num_bytes > 0 && transfer->num_moved == transfer->num_bytes &&
          !transfer->is_queued) {
        Complete(transfer);
      } else {
        Stream(peer, transfer);
      }
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

Status Messenger::HandleAll(Peer* peer) {
  for (;;) {
    Frame frame;
    const char* text = nullptr;
    TransferPtr through;
    Status status;
    switch (peer->incoming.Next(&frame, &text, &through, &status)) {
      case ReceiveParser::News::kNothing:
        return Status();
      case ReceiveParser::News::kInvalid:
        return Status(status.code(), RankText(peer->rank) + " " + status.message());
      case ReceiveParser::News::kThrough:
        Complete(through);
        break;
      case ReceiveParser::News::kFrame:
        if (status = Handle(peer, frame, text); !status.ok()) return status;
    }
  }
}

Status Messenger::UnexpectedFrame(const Peer& peer) {
  return Status(StatusCode::kFailedPrecondition,
                RankText(peer.rank) + " sent a frame that this rank did not request");
}

Status Messenger::Handle(Peer* peer, const Frame& frame, const char* text) {
  switch (frame.kind) {
    case Frame::kOffer:
    case Frame::kRequest: {
      if (peer->sends.num_announced() + peer->receives.num_announced() >= kMaxAnnounced ||
          peer->sends.announced_bytes() + peer->receives.announced_bytes() >= kMaxAnnouncedBytes) {
        return Status(StatusCode::kFailedPrecondition,
                      RankText(peer->rank) + " has more than " + std::to_string(kMaxAnnounced) +
                          " messages, or " + std::to_string(kMaxAnnouncedBytes >> 20) +
                          " MiB of their names, announced that this rank has not posted");
      }
      const bool sends = frame.kind == Frame::kRequest;
      if (!sends && peer->memory != nullptr) {
        // Ids rise, so that none is used twice. The last one has no successor.
        if (frame.id < peer->offers_end || frame.id == UINT64_MAX) return UnexpectedFrame(*peer);
        peer->offers_end = frame.id + 1;
        peer->offers[frame.id];
      }
      std::string key;
      Announced announced{frame.id, frame.num_bytes, ""};
      SplitText(text, frame.num_text_bytes, &key, &announced.content);
      if (sends && key[0] == Transfer::kRead) {
        const std::lock_guard<std::mutex> lock(mutex_);
        reads_.emplace_back(peer->rank, key.substr(1));
        read_.notify_one();
      }
      (sends ? peer->sends : peer->receives).Announce(key, std::move(announced));
      return Match(peer, key, sends);
    }
    case Frame::kData: {
      const auto found = peer->requested.find(frame.id);
      if (found == peer->requested.end() || !found->second->is_matched ||
          frame.num_bytes > found->second->num_movable()) {
        return UnexpectedFrame(*peer);
      }
      peer->incoming.Expect(found->second, frame.num_bytes);
      return Status();
    }
    case Frame::kCredit: {
      const auto found = peer->on_credit.find(frame.id);
      if (found == peer->on_credit.end() ||
          frame.num_bytes > found->second->num_bytes - found->second->credit) {
        return Status(
            StatusCode::kFailedPrecondition,
            RankText(peer->rank) + " granted credit for a message that this rank does not send");
      }
      found->second->credit += frame.num_bytes;
      found->second->last_progress = Clock::now();
      Stream(peer, found->second);
      return Status();
    }
    case Frame::kDropped: {
      const auto found = peer->eager.find(frame.id);
      if (found == peer->eager.end()) return UnexpectedFrame(*peer);
      Transfer* const send = found->second.get();
      send->credit = 0;  // until it is requested
      send->is_dropped = send->is_queued;
      if (!send->is_queued) send->num_moved = 0;
      peer->eager.erase(found);
      return Status();
    }
    case Frame::kConfirm: {
      // A rank requests this once: answers to a peer that reads nothing must not pile up.
      if (std::exchange(peer->must_confirm, true)) return UnexpectedFrame(*peer);
      Frame answer;
      answer.kind = Frame::kConfirmed;
      AddFrame(peer, ToBytes(answer));
      return Status();
    }
    default:
      if (!peer->awaits_confirmation) return UnexpectedFrame(*peer);
      peer->has_confirmed = true;
      return Status();
  }
}

Status Messenger::OnPeerGone(Peer* peer, const std::string& why) {
  if (!peer->gone.empty()) return Status();
  peer->gone = why;
  epoll_ctl(poll_.fd(), EPOLL_CTL_DEL, peer->fd, nullptr);
  std::vector<TransferPtr> notices;
  for (const TransferPtr& transfer : active_) {
    if (transfer->peer == peer->rank && transfer->is_notice()) notices.push_back(transfer);
  }
  for (const TransferPtr& notice : notices) Complete(notice, Status());
  if (peer->num_active == 0) return Status();  // it may have ended regularly
  for (const TransferPtr& transfer : active_) {
    if (transfer->peer == peer->rank) return PeerGone(*peer, *transfer);
  }
  return Status();
}

Status Messenger::PeerGone(const Peer& peer, const Transfer& transfer) const {
  return Status(StatusCode::kUnavailable,
                DescribeWait(transfer) + ": " + RankText(peer.rank) + " is gone: " + peer.gone);
}

// Sends kConfirm after the last message to each peer.
void Messenger::ConfirmFlush() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!flushes_ || is_flushed_) return;
  }
  std::string left;
  size_t num_named = 0;
  for (const TransferPtr& transfer : active_) {
    if (transfer->way != Transfer::Way::kSend || ++num_named > kMaxNamed) continue;
    AppendItem(&left, Quoted(transfer->name()) + " to " + RankText(transfer->peer));
  }
  if (num_named > kMaxNamed) left += " and more";
  for (Peer& peer : peers_) {
    if (!left.empty() || !peer.has_sent || !peer.gone.empty() || peer.has_confirmed) continue;
    AppendItem(&left, "the last to " + RankText(peer.rank));
    if (std::exchange(peer.awaits_confirmation, true)) continue;
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
  if (now < next_check_) return Status();
  const double timeout = options_.timeout_seconds;
  const StalledTransfers waits = FindStalledTransfers(
      active_, now, timeout, options_.warn ? options_.stall_warning_seconds : timeout);
  const auto listed = [this](const std::vector<const Transfer*>& found) {
    std::string text;
    for (size_t i = 0; i < std::min(found.size(), kMaxNamed); ++i) {
      text += (i == 0 ? "" : "; for ") + DescribeWait(*found[i]);
    }
    return text + (found.size() > kMaxNamed ? "; and for more" : "");
  };
  if (!waits.overdue.empty()) {
    return Status(StatusCode::kDeadlineExceeded, WaitedTooLong(timeout, listed(waits.overdue)));
  }
  if (!waits.late.empty()) {
    options_.warn(RankText(options_.rank) + " has waited " +
                  SecondsText(options_.stall_warning_seconds) + " s for " + listed(waits.late) +
                  "; still waiting");
  }
  next_check_ = After(waits.next_check_seconds);
  return Status();
}

std::string Messenger::DescribeWait(const Transfer& transfer) const {
  const bool sends = transfer.way == Transfer::Way::kSend;
  std::string text = RankText(transfer.peer) + (sends ? " to receive " : " to send ") +
                     Quoted(transfer.name()) + " (" + transfer.content + ")";
  if (transfer.is_matched) return text;
  // Other names that the peer announced show which name is wrong.
  const Peer& peer = peers_[transfer.peer];
  const std::string names = (sends ? peer.sends : peer.receives).NameAnnounced(kMaxNamed);
  if (names.empty()) return text;
  return text + ", which " + (sends ? "wants to receive " : "sends ") + names + " instead";
}

}  // namespace tf_libra
