// The thread of a control plane: receives frames from neighbours and forwards them.
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <tuple>
#include <utility>

#include "ops/lanes/control_plane.h"
#include "ops/lanes/text.h"

namespace tf_libra {
namespace {

using Kind = ControlHeader::Kind;

// Limit of frames read from a neighbour before the next neighbour has its turn.
constexpr int kFramesPerTurn = 64;

bool IsProbe(const ControlHeader& header) {
  return header.Is(Kind::kProbe) || header.Is(Kind::kAlive);
}

std::tuple<uint32_t, int32_t, int32_t> KeyOf(const ControlHeader& header) {
  return {header.kind, header.origin, header.target};
}

}  // namespace

void ControlPlane::Main() noexcept {
  pthread_setname_np(pthread_self(), "libra control");
  if (options_.on_thread) options_.on_thread();
  Status failure;
  try {
    while (Serve()) {
    }
    return;
  } catch (...) {
    failure = CaughtStatus("the thread of control messages failed");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
    changed_.notify_all();
  }
  if (options_.on_failure) options_.on_failure(failure);
}

bool ControlPlane::Serve() {
  std::vector<pollfd> entries = {{waker_.descriptor().fd(), POLLIN, 0}};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_over_) return false;
    for (const Edge& edge : edges_) {
      const int events =
          !edge.is_open ? 0 : (HasRoom(edge) ? POLLIN : 0) | (edge.queue.empty() ? 0 : POLLOUT);
      // One that is not listened to would wake for its end alone, again and again.
      entries.push_back({events == 0 ? -1 : edge.socket.fd(), static_cast<short>(events), 0});
    }
    for (const Edge& edge : edges_) {
      const bool is_watched = links_ != nullptr && edge.is_open;
      entries.push_back({is_watched ? (*links_)[edge.rank].fd() : -1, 0, 0});  // errors alone
    }
  }
  if (poll(entries.data(), entries.size(), -1) < 0) {
    if (errno == EINTR) return true;
    throw std::system_error(errno, std::generic_category(), "poll");
  }
  if (entries[0].revents != 0) waker_.Rest();
  for (size_t i = 0; i < edges_.size(); ++i) {
    Edge& edge = edges_[i];
    const pollfd& own = entries[1 + i];
    const pollfd& link = entries[1 + edges_.size() + i];
    if ((own.revents & POLLOUT) != 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      Send(&edge);
    }
    Status status;
    if ((own.events & POLLIN) != 0 && (own.revents & ~POLLOUT) != 0) status = Read(&edge);
    if (link.revents != 0 && own.revents == 0) {
      status = Status(StatusCode::kUnavailable,
                      RankText(edge.rank) + " is gone: " + WhyLinkBroke((*links_)[edge.rank]));
    }
    if (status.ok()) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    Lose(&edge, status);
  }
  return true;
}

Status ControlPlane::Read(Edge* edge) {
  for (int left = kFramesPerTurn; left > 0;) {
    if (edge->incoming == nullptr) {
      edge->incoming = std::make_shared<ControlFrame>();
      edge->incoming->bytes.resize(sizeof(ControlHeader));
      edge->received = 0;
    }
    ControlHeader& header = edge->incoming->header;
    std::string& bytes = edge->incoming->bytes;
    const ssize_t received = recv(edge->socket.fd(), &bytes[edge->received],
                                  bytes.size() - edge->received, MSG_DONTWAIT);
    if (received < 0 && WouldBlock(errno)) return Status();
    if (received <= 0) {
      const std::string why = received == 0 ? "it closed the connection" : ErrnoText(errno);
      return Status(StatusCode::kUnavailable, RankText(edge->rank) + " is gone: " + why);
    }
    edge->received += static_cast<size_t>(received);
    if (edge->received < bytes.size()) continue;
    if (edge->received == sizeof(ControlHeader)) {
      std::memcpy(&header, bytes.data(), sizeof(ControlHeader));
      if (Status status = CheckControlHeader(header, tree_, edge->rank); !status.ok())
        return status;
      bytes.resize(sizeof(ControlHeader) + header.num_bytes);
      if (header.num_bytes > 0) continue;
    }
    const FramePtr frame = std::move(edge->incoming);
    edge->incoming = nullptr;
    --left;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Status status = Deliver(edge, frame); !status.ok()) return status;
    if (!HasRoom(*edge)) return Status();
  }
  return Status();
}

Status ControlPlane::Deliver(Edge* edge, const FramePtr& frame) {
  const int origin = frame->header.origin, target = frame->header.target;
  switch (static_cast<Kind>(frame->header.kind)) {
    case Kind::kData:
      // As long as a rank behind a neighbour is missing, no other one there is further than this
      // collective: what a rank says next follows, on every edge, what it has waited for itself.
      if (edge->unread_bytes > options_.max_waiting_bytes && !inbox_[origin].empty() &&
          LacksFrom(*edge)) {
        return Status(StatusCode::kFailedPrecondition,
                      RankText(edge->rank) + " sends messages of " + RankText(origin) +
                          " that do not wait for those of other ranks");
      }
      Pass(frame, edge);
      edge->unread_bytes += frame->memory_bytes();
      inbox_[origin].push_back(frame);
      if (is_wanted_[origin] && inbox_[origin].size() == 1 && --num_missing_ == 0) {
        changed_.notify_all();
      }
      break;
    case Kind::kAbort:
      RecordStatement(
          frame, Status(StatusCode::kUnavailable, RankText(origin) + " gave up: " + frame->text()),
          edge);
      break;
    case Kind::kGone:
      RecordStatement(frame, Status(StatusCode::kUnavailable, frame->text()), edge);
      break;
    default:
      if (target != tree_.rank()) {
        Enqueue(EdgeToward(target), frame);
      } else if (frame->header.Is(Kind::kProbe)) {
        Enqueue(edge, MakeControlFrame(Kind::kAlive, target, origin, ""));
      } else if (!is_alive_.empty()) {
        is_alive_[origin] = true;
      }
  }
  return Status();
}

void ControlPlane::Lose(Edge* edge, const Status& why) {
  if (!edge->is_open) return;
  edge->is_open = false;
  Drop(edge);
  const std::string text = CutText(why.message(), ControlFrame::kMaxWordsBytes);
  RecordStatement(MakeControlFrame(Kind::kGone, edge->rank, ControlHeader::kAll, text), why, edge);
}

void ControlPlane::RecordStatement(const FramePtr& said, const Status& status, const Edge* from) {
  const int rank = said->header.origin;
  if (!is_stated_[rank]) {
    is_stated_[rank] = true;
    statements_.push_back({rank, status});
    Pass(said, from);
  }
  changed_.notify_all();
}

void ControlPlane::Pass(const FramePtr& frame, const Edge* from) {
  for (Edge& edge : edges_) {
    if (&edge != from) Enqueue(&edge, frame);
  }
}

void ControlPlane::Enqueue(Edge* edge, const FramePtr& frame) {
  const bool is_probe = IsProbe(frame->header);
  // A probe that is still queued is enough: a neighbour that does not read is owed one.
  if (is_probe && edge->queued_probes.count(KeyOf(frame->header)) > 0) return;
  edge->queue.push_back(frame);
  edge->queued_bytes += frame->memory_bytes();
  if (is_probe) edge->queued_probes.insert(KeyOf(frame->header));
  if (!edge->is_open || edge->is_deaf) return Drop(edge);
  Send(edge);
  if (!edge->queue.empty()) waker_.Wake();
}

void ControlPlane::Send(Edge* edge) {
  const bool was_full = edge->queued_bytes > options_.max_waiting_bytes;
  while (!edge->queue.empty()) {
    const std::string& bytes = edge->queue.front()->bytes;
    const ssize_t sent = send(edge->socket.fd(), bytes.data() + edge->front_sent,
                              bytes.size() - edge->front_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && WouldBlock(errno)) break;
    if (sent < 0) {
      // Frames that the neighbour sent before it left are still to be read, and then the end of the
      // connection. A neighbour that has not left learns that this rank sends no more.
      edge->is_deaf = true;
      edge->socket.Shutdown();
      return Drop(edge);
    }
    edge->front_sent += static_cast<size_t>(sent);
    if (edge->front_sent < bytes.size()) continue;
    edge->queued_bytes -= edge->queue.front()->memory_bytes();
    edge->queued_probes.erase(KeyOf(edge->queue.front()->header));
    edge->queue.pop_front();
    edge->front_sent = 0;
    ++edge->num_sent;
  }
  if (edge->queue.empty()) changed_.notify_all();
  if (was_full && edge->queued_bytes <= options_.max_waiting_bytes)
    waker_.Wake();  // others may be read again
}

void ControlPlane::Drop(Edge* edge) {
  for (const FramePtr& frame : edge->queue) {
    const bool is_data = frame->header.Is(Kind::kData);
    edge->has_lost_data = edge->has_lost_data || is_data;
  }
  edge->num_sent += edge->queue.size();
  edge->queue.clear();
  edge->queued_probes.clear();
  edge->front_sent = edge->queued_bytes = 0;
  changed_.notify_all();
}

bool ControlPlane::HasRoom(const Edge& edge) const {
  if (edge.unread_bytes > options_.max_waiting_bytes && !LacksFrom(edge)) return false;
  return std::none_of(edges_.begin(), edges_.end(), [this, &edge](const Edge& other) {
    return &other != &edge && other.queued_bytes > options_.max_waiting_bytes;
  });
}

bool ControlPlane::LacksFrom(const Edge& edge) const {
  if (num_missing_ == 0) return false;
  for (int rank = 0; rank < tree_.world_size(); ++rank) {
    if (Misses(rank) && tree_.Toward(rank) == edge.rank) return true;
  }
  return false;
}

}  // namespace tf_libra
