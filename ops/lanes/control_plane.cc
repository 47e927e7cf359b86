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
// Before missing ranks are named, all ranks on the paths to them are probed, this long before; half
// the wait if the wait is short.
constexpr double kProbeSeconds = 5;

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

ControlPlane::Edge* ControlPlane::EdgeToward(int rank) {
  const auto found = std::find_if(edges_.begin(), edges_.end(), [&](const Edge& edge) {
    return edge.rank == tree_.Toward(rank);
  });
  return &*found;
}

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
    if (has_aborted_) {
      return Status(StatusCode::kUnavailable, RankText(tree_.rank()) + " has given up");
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
    if (is_over_) return Status(StatusCode::kUnavailable, RankText(tree_.rank()) + " has given up");
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

Status ControlPlane::PeerStatus() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statements_.empty() ? Status() : statements_[0].status;
}

void ControlPlane::BroadcastAbort(const std::string& reason) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(has_aborted_, true)) return;
  try {
    Pass(MakeControlFrame(Kind::kAbort, tree_.rank(), kAll,
                          CutText(ValidText(reason), ControlFrame::kMaxWordsBytes)),
         nullptr);
  } catch (...) {  // no memory for words: they will see the connections close
  }
}

std::string ControlPlane::WaitForAborts(double seconds) {
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
