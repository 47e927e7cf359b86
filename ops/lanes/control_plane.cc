#include "ops/lanes/control_plane.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "ops/lanes/text.h"

namespace tf_libra {
namespace {

using Kind = ControlHeader::Kind;

constexpr int kAll = ControlHeader::kAll;
// What is read from a neighbour before the next has its turn.
constexpr int kFramesPerTurn = 64;
// How long before ranks are named as missing all ranks on the way to them are probed; for short
// waits, half the wait.
constexpr double kProbeSeconds = 5;

bool IsProbe(const ControlHeader& header) {
  return header.Is(Kind::kProbe) || header.Is(Kind::kAlive);
}

std::tuple<uint32_t, int32_t, int32_t> KeyOf(const ControlHeader& header) {
  return {header.kind, header.origin, header.target};
}

std::string Named(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

ControlPlane::ControlPlane(Tree tree, std::vector<Socket> peers, ControlOptions options,
                           const std::vector<Socket>* links)
    : tree_(std::move(tree)),
      options_(std::move(options)),
      links_(links),
      edges_(tree_.neighbours().size()),
      inbox_(tree_.world_size()),
      is_stated_(tree_.world_size(), false),
      is_wanted_(tree_.world_size(), false) {
  for (size_t i = 0; i < edges_.size(); ++i) {
    edges_[i].rank = tree_.neighbours()[i];
    edges_[i].socket = std::move(peers[edges_[i].rank]);
  }
}

ControlPlane::~ControlPlane() {
  Shutdown();
  Join();
}

Status ControlPlane::Start() {
  if (edges_.empty()) return Status();
  if (Status status = waker_.Open(); !status.ok()) return status;
  try {
    thread_ = std::thread([this] { Main(); });
  } catch (...) {
    return CaughtStatus("the thread of control messages cannot start");
  }
  return Status();
}

void ControlPlane::Join() {
  if (thread_.joinable()) thread_.join();
}

// The thread.

void ControlPlane::Main() noexcept {
  pthread_setname_np(pthread_self(), "libra control");
  if (options_.on_thread) options_.on_thread();
  Status failure;
  try {
    while (Serve()) {
    }
    return;
  } catch (...) {
    failure = CaughtStatus("control messages cannot go on");
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
                      Named(edge.rank) + " is gone: " + WhyLinkBroke((*links_)[edge.rank]));
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
      return Status(StatusCode::kUnavailable, Named(edge->rank) + " is gone: " + why);
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
                      Named(edge->rank) + " sends messages of " + Named(origin) +
                          " that do not wait for those of other ranks");
      }
      Pass(frame, edge);
      edge->unread_bytes += frame->memory_bytes();
      inbox_[origin].push_back(frame);
      if (is_wanted_[origin] && inbox_[origin].size() == 1 && --num_missing_ == 0) {
        changed_.notify_all();
      }
      break;
    case Kind::kFarewell:
      Note(frame, Status(StatusCode::kUnavailable, Named(origin) + " gave up: " + frame->text()),
           edge);
      break;
    case Kind::kGone:
      Note(frame, Status(StatusCode::kUnavailable, frame->text()), edge);
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
  Note(MakeControlFrame(Kind::kGone, edge->rank, kAll, text), why, edge);
}

void ControlPlane::Note(const FramePtr& said, const Status& status, const Edge* from) {
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
  // The same that is still to be sent says as much: a neighbour that does not read is owed one.
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
      // What it said before it left is still to be read, and then that it left: also where it has
      // not, and is to hear that this rank can tell it no more.
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

ControlPlane::Edge* ControlPlane::EdgeToward(int rank) {
  const auto found = std::find_if(edges_.begin(), edges_.end(), [&](const Edge& edge) {
    return edge.rank == tree_.Toward(rank);
  });
  return &*found;
}

// Collectives.

Status ControlPlane::AllGather(const std::string& mine, double timeout_seconds,
                               std::vector<std::string>* all) {
  if (Status status = CheckControlData(mine); !status.ok()) return status;
  const FramePtr frame = MakeControlFrame(Kind::kData, tree_.rank(), kAll, mine);
  if (Status status = Run(frame, kAll, timeout_seconds, all); !status.ok()) return status;
  (*all)[tree_.rank()] = mine;
  return Status();
}

Status ControlPlane::Broadcast(int root, double timeout_seconds, std::string* message) {
  FramePtr frame;
  if (root == tree_.rank()) {
    if (Status status = CheckControlData(*message); !status.ok()) return status;
    frame = MakeControlFrame(Kind::kData, root, kAll, *message);
  }
  std::vector<std::string> all;
  const Status status = Run(frame, root, timeout_seconds, &all);
  if (status.ok() && root != tree_.rank()) *message = std::move(all[root]);
  return status;
}

Status ControlPlane::Run(const FramePtr& mine, int root, double timeout_seconds,
                         std::vector<std::string>* messages) {
  const std::lock_guard<std::mutex> alone(collective_mutex_);
  std::vector<FramePtr> received(tree_.world_size());
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (said_farewell_) {
      return Status(StatusCode::kUnavailable, Named(tree_.rank()) + " has given up");
    }
    if (mine != nullptr) Pass(mine, nullptr);
    num_missing_ = 0;
    for (int rank = 0; rank < tree_.world_size(); ++rank) {
      is_wanted_[rank] = rank != tree_.rank() && (root == kAll || root == rank);
      num_missing_ += Misses(rank);
    }
    if (num_missing_ > 0) waker_.Wake();  // there is room for it
    const Status status = Wait(root, timeout_seconds, &lock);
    num_missing_ = 0;
    is_alive_.clear();
    const std::vector<bool> wanted =
        std::exchange(is_wanted_, std::vector<bool>(is_wanted_.size(), false));
    if (!status.ok()) return status;
    for (int rank = 0; rank < tree_.world_size(); ++rank) {
      if (!wanted[rank]) continue;
      received[rank] = std::move(inbox_[rank].front());
      inbox_[rank].pop_front();
      Edge* const edge = EdgeToward(rank);
      const bool was_full = edge->unread_bytes > options_.max_waiting_bytes;
      edge->unread_bytes -= received[rank]->memory_bytes();
      if (was_full) waker_.Wake();
    }
  }
  messages->assign(tree_.world_size(), std::string());
  for (int rank = 0; rank < tree_.world_size(); ++rank) {
    if (received[rank] != nullptr) (*messages)[rank] = received[rank]->text();
  }
  return Status();
}

std::vector<ControlPlane::Due> ControlPlane::Dues(double timeout_seconds) const {
  std::vector<Due> dues;
  const auto add = [&dues](double seconds, Turn turn) {
    dues.push_back({After(seconds - std::min(kProbeSeconds, seconds / 2)), Turn::kProbe});
    dues.push_back({After(seconds), turn});
  };
  const bool warns = options_.warn != nullptr && options_.stall_warning_seconds < timeout_seconds;
  if (warns) add(options_.stall_warning_seconds, Turn::kWarn);
  add(timeout_seconds, Turn::kEnd);
  std::stable_sort(dues.begin(), dues.end(),
                   [](const Due& one, const Due& other) { return one.time < other.time; });
  return dues;
}

Status ControlPlane::Wait(int root, double timeout_seconds, std::unique_lock<std::mutex>* lock) {
  const std::vector<Due> dues = Dues(timeout_seconds);
  auto due = dues.begin();
  std::vector<uint64_t> to_send;  // [edge], frames since the beginning; once all has come
  for (;;) {
    if (is_over_) return Status(StatusCode::kUnavailable, Named(tree_.rank()) + " has given up");
    if (!failure_.ok()) return failure_;
    if (num_missing_ == 0 && to_send.empty()) {
      for (const Edge& edge : edges_) to_send.push_back(edge.num_sent + edge.queue.size());
    }
    if (Status status = Cut(root); !status.ok()) return status;
    // No rank leaves before others have the messages that pass through this rank.
    const bool has_lost = std::any_of(edges_.begin(), edges_.end(),
                                      [](const Edge& edge) { return edge.has_lost_data; });
    if (num_missing_ == 0 && !has_lost && Owed(to_send).empty()) return Status();
    changed_.wait_until(*lock, due->time);
    if (SecondsUntil(due->time) > 0) continue;
    switch (due->turn) {
      case Turn::kProbe:
        Probe();
        break;
      case Turn::kWarn: {
        const std::string ranks = Missing(to_send);
        lock->unlock();
        options_.warn(ranks);
        lock->lock();
        break;
      }
      case Turn::kEnd:
        return Status(StatusCode::kDeadlineExceeded,
                      WaitedTooLong(timeout_seconds, "rank(s) " + Missing(to_send)));
    }
    ++due;
  }
}

bool ControlPlane::Misses(int rank) const { return is_wanted_[rank] && inbox_[rank].empty(); }

Status ControlPlane::Cut(int root) const {
  for (const Statement& one : statements_) {
    // A rank that sends to all others has not reached them all if one of them is gone.
    bool is_cut = root == tree_.rank();
    for (const Edge& edge : edges_) {
      is_cut = is_cut || (edge.rank == one.rank && edge.has_lost_data);
    }
    for (int rank = 0; rank < tree_.world_size() && !is_cut; ++rank) {
      if (!Misses(rank)) continue;
      for (int at = rank; at != tree_.rank() && !is_cut; at = tree_.Before(at)) {
        is_cut = at == one.rank;
      }
    }
    if (is_cut) return one.status;
  }
  return Status();
}

// Probes all on the way to the missing ranks, but not these: the last one is late, or silent.
void ControlPlane::Probe() {
  std::vector<bool> asked(tree_.world_size(), false);
  is_alive_.assign(tree_.world_size(), false);
  for (int rank = 0; rank < tree_.world_size(); ++rank) {
    if (!Misses(rank)) continue;
    for (int at = tree_.Before(rank); at != tree_.rank() && !asked[at]; at = tree_.Before(at)) {
      asked[at] = true;
      Enqueue(EdgeToward(at), MakeControlFrame(Kind::kProbe, tree_.rank(), at, ""));
    }
  }
}

std::string ControlPlane::Missing(const std::vector<uint64_t>& to_send) const {
  std::set<int> ranks;
  for (int rank = 0; rank < tree_.world_size(); ++rank) {
    if (!Misses(rank)) continue;
    // A rank that answers has kept nothing back.
    const std::vector<int> way = tree_.Way(rank);
    ranks.insert(*std::find_if(way.begin(), way.end(),
                               [&](int at) { return at == rank || !is_alive_[at]; }));
  }
  for (const int edge : Owed(to_send)) ranks.insert(edges_[edge].rank);
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::vector<int> ControlPlane::Owed(const std::vector<uint64_t>& to_send) const {
  std::vector<int> owed;
  for (size_t i = 0; i < to_send.size(); ++i) {
    if (edges_[i].num_sent < to_send[i]) owed.push_back(static_cast<int>(i));
  }
  return owed;
}

// The end.

Status ControlPlane::Standing() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statements_.empty() ? Status() : statements_[0].status;
}

void ControlPlane::Farewell(const std::string& reason) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(said_farewell_, true)) return;
  try {
    Pass(MakeControlFrame(Kind::kFarewell, tree_.rank(), kAll,
                          CutText(ValidText(reason), ControlFrame::kMaxWordsBytes)),
         nullptr);
  } catch (...) {  // no memory for words: they will see the connections close
  }
}

std::string ControlPlane::HearFarewells(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_until(lock, After(seconds), [this] {
    return edges_.empty() || is_over_ || !failure_.ok() || !statements_.empty();
  });
  return statements_.empty() ? "" : statements_[0].status.message();
}

void ControlPlane::Shutdown() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_over_ = true;
  for (Edge& edge : edges_) edge.socket.Shutdown();
  waker_.Wake();
  changed_.notify_all();
}

}  // namespace tf_libra
