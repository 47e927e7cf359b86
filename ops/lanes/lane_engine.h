// Engine over lanes. A lane is a thread with its own connections; it runs its slice of an
// all-reduce by RunOnGrid (grid.h), which calls RunExchange (direct_all_reduce.h) once, or along
// rows and columns, perhaps in a shorter type of elements (wire_format.h). Messages and control
// have threads of their own (messenger.h, control_plane.h).
#ifndef TF_LIBRA_OPS_LANES_LANE_ENGINE_H_
#define TF_LIBRA_OPS_LANES_LANE_ENGINE_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/all_reduce_job.h"
#include "ops/lanes/control_plane.h"
#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/engine.h"
#include "ops/lanes/lane_queue.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/messenger.h"
#include "ops/lanes/wire_format.h"

namespace tf_libra {

// One lane's part of an all-reduce.
struct LaneSpan {
  const AllReduceRecord* record = nullptr;  // of the whole; its times after `enqueued` are not set
  int lane = 0;
  uint64_t num_bytes = 0;        // of the lane's slice
  int64_t started_nanos = 0;     // since the epoch, as in `record`
  int64_t first_byte_nanos = 0;  // every peer had sent a first byte on this lane; 0 without peers
  int64_t finished_nanos = 0;
};

struct LaneEngineOptions {
  double timeout_seconds = 600;
  double stall_warning_seconds = 30;
  std::function<void(const std::string&)> warn;  // must be callable from any thread
  // Called on the lane's own thread when its part has ended well, before the all-reduce is done.
  std::function<void(const LaneSpan&)> on_lane_done;
};

class LaneEngine : public Engine {
 public:
  // ResourceExhausted: a lane's thread cannot start. The last reference to the engine ends it when
  // released: what is still running is aborted, and the lanes are joined. If that reference is
  // released on one of its own lanes, which cannot join itself, another thread does. In a process
  // forked from that of the engine only that process's copies of descriptors are closed.
  static Status Start(const LaneEngineOptions& options, Mesh mesh,
                      std::shared_ptr<LaneEngine>* engine);

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int ranks_per_host() const override { return ranks_per_host_; }
  int max_threads() const override { return num_lanes_; }
  double timeout_seconds() const override { return options_.timeout_seconds; }
  void AllReduce(AllReduceRequest request) noexcept override;
  void Send(MessageRequest request) noexcept override;
  void Receive(MessageRequest request) noexcept override;
  void Run(CollectiveRequest request) noexcept override;
  Status AwaitRead(double seconds, int* peer, std::string* name) noexcept override;
  void Flush() noexcept override;
  Status AllGather(const std::string& mine, std::vector<std::string>* all) override;
  Status Broadcast(int root, std::string* message) override;
  Status Grow(MeshOptions meeting, Socket listener, Socket local_listener) noexcept override;
  void Abort(const Status& reason) noexcept override;
  void SetStep(int64_t step) override;
  int64_t step() const override { return step_; }
  void SetOmitsZeros(bool omits_zeros) override { omits_zeros_ = omits_zeros; }
  Telemetry* telemetry() override { return &telemetry_; }

 private:
  // A failing rank waits this long for the reason that its peers give.
  static constexpr double kAbortWaitSeconds = 0.5;
  // The engine that started this thread: callbacks at the end of an all-reduce run on one.
  static inline thread_local const LaneEngine* of_this_thread_ = nullptr;

  struct Lane;
  struct Job : AllReduceJob {
    using AllReduceJob::AllReduceJob;
    std::vector<Lane*> lanes;
  };
  // A thread with its mailbox and its connections.
  struct Lane {
    int index = 0;
    GridPeers peers;
    std::mutex mutex;
    std::condition_variable wake;
    std::shared_ptr<Job> job;
    bool stop = false;
    std::thread thread;
  };
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  LaneEngine(const LaneEngineOptions& options, Mesh* mesh);
  ~LaneEngine() override;
  // Deleter for the last reference, perhaps on a lane.
  static void Delete(LaneEngine* engine) noexcept;

  // Adds lanes to the existing ones.
  Status AddLanes(std::vector<GridPeers> connections);
  static void StopAndJoin(Lanes* lanes);
  void LaneMain(Lane* lane) noexcept;
  void RunSlice(const Lane& lane, Job* job, WireScratch* scratch) noexcept;
  // Has a sum of parts gather them, or add them with zeros around the own one.
  void PrepareParts(const AllReduceRequest& request, Job* job) const;
  ExchangeResult Exchange(const Lane& lane, Job* job, WireScratch* scratch);
  // Takes the request where all that may fail is done.
  std::shared_ptr<Job> NewJob(AllReduceRequest* request);
  // InvalidArgument: the request moves owned parts, and this engine cannot.
  Status CheckOwnsParts(const AllReduceRequest& request) const;
  // Starts what of the queue has its lanes for itself; none overtakes one that it shares a lane
  // with. Called without locks held.
  void StartNext() noexcept;
  void Finish(const std::shared_ptr<Job>& job) noexcept;
  // Calls `done`, which runs TensorFlow code.
  void End(const AllReduceRequest& request, const Status& status) noexcept;
  ControlOptions OptionsOfControl();
  MessengerOptions MessagesOptions();
  void Exchange(Transfer::Way way, MessageRequest request) noexcept;
  // Calls `post(&is_over)`. If it throws, or sets is_over, then this calls `done`; otherwise the
  // posted messages do.
  template <typename Post>
  void PostMessages(const std::function<void(const Status&)>& done, Post post) noexcept;
  // Records the first cause and wakes everybody. Returns the first cause.
  Status Fail(const Status& cause) noexcept;
  Status failure() noexcept;
  // Adds the operation, its step, and the peers' reasons to a status.
  Status Explain(const Status& status, const std::string& what, int64_t step) noexcept;
  // Exchanges a small message between steps, whose failure is the end of the engine.
  template <typename Call>
  Status Message(Call exchange) noexcept;

  bool InForkedChild() const;

  const LaneEngineOptions options_;
  const pid_t process_;
  const int rank_;
  const int world_size_;
  const int ranks_per_host_;
  const std::vector<int> hosts_;  // as ranks first met
  const Grid grid_;
  std::vector<Socket> links_;  // [rank]
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Messenger> messenger_;
  std::atomic<int> num_lanes_{0};
  std::atomic<int64_t> step_{-1};
  std::atomic<bool> omits_zeros_{true};
  std::atomic<WallClock> wall_{WallClock()};  // read again in every step
  Telemetry telemetry_;

  std::mutex mutex_;  // guards the members below
  Lanes lanes_;       // grows, until there is a failure
  LaneQueue<Job> queue_;
  int num_running_ = 0;
  std::condition_variable idle_;  // num_running_ became 0
  uint64_t next_sequence_ = 0;
  Status failure_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_LANE_ENGINE_H_
