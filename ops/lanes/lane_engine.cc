#include "ops/lanes/lane_engine.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <sstream>
#include <thread>
#include <utility>

namespace tf_libra {
namespace {

// How long a failing rank listens for what its peers have to say about the cause.
constexpr double kFarewellSeconds = 0.5;
// Ranks that disagree are alive, and both find out: each is worth waiting for.
constexpr double kDisagreementSeconds = 5;

// Tensors of the same names and the same sum of bytes may still be cut differently.
uint64_t WithSizes(uint64_t digest, const std::vector<TensorView>& tensors) {
  for (const TensorView& tensor : tensors) digest = (digest ^ tensor.num_bytes) * 0x100000001b3u;
  return digest;
}

// Zero stands for never, on both sides.
void KeepEarliest(std::atomic<int64_t>* earliest, int64_t nanos) {
  int64_t known = *earliest;
  while (nanos != 0 && (known == 0 || nanos < known)) {
    if (earliest->compare_exchange_weak(known, nanos)) return;
  }
}

// For small messages: comparisons before training, and rank 0's directives before a step.
StallWarning WarningOf(const LaneEngineOptions& options, int rank) {
  if (options.warn == nullptr) return {};
  return {options.stall_warning_seconds, [options, rank](const std::string& ranks) {
            std::ostringstream text;
            text << "rank " << rank << " has waited " << SecondsText(options.stall_warning_seconds)
                 << " s for rank(s) " << ranks << " before a step; still waiting";
            options.warn(text.str());
          }};
}

}  // namespace

LaneEngine::LaneEngine(const LaneEngineOptions& options, Mesh mesh)
    : options_(options),
      process_(getpid()),
      rank_(mesh.rank),
      world_size_(mesh.world_size),
      links_(std::move(mesh.links)),
      control_(mesh.rank, std::move(mesh.control), WarningOf(options, mesh.rank), &links_),
      lane_sockets_(std::move(mesh.lanes)) {
  for (size_t i = 0; i < lane_sockets_.size(); ++i) lanes_.push_back(std::make_unique<Lane>());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i]->thread = std::thread([this, i] { LaneMain(static_cast<int>(i)); });
  }
}

LaneEngine::~LaneEngine() {
  if (InForkedChild()) {
    // The threads are the parent's. What they wait on cannot be destroyed, only left.
    for (auto& lane : lanes_) static_cast<void>(lane.release());
    return;
  }
  Abort(Status(StatusCode::kUnavailable, "the engine was closed"));
  {
    // A job may just be on its way to the lanes: none of them leaves before it is through.
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return current_ == nullptr; });
  }
  for (auto& lane : lanes_) {
    {
      const std::lock_guard<std::mutex> lock(lane->mutex);
      lane->stop = true;
    }
    lane->wake.notify_one();
  }
  for (auto& lane : lanes_) lane->thread.join();
}

void LaneEngine::AllReduce(AllReduceRequest request) {
  if (InForkedChild()) return request.done(failure());
  const OperationInfo& operation = *request.operation;
  if (operation.num_threads < 1 || operation.num_threads > max_threads()) {
    request.done(
        Status(StatusCode::kInvalidArgument, "num_threads must be between 1 and the engine's " +
                                                 std::to_string(max_threads()) + " lane(s), got " +
                                                 std::to_string(operation.num_threads) + " for " +
                                                 operation.Describe()));
    return;
  }
  auto job = std::make_shared<Job>();
  job->request = std::move(request);
  job->buffers = Buffers(job->request.tensors);
  job->record.operation = job->request.operation;
  job->record.step = step_;
  job->record.num_bytes = job->buffers.num_bytes();
  job->record.enqueued_nanos = WallNanos();
  job->header.digest = WithSizes(operation.digest, job->request.tensors);
  job->header.num_bytes = job->buffers.num_bytes();
  job->header.group = operation.group;
  job->header.num_threads = static_cast<uint16_t>(operation.num_threads);
  job->header.element_type = static_cast<uint8_t>(job->request.element_type);
  job->header.reduction = static_cast<uint8_t>(operation.reduction);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(job));
  }
  StartNext();
}

void LaneEngine::StartNext() {
  for (;;) {
    std::shared_ptr<Job> job;
    Status failure;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (current_ != nullptr || queue_.empty()) return;
      job = queue_.front();
      queue_.pop_front();
      failure = failure_;
      if (failure.ok()) {
        job->header.sequence = job->record.sequence = next_sequence_++;
        current_ = job;
      }
    }
    if (!failure.ok()) {
      job->request.done(failure);
      continue;
    }
    const int num_lanes = job->request.operation->num_threads;
    job->lanes_left = num_lanes;
    for (int i = 0; i < num_lanes; ++i) {
      {
        const std::lock_guard<std::mutex> lock(lanes_[i]->mutex);
        lanes_[i]->job = job;
      }
      lanes_[i]->wake.notify_one();
    }
    return;
  }
}

void LaneEngine::LaneMain(int index) {
  // Debuggers and profilers show it; Linux keeps 15 characters.
  pthread_setname_np(pthread_self(), ("libra lane " + std::to_string(index)).substr(0, 15).c_str());
  Lane& lane = *lanes_[index];
  std::vector<char> scratch;
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock<std::mutex> lock(lane.mutex);
      lane.wake.wait(lock, [&lane] { return lane.stop || lane.job != nullptr; });
      if (lane.stop) return;
      job = std::move(lane.job);
      lane.job = nullptr;
    }
    RunSlice(index, job.get(), &scratch);
    if (job->lanes_left.fetch_sub(1) == 1) Finish(job);
  }
}

void LaneEngine::RunSlice(int index, Job* job, std::vector<char>* scratch) {
  const int64_t started_nanos = WallNanos();
  KeepEarliest(&job->started_nanos, started_nanos);
  const size_t element_size = ElementSize(job->request.element_type);
  const size_t num_lanes = static_cast<size_t>(job->request.operation->num_threads);
  ExchangeOptions options;
  options.rank = rank_;
  options.peers = &lane_sockets_[index];
  options.links = &links_;
  options.header = job->header;
  options.buffers = &job->buffers;
  options.slice = Part({0, job->buffers.num_bytes()}, element_size, num_lanes, index);
  options.timeout_seconds = options_.timeout_seconds;
  options.stall_warning_seconds = options_.stall_warning_seconds;
  if (options_.warn) {
    options.on_stall = [this, job](const std::string& ranks, double seconds) {
      if (job->warned.exchange(true)) return;  // one lane speaks for all
      options_.warn("rank " + std::to_string(rank_) + " has waited " + SecondsText(seconds) +
                    " s for rank(s) " + ranks + " in " + job->request.operation->Describe() +
                    ", step " + std::to_string(job->record.step) + "; still waiting");
    };
  }
  const ExchangeResult result = RunExchange(options, scratch);
  KeepEarliest(&job->first_byte_nanos, result.first_byte_nanos);
  if (result.status.ok()) {
    if (options_.on_lane_done) {
      options_.on_lane_done({&job->record, index, options.slice.size(), started_nanos,
                             result.first_byte_nanos, WallNanos()});
    }
    return;
  }
  if (job->failed.exchange(true)) return;
  // The first lane that fails says why, before the connections close: who sees them close finds
  // the words. That wakes the other lanes as well.
  Fail(Explain(result.status, *job));
}

void LaneEngine::Finish(const std::shared_ptr<Job>& job) {
  job->record.finished_nanos = WallNanos();
  job->record.started_nanos = job->started_nanos;
  job->record.first_byte_nanos = job->first_byte_nanos;
  if (!job->failed) telemetry_.Add(job->record);
  const Status status = job->failed ? failure() : Status();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    current_ = nullptr;
    idle_.notify_all();
  }
  job->request.done(status);
  StartNext();
}

Status LaneEngine::Explain(const Status& status, const Job& job) {
  if (Status known = failure(); !known.ok()) return known;
  std::string message = "rank " + std::to_string(rank_) + ", " + job.request.operation->Describe() +
                        ": " + status.message();
  const bool disagree = status.code() == StatusCode::kFailedPrecondition;
  // Told before listening: the other side listens for it, too.
  if (disagree) control_.Farewell(message);
  if (disagree || status.code() == StatusCode::kUnavailable) {
    const std::string words =
        control_.HearFarewells(disagree ? kDisagreementSeconds : kFarewellSeconds);
    if (!words.empty()) message += " (" + words + ")";
  }
  return Status(status.code(),
                message + "; step " + std::to_string(job.record.step) + " was not completed");
}

Status LaneEngine::EndOfMessage(const Status& status) {
  if (status.ok()) return status;
  const int64_t step = step_;
  std::ostringstream text;
  text << "rank " << rank_ << ", before ";
  if (step > 0) {
    text << "step " << step << ": " << status.message() << "; step " << step
         << " was not completed";
  } else {
    text << "the first step: " << status.message();
  }
  return Fail(Status(status.code(), text.str()));
}

bool LaneEngine::InForkedChild() const { return getpid() != process_; }

Status LaneEngine::failure() {
  if (InForkedChild()) {
    // Without a look at the mutex: a thread that is not here may hold it.
    return Status(StatusCode::kFailedPrecondition,
                  "the engine runs in the process that started it, not in one forked from it");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Status LaneEngine::Fail(const Status& cause) {
  if (InForkedChild()) return failure();  // the connections are the parent's too
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = cause;
  }
  control_.Farewell(cause.message());
  for (auto& lane : lane_sockets_) {
    for (Socket& socket : lane) socket.Shutdown();
  }
  control_.Shutdown();
  StartNext();  // ends what is queued
  return cause;
}

void LaneEngine::Abort(const Status& reason) { Fail(reason); }

Status EndWithin(std::shared_ptr<Engine> engine) {
  const double timeout_seconds = engine->timeout_seconds();
  // What a `done` leads to may be anything, the user's code included.
  std::promise<void> ended;
  const std::future<void> end = ended.get_future();
  std::thread([engine = std::move(engine), ended = std::move(ended)]() mutable {
    engine->Abort(Status(StatusCode::kUnavailable, "the engine was closed"));
    engine.reset();
    ended.set_value();
  }).detach();
  if (end.wait_for(std::chrono::duration<double>(timeout_seconds)) == std::future_status::ready) {
    return Status();
  }
  return Status(StatusCode::kDeadlineExceeded, "what follows an all-reduce has not returned for " +
                                                   SecondsText(timeout_seconds) +
                                                   " s; the engine's threads are left behind");
}

Status LaneEngine::AllGather(const std::string& mine, std::vector<std::string>* all) {
  if (Status known = failure(); !known.ok()) return known;
  Status status = control_.AllGather(mine, options_.timeout_seconds, all);
  return EndOfMessage(status);
}

Status LaneEngine::Broadcast(int root, std::string* message) {
  if (Status known = failure(); !known.ok()) return known;
  Status status = control_.Broadcast(root, options_.timeout_seconds, message);
  return EndOfMessage(status);
}

}  // namespace tf_libra
