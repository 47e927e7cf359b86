#include "ops/lanes/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace tf_libra {
namespace {

constexpr uint32_t kMagic = 0x4342494cu;
constexpr uint32_t kMaxFarewellBytes = 4096;
constexpr double kFarewellSeconds = 0.2;

struct MessageHeader {
  uint32_t magic;
  uint32_t kind;
  uint32_t num_bytes;
};
static_assert(sizeof(MessageHeader) == 12, "the header goes over the wire as it is");

}  // namespace

ControlPlane::ControlPlane(int rank, std::vector<Socket> peers)
    : rank_(rank), peers_(std::move(peers)) {}

Status ControlPlane::SendTo(int rank, Kind kind, const std::string& text, TimePoint deadline) {
  if (text.size() > kMaxMessageBytes) {
    return Status(StatusCode::kInvalidArgument,
                  "a control message may have " + std::to_string(kMaxMessageBytes) +
                      " bytes at most, not " + std::to_string(text.size()));
  }
  const MessageHeader header{kMagic, static_cast<uint32_t>(kind),
                             static_cast<uint32_t>(text.size())};
  std::string message(reinterpret_cast<const char*>(&header), sizeof(header));
  message += text;
  Status status = SendAll(peers_[rank], message.data(), message.size(), deadline);
  if (status.ok()) return status;
  return Status(status.code(), "rank " + std::to_string(rank_) + " cannot send to rank " +
                                   std::to_string(rank) + ": " + status.message());
}

Status ControlPlane::ReceiveFrom(int rank, TimePoint deadline, std::string* text, bool* farewell) {
  const std::string peer = "rank " + std::to_string(rank);
  MessageHeader header;
  Status status = ReceiveAll(peers_[rank], &header, sizeof(header), deadline);
  if (status.ok()) {
    const bool is_farewell = header.kind == static_cast<uint32_t>(Kind::kFarewell);
    const uint32_t limit = is_farewell ? kMaxFarewellBytes : kMaxMessageBytes;
    if (header.magic != kMagic || header.num_bytes > limit) {
      return Status(StatusCode::kFailedPrecondition, peer + " sent something that is no message");
    }
    text->resize(header.num_bytes);
    status = ReceiveAll(peers_[rank], text->data(), text->size(), deadline);
    if (status.ok() && is_farewell) {
      if (farewell != nullptr) *farewell = true;
      return Status(StatusCode::kUnavailable, peer + " gave up: " + *text);
    }
  }
  if (status.ok()) return status;
  if (status.code() == StatusCode::kDeadlineExceeded) {
    return Status(status.code(), "rank " + std::to_string(rank_) + " waited for " + peer + ": " +
                                     status.message());
  }
  return Status(status.code(), peer + " is gone: " + status.message());
}

Status ControlPlane::AllGather(const std::string& mine, double timeout_seconds,
                               std::vector<std::string>* all) {
  const std::lock_guard<std::mutex> lock(collective_mutex_);
  const TimePoint deadline = After(timeout_seconds);
  const int world_size = static_cast<int>(peers_.size());
  all->assign(world_size, std::string());
  (*all)[rank_] = mine;
  // Through rank 0: 2(N-1) messages, and no two ranks ever send to each other at once, so that
  // long messages cannot fill both directions.
  if (rank_ != 0) {
    if (Status status = SendTo(0, Kind::kData, mine, deadline); !status.ok()) return status;
    for (int rank = 0; rank < world_size; ++rank) {
      if (Status status = ReceiveFrom(0, deadline, &(*all)[rank]); !status.ok()) return status;
    }
    return Status();
  }
  for (int rank = 1; rank < world_size; ++rank) {
    if (Status status = ReceiveFrom(rank, deadline, &(*all)[rank]); !status.ok()) return status;
  }
  for (int rank = 1; rank < world_size; ++rank) {
    for (const std::string& message : *all) {
      if (Status status = SendTo(rank, Kind::kData, message, deadline); !status.ok()) {
        return status;
      }
    }
  }
  return Status();
}

Status ControlPlane::Broadcast(int root, double timeout_seconds, std::string* message) {
  const std::lock_guard<std::mutex> lock(collective_mutex_);
  const TimePoint deadline = After(timeout_seconds);
  if (rank_ != root) return ReceiveFrom(root, deadline, message);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank == rank_) continue;
    if (Status status = SendTo(rank, Kind::kData, *message, deadline); !status.ok()) return status;
  }
  return Status();
}

void ControlPlane::Farewell(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(farewell_mutex_);
  if (std::exchange(said_farewell_, true)) return;
  const std::string text = reason.substr(0, kMaxFarewellBytes);
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    // Best effort: a peer that cannot be told will see the connection close.
    if (rank != rank_) SendTo(rank, Kind::kFarewell, text, After(kFarewellSeconds));
  }
}

std::string ControlPlane::HearFarewells(double seconds) {
  const TimePoint deadline = After(seconds);
  std::vector<bool> heard(peers_.size(), false);
  std::string words;
  for (;;) {
    std::vector<pollfd> entries;
    std::vector<int> ranks;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      if (rank == rank_ || heard[rank]) continue;
      entries.push_back({peers_[rank].fd(), POLLIN, 0});
      ranks.push_back(rank);
    }
    // One voice is enough: the others only repeat what they heard from it.
    if (entries.empty() || !words.empty()) return words;
    if (poll(entries.data(), entries.size(), PollMilliseconds(deadline)) <= 0) return words;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      heard[ranks[i]] = true;
      std::string text;
      bool farewell = false;
      const Status status = ReceiveFrom(ranks[i], deadline, &text, &farewell);
      if (!farewell) continue;
      words += (words.empty() ? "" : "; ") + status.message();
    }
  }
}

void ControlPlane::Shutdown() {
  for (Socket& peer : peers_) peer.Shutdown();
}

}  // namespace tf_libra
