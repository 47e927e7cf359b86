#include "ops/lanes/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <utility>

namespace tf_libra {
namespace {

constexpr uint32_t kMagic = 0x4342494cu;
constexpr uint32_t kMaxFarewellBytes = 4096;

std::string Named(int rank) { return "rank " + std::to_string(rank); }

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

ControlPlane::ControlPlane(int rank, std::vector<Socket> peers, StallWarning stall,
                           const std::vector<Socket>* links)
    : rank_(rank),
      stall_(std::move(stall)),
      links_(links),
      peers_(std::move(peers)),
      within_message_(peers_.size(), false) {}

std::string ControlPlane::Packed(Kind kind, const std::string& text) {
  const Header header{kMagic, static_cast<uint32_t>(kind), static_cast<uint32_t>(text.size())};
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + text;
}

Status ControlPlane::CheckSize(const std::string& text) {
  if (text.size() <= kMaxMessageBytes) return Status();
  return Status(StatusCode::kInvalidArgument,
                "a control message may have " + std::to_string(kMaxMessageBytes) +
                    " bytes at most, not " + std::to_string(text.size()));
}

Status ControlPlane::SendSome(const std::string& outgoing, Transfer* transfer) {
  const std::lock_guard<std::mutex> lock(send_mutex_);
  if (said_farewell_) return Status(StatusCode::kUnavailable, Named(rank_) + " has given up");
  const char* const next = outgoing.data() + outgoing.size() - transfer->left_to_send;
  const ssize_t sent =
      send(peers_[transfer->rank].fd(), next, transfer->left_to_send, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (WouldBlock(errno)) return Status();
    return Status(StatusCode::kUnavailable,
                  Named(transfer->rank) + " is gone: " + ErrnoText(errno));
  }
  transfer->left_to_send -= static_cast<size_t>(sent);
  within_message_[transfer->rank] = transfer->sending();
  return Status();
}

Status ControlPlane::ReceiveSome(int rank, Incoming* incoming) {
  const size_t of_header = std::min(incoming->received, sizeof(Header));
  const size_t of_text = incoming->received - of_header;
  const bool in_header = of_header < sizeof(Header);
  char* const next = in_header ? reinterpret_cast<char*>(&incoming->header) + of_header
                               : incoming->text.data() + of_text;
  const size_t wanted = in_header ? sizeof(Header) - of_header : incoming->text.size() - of_text;
  const ssize_t received = recv(peers_[rank].fd(), next, wanted, MSG_DONTWAIT);
  if (received < 0 && WouldBlock(errno)) return Status();
  if (received <= 0) {
    const std::string why = received == 0 ? "it closed the connection" : ErrnoText(errno);
    return Status(StatusCode::kUnavailable, Named(rank) + " is gone: " + why);
  }
  incoming->received += static_cast<size_t>(received);
  if (incoming->received < sizeof(Header)) return Status();
  const Header& header = incoming->header;
  const bool farewell = header.kind == static_cast<uint32_t>(Kind::kFarewell);
  if (in_header) {
    const bool known = farewell || header.kind == static_cast<uint32_t>(Kind::kData);
    if (header.magic != kMagic || !known ||
        header.num_bytes > (farewell ? kMaxFarewellBytes : kMaxMessageBytes)) {
      return Status(StatusCode::kFailedPrecondition,
                    Named(rank) + " sent something that is no message");
    }
    incoming->text.resize(header.num_bytes);
  }
  incoming->complete = incoming->received == sizeof(Header) + header.num_bytes;
  if (incoming->complete && farewell) {
    return Status(StatusCode::kUnavailable, Named(rank) + " gave up: " + incoming->text);
  }
  return Status();
}

Status ControlPlane::ReceiveAvailable(int rank, Incoming* incoming) {
  for (;;) {
    const size_t before = incoming->received;
    Status status = ReceiveSome(rank, incoming);
    if (!status.ok()) {
      const std::lock_guard<std::mutex> lock(news_mutex_);
      if (news_.empty()) news_ = status.message();
      heard_.notify_all();
    }
    if (!status.ok() || incoming->complete || incoming->received == before) return status;
  }
}

Status ControlPlane::Advance(const std::string& outgoing, Transfer* transfer) {
  if (transfer->receiving()) {
    Status status = ReceiveAvailable(transfer->rank, &transfer->incoming);
    if (!status.ok()) return status;
  }
  if (!transfer->sending()) return Status();
  const Status sent = SendSome(outgoing, transfer);
  if (sent.ok()) return sent;
  // What the peer said before it left explains more than a broken pipe.
  Incoming behind;
  Incoming* last = transfer->receiving() ? &transfer->incoming : &behind;
  const Status words = ReceiveAvailable(transfer->rank, last);
  return words.ok() ? sent : words;
}

Status ControlPlane::Run(const std::string& outgoing, double timeout_seconds,
                         std::vector<Transfer>* transfers) {
  const TimePoint deadline = After(timeout_seconds);
  const TimePoint late = After(std::min(stall_.seconds, timeout_seconds));
  bool warned = stall_.warn == nullptr || stall_.seconds >= timeout_seconds;
  std::vector<pollfd> entries;
  std::vector<int> ranks;  // of the first entries; the others are their links
  for (;;) {
    entries.clear();
    ranks.clear();
    std::string missing;
    for (Transfer& transfer : *transfers) {
      const int events = (transfer.receiving() ? POLLIN : 0) | (transfer.sending() ? POLLOUT : 0);
      if (events == 0) continue;  // through: it may leave
      entries.push_back({peers_[transfer.rank].fd(), static_cast<short>(events | POLLRDHUP), 0});
      ranks.push_back(transfer.rank);
      missing += (missing.empty() ? "" : ", ") + std::to_string(transfer.rank);
    }
    if (entries.empty()) return Status();
    for (size_t i = 0; links_ != nullptr && i < ranks.size(); ++i) {
      entries.push_back({(*links_)[ranks[i]].fd(), 0, 0});  // told of errors alone
    }
    const int wait = PollMilliseconds(warned ? deadline : late);
    const int ready = poll(entries.data(), entries.size(), wait);
    if (ready == 0 && !warned && SecondsUntil(late) <= 0) {
      warned = true;
      stall_.warn(missing);
    }
    if (ready == 0 && SecondsUntil(deadline) <= 0) {
      std::ostringstream what;
      what << "waited " << timeout_seconds << " s for rank(s) " << missing;
      return Status(StatusCode::kDeadlineExceeded, what.str());
    }
    for (size_t link = ranks.size(); link < entries.size(); ++link) {
      const int rank = ranks[link - ranks.size()];
      if (entries[link].revents == 0 || entries[link - ranks.size()].revents != 0) continue;
      return Status(StatusCode::kUnavailable,
                    Named(rank) + " is gone: " + WhyLinkBroke((*links_)[rank]));
    }
    size_t i = 0;
    for (Transfer& transfer : *transfers) {
      if (!transfer.receiving() && !transfer.sending()) continue;
      const short happened = entries[i++].revents;
      if (happened == 0) continue;
      Status status = Advance(outgoing, &transfer);
      if (!status.ok()) return status;
      // It left with its message said, but before it could have this rank's.
      if ((happened & ~(POLLIN | POLLOUT)) != 0 && !transfer.receiving() && transfer.sending()) {
        Incoming farewell;
        status = ReceiveAvailable(transfer.rank, &farewell);
        if (!status.ok()) return status;
      }
    }
  }
}

Status ControlPlane::AllGather(const std::string& mine, double timeout_seconds,
                               std::vector<std::string>* all) {
  if (Status status = CheckSize(mine); !status.ok()) return status;
  const std::lock_guard<std::mutex> lock(collective_mutex_);
  const std::string outgoing = Packed(Kind::kData, mine);
  std::vector<Transfer> transfers;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank != rank_) transfers.push_back({rank, true, Incoming(), outgoing.size()});
  }
  if (Status status = Run(outgoing, timeout_seconds, &transfers); !status.ok()) return status;
  all->assign(peers_.size(), std::string());
  (*all)[rank_] = mine;
  for (Transfer& transfer : transfers) {
    (*all)[transfer.rank] = std::move(transfer.incoming.text);
  }
  return Status();
}

Status ControlPlane::Broadcast(int root, double timeout_seconds, std::string* message) {
  const std::lock_guard<std::mutex> lock(collective_mutex_);
  std::vector<Transfer> transfers;
  if (rank_ != root) {
    transfers.push_back({root, true, Incoming(), 0});
    Status status = Run("", timeout_seconds, &transfers);
    if (status.ok()) *message = std::move(transfers[0].incoming.text);
    return status;
  }
  if (Status status = CheckSize(*message); !status.ok()) return status;
  const std::string outgoing = Packed(Kind::kData, *message);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank != rank_) transfers.push_back({rank, false, Incoming(), outgoing.size()});
  }
  return Run(outgoing, timeout_seconds, &transfers);
}

Status ControlPlane::Standing() const {
  std::vector<pollfd> entries;
  for (const Socket& peer : peers_) entries.push_back({peer.fd(), POLLRDHUP, 0});  // own: skipped
  for (size_t i = 0; links_ != nullptr && i < links_->size(); ++i) {
    entries.push_back({(*links_)[i].fd(), 0, 0});
  }
  if (poll(entries.data(), entries.size(), 0) <= 0) return Status();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].revents == 0) continue;
    const int rank = static_cast<int>(i % peers_.size());
    return Status(
        StatusCode::kUnavailable,
        Named(rank) + " is gone: " +
            (i < peers_.size() ? "it closed the connection" : WhyLinkBroke((*links_)[rank])));
  }
  return Status();
}

void ControlPlane::Farewell(const std::string& reason) noexcept {
  const std::lock_guard<std::mutex> lock(send_mutex_);
  if (std::exchange(said_farewell_, true)) return;
  std::string message;
  try {
    message = Packed(Kind::kFarewell, reason.substr(0, kMaxFarewellBytes));
  } catch (...) {
    return;  // no memory for words: they will see the connections close
  }
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<int>(rank) == rank_ || within_message_[rank]) continue;
    // Best effort: a peer that cannot be told will see the connection close.
    const ssize_t ignored =
        send(peers_[rank].fd(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    static_cast<void>(ignored);
  }
}

std::string ControlPlane::HearFarewells(double seconds) {
  const TimePoint deadline = After(seconds);
  {
    const std::unique_lock<std::mutex> lock(collective_mutex_, std::try_to_lock);
    if (lock.owns_lock()) ListenUntil(deadline);
  }
  // Otherwise a collective is listening in another thread.
  std::unique_lock<std::mutex> lock(news_mutex_);
  heard_.wait_until(lock, deadline, [this] { return peers_.size() < 2 || !news_.empty(); });
  return news_;
}

void ControlPlane::ListenUntil(TimePoint deadline) {
  std::vector<Incoming> incoming(peers_.size());
  std::vector<pollfd> entries;
  for (const Socket& peer : peers_) entries.push_back({peer.fd(), POLLIN, 0});  // own: skipped
  while (peers_.size() > 1) {
    if (poll(entries.data(), entries.size(), PollMilliseconds(deadline)) == 0 &&
        SecondsUntil(deadline) <= 0) {
      return;
    }
    for (size_t rank = 0; rank < peers_.size(); ++rank) {
      if (entries[rank].revents == 0) continue;
      do {  // a message that was meant for a collective is not wanted any more
        if (incoming[rank].complete) incoming[rank] = Incoming();
        if (!ReceiveAvailable(static_cast<int>(rank), &incoming[rank]).ok()) return;
      } while (incoming[rank].complete);
    }
  }
}

void ControlPlane::Shutdown() noexcept {
  for (Socket& peer : peers_) peer.Shutdown();
}

}  // namespace tf_libra
