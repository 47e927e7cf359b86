// Small messages between all ranks: agreement before training, a plan from rank 0, an abort
// message.
//
// Messages travel over a tree (tree.h). A thread of its own forwards what arrives from one
// neighbour to the others, so forwarding goes on while a rank computes. A rank that gives up sends
// its reason to its neighbours; the neighbours of a rank that is gone report it to the rest. A
// rank that waits for messages which other ranks may have held back probes all ranks on the way to
// the sender: a stopped rank does not answer.
#ifndef TF_LIBRA_OPS_LANES_CONTROL_PLANE_H_
#define TF_LIBRA_OPS_LANES_CONTROL_PLANE_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ops/lanes/clock.h"
#include "ops/lanes/control_frame.h"
#include "ops/lanes/event_fd.h"
#include "ops/lanes/socket.h"
#include "ops/lanes/status.h"
#include "ops/lanes/tree.h"

namespace tf_libra {

struct ControlOptions {
  // Limit of bytes that wait, per neighbour, in each direction; beyond it nothing more is read.
  size_t max_waiting_bytes = 64 << 20;
  // `warn` is called once per collective that has waited for so long, with the ranks that are
  // missing.
  double stall_warning_seconds = 30;
  std::function<void(const std::string& ranks)> warn;
  std::function<void()> on_thread;  // called once, by the thread, as it starts
  // Called at most once, from the thread, with what makes it impossible to go on.
  std::function<void(const Status&)> on_failure;
};

// Messages are at most `kMaxMessageBytes`; sizes are checked before memory is allocated.
// Every method may be called from any thread; collectives must be called by every rank in the
// same order, from one thread at a time. A collective that fails is the last one.
class ControlPlane {
 public:
  static constexpr uint32_t kMaxMessageBytes = ControlFrame::kMaxDataBytes;

  // `peers[rank]`, those of neighbours in the tree. `links`, watched as in EnableKeepalive, outlive
  // this.
  ControlPlane(Tree tree, std::vector<Socket> peers, ControlOptions options = {},
               const std::vector<Socket>* links = nullptr);
  ~ControlPlane();
  // Starts the thread, before anything else. ResourceExhausted: none can start.
  Status Start();
  // Until the thread has ended. After Shutdown, which another thread may be about to call.
  void Join();

  // Gathers every rank's message, [rank]. Fails with a rank's own reason if the rank gave up before
  // its message came; as soon as a rank is known to be gone; and at the deadline, with the names of
  // all ranks that are missing or do not forward messages.
  Status AllGather(const std::string& mine, double timeout_seconds, std::vector<std::string>* all);
  // Receives the message of rank `root`; `message` is ignored elsewhere. Fails as AllGather does.
  Status Broadcast(int root, double timeout_seconds, std::string* message);

  // Returns Unavailable, with the first such rank, if a rank is known to have given up or to be
  // gone. Does not wait.
  Status PeerStatus();

  // Tells every rank why this one gives up, once, without waiting for anyone. It sends nothing of
  // its own from then on.
  void BroadcastAbort(const std::string& reason) noexcept;
  // Waits for at most `seconds` until a rank gives up or is gone. Returns the first reason; "" if
  // there is none.
  std::string WaitForAborts(double seconds);

  // Ends the thread, and with it whatever waits here.
  void Shutdown() noexcept;

 private:
  using FramePtr = std::shared_ptr<const ControlFrame>;

  // To a neighbour.
  struct Edge {
    int rank = 0;
    Socket socket;

    // State of the thread: the frame that is being received.
    std::shared_ptr<ControlFrame> incoming;
    size_t received = 0;

    // Guarded by mutex_.
    bool is_open = true;
    bool is_deaf = false;        // it takes nothing any more
    bool has_lost_data = false;  // what it was to have
    std::deque<FramePtr> queue;  // what goes out
    size_t front_sent = 0;       // bytes of the first of them
    size_t queued_bytes = 0;     // of them all, as they take memory
    // Probes and answers among them, by kind, origin and target: each once.
    std::set<std::tuple<uint32_t, int32_t, int32_t>> queued_probes;
    uint64_t num_sent = 0;    // frames, since the beginning
    size_t unread_bytes = 0;  // received from it, and not yet read by a call
  };
  struct Statement {
    int rank = 0;  // of whom
    Status status;
  };
  // Actions of a collective while it waits.
  enum class Turn { kProbe, kWarn, kEnd };
  struct Due {
    TimePoint time;
    Turn turn;
  };

  // Runs in the thread.
  void Main() noexcept;
  // Waits for what happens next, and deals with it; whether to go on.
  bool Serve();
  // Whole frames, until there is no more, or no room for it. An error: nothing more comes.
  Status Read(Edge* edge);

  // All of these with the lock held.
  // An error: the neighbour says more than it can have cause to.
  Status Deliver(Edge* edge, const FramePtr& frame);
  void Lose(Edge* edge, const Status& why);
  // Records the first statement about a rank, and forwards it.
  void RecordStatement(const FramePtr& said, const Status& status, const Edge* from);
  void Pass(const FramePtr& frame, const Edge* from);
  void Enqueue(Edge* edge, const FramePtr& frame);
  void Send(Edge* edge);
  void Drop(Edge* edge);
  bool HasRoom(const Edge& edge) const;
  // Returns whether a collective waits for a rank behind the edge.
  bool LacksFrom(const Edge& edge) const;
  Edge* EdgeToward(int rank);

  // Runs a collective: sends `mine`, unless it is null, and receives the message of `root`, or
  // those of all ranks if root is kAll, other than this rank's own.
  Status Run(const FramePtr& mine, int root, double timeout_seconds,
             std::vector<std::string>* messages);
  // With the lock, which it gives up while it waits.
  Status Wait(int root, double timeout_seconds, std::unique_lock<std::mutex>* lock);
  std::vector<Due> Dues(double timeout_seconds) const;
  bool Misses(int rank) const;
  // Returns the statement about a rank that keeps the collective from completing.
  Status Cut(int root) const;
  void Probe();
  // Names the ranks that the collective waits for, and the neighbours that have not read
  // everything. Call it after Probe.
  std::string Missing(const std::vector<uint64_t>& to_send) const;
  // Places in edges_ of neighbours that are still to take what there was to be sent.
  std::vector<int> Owed(const std::vector<uint64_t>& to_send) const;

  const Tree tree_;
  const ControlOptions options_;
  const std::vector<Socket>* const links_;
  EventFd waker_;
  std::thread thread_;
  std::mutex collective_mutex_;

  std::mutex mutex_;  // guards the members below; never held while waiting for other ranks
  std::condition_variable changed_;
  std::vector<Edge> edges_;                  // which are never more
  std::vector<std::deque<FramePtr>> inbox_;  // [rank], received, not yet read by a call
  std::vector<Statement> statements_;        // in the order in which they came
  std::vector<bool> is_stated_;              // [rank]
  std::vector<bool> is_wanted_;              // [rank], by the collective that waits
  int num_missing_ = 0;                      // of them
  std::vector<bool> is_alive_;               // [rank], has answered since the last Probe
  bool has_aborted_ = false;
  bool is_over_ = false;
  Status failure_;  // of the thread
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_CONTROL_PLANE_H_
