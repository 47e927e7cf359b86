#include "ops/lanes/lane_engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <thread>
#include <utility>

namespace tf_libra {
namespace {

// Set on the engine's threads. What is called at the end of an all-reduce runs on one.
thread_local const LaneEngine* engine_of_this_thread = nullptr;

// How long a failing rank listens for what its peers have to say about the cause.
constexpr double kFarewellSeconds = 0.5;
// Ranks that disagree are alive, and both find out: each is worth waiting for.
constexpr double kDisagreementSeconds = 5;

Status Closed() { return Status(StatusCode::kUnavailable, "the engine was closed"); }

}  // namespace

Status LaneEngine::Start(const LaneEngineOptions& options, Mesh mesh,
                         std::shared_ptr<LaneEngine>* engine) {
  try {
    if (!mesh.unshared.ok() && options.warn) {
      options.warn("rank " + std::to_string(mesh.rank) +
                   " cannot share memory with ranks of its host (" + mesh.unshared.message() +
                   "); lanes and messages go over Unix sockets, which cost more CPU time");
    }
    std::vector<GridPeers> connections = std::move(mesh.lanes);
    std::shared_ptr<LaneEngine> started(new LaneEngine(options, &mesh), Delete);
    Status status = started->control_->Start();
    if (status.ok()) status = started->AddLanes(std::move(connections));
    if (status.ok()) {
      *engine = std::move(started);
    } else {
      started->Abort(status);  // the others are to know why
    }
    return status;
  } catch (...) {
    return CaughtStatus("the engine cannot start");
  }
}

LaneEngine::LaneEngine(const LaneEngineOptions& options, Mesh* mesh)
    : options_(options),
      process_(getpid()),
      rank_(mesh->rank),
      world_size_(mesh->world_size),
      ranks_per_host_(mesh->ranks_per_host),
      hosts_(std::move(mesh->hosts)),
      grid_(std::move(mesh->grid)),
      links_(std::move(mesh->links)),
      control_(std::make_unique<ControlPlane>(std::move(mesh->tree), std::move(mesh->control),
                                              OptionsOfControl(), &links_)),
      messenger_(
          std::make_unique<Messenger>(MessagesOptions(), std::move(mesh->messages), &links_)) {}

LaneEngine::~LaneEngine() {
  if (InForkedChild()) {
    // The threads are the parent's. What they wait on cannot be destroyed, only left.
    for (auto& lane : lanes_) static_cast<void>(lane.release());
    static_cast<void>(messenger_.release());
    static_cast<void>(control_.release());
    return;
  }
  Abort(Closed());
  {
    // A job may just be on its way to the lanes: none of them leaves before it is through.
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [this] { return num_running_ == 0; });
  }
  StopAndJoin(&lanes_);
  // While all that they may call is there.
  messenger_->Join();
  control_->Join();
}

void LaneEngine::Delete(LaneEngine* engine) noexcept {
  if (engine_of_this_thread != engine) {
    delete engine;
    return;
  }
  engine->Abort(Closed());
  try {
    std::thread([engine] { delete engine; }).detach();
  } catch (...) {
    // It has ended, and only its memory and its sleeping threads are left behind.
  }
}

Status LaneEngine::AddLanes(std::vector<GridPeers> connections) {
  Lanes added;
  Status status;
  try {
    added.reserve(connections.size());
    for (GridPeers& peers : connections) {
      added.push_back(std::make_unique<Lane>());
      Lane* const lane = added.back().get();
      lane->index = num_lanes_ + static_cast<int>(added.size()) - 1;
      lane->peers = std::move(peers);
      status = WatchPeers(grid_, &links_, &lane->peers);
      if (!status.ok()) break;
      lane->thread = std::thread([this, lane] { LaneMain(lane); });
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status.ok()) status = failure_;
    if (status.ok()) {
      lanes_.reserve(lanes_.size() + added.size());
      queue_.Add(static_cast<int>(added.size()));
      for (auto& lane : added) lanes_.push_back(std::move(lane));
      num_lanes_ = static_cast<int>(lanes_.size());
      return status;
    }
  } catch (...) {
    char what[64];
    std::snprintf(what, sizeof(what), "the thread of lane %d of %d cannot start",
                  num_lanes_ + static_cast<int>(added.size()),
                  num_lanes_ + static_cast<int>(connections.size()));
    status = CaughtStatus(what);
  }
  StopAndJoin(&added);
  return status;
}

void LaneEngine::StopAndJoin(Lanes* lanes) {
  for (auto& lane : *lanes) {
    {
      const std::lock_guard<std::mutex> lock(lane->mutex);
      lane->stop = true;
    }
    lane->wake.notify_one();
  }
  for (auto& lane : *lanes) {
    if (lane->thread.joinable()) lane->thread.join();  // else it could not start
  }
}

void LaneEngine::SetStep(int64_t step) {
  step_ = step;
  wall_ = WallClock();
}

std::shared_ptr<LaneEngine::Job> LaneEngine::NewJob(AllReduceRequest* request) {
  auto job = std::make_shared<Job>(*request, step_, wall_, grid_.has_rows());
  job->lanes.resize(request->operation->num_threads);
  job->request = std::move(*request);
  return job;
}

void LaneEngine::AllReduce(AllReduceRequest request) noexcept {
  if (InForkedChild()) return End(request, failure());
  std::shared_ptr<Job> job;
  Status refused;
  try {
    refused = CheckLanes(*request.operation, max_threads());
    if (refused.ok()) {
      job = NewJob(&request);
      const std::lock_guard<std::mutex> lock(mutex_);
      job->header.sequence = job->record.sequence = next_sequence_;
      const LaneRange range = job->range();
      for (int i = 0; i < range.count; ++i) job->lanes[i] = lanes_[range.first + i].get();
      queue_.Push(range, job);
      ++next_sequence_;
    }
  } catch (...) {
    // The other ranks are not to wait for it.
    refused = Fail(CaughtStatus("an all-reduce cannot start"));
  }
  if (!refused.ok()) return End(job == nullptr ? request : job->request, refused);
  StartNext();
}

void LaneEngine::StartNext() noexcept {
  for (;;) {
    std::shared_ptr<Job> job;
    Status failure;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (queue_.empty()) return;
      failure = failure_;
      if (failure.ok()) {
        job = queue_.TakeNext();
        if (job == nullptr) return;
        ++num_running_;
      } else {
        job = queue_.TakeFirst();
      }
    }
    if (!failure.ok()) {
      End(job->request, failure);
      continue;
    }
    job->lanes_left = static_cast<int>(job->lanes.size());
    for (Lane* const lane : job->lanes) {
      {
        const std::lock_guard<std::mutex> lock(lane->mutex);
        lane->job = job;
      }
      lane->wake.notify_one();
    }
  }
}

void LaneEngine::LaneMain(Lane* lane) noexcept {
  engine_of_this_thread = this;
  // Debuggers and profilers show it; Linux keeps 15 characters.
  char name[16];
  std::snprintf(name, sizeof(name), "libra lane %d", lane->index);
  pthread_setname_np(pthread_self(), name);
  std::vector<char> scratch;
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock<std::mutex> lock(lane->mutex);
      lane->wake.wait(lock, [lane] { return lane->stop || lane->job != nullptr; });
      if (lane->stop) return;
      job = std::move(lane->job);
      lane->job = nullptr;
    }
    RunSlice(*lane, job.get(), &scratch);
    if (job->lanes_left.fetch_sub(1) == 1) Finish(job);
  }
}

ExchangeResult LaneEngine::Exchange(const Lane& lane, Job* job, std::vector<char>* scratch) {
  const int64_t started_nanos = SteadyNanos();
  job->Began(started_nanos);
  const size_t element_size = ElementSize(job->request.element_type);
  const size_t num_lanes = job->lanes.size();
  ExchangeOptions options;
  options.links = &links_;
  options.header = job->header;
  options.buffers = &job->buffers;
  options.slice = Part({0, job->buffers.num_bytes()}, element_size, num_lanes,
                       lane.index - job->record.operation->first_lane);
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
  ExchangeResult result = RunOnGrid(options, grid_, lane.peers, job->in_place, scratch);
  job->HeardAll(result.first_byte_nanos);
  if (result.status.ok() && options_.on_lane_done) {
    options_.on_lane_done({&job->record, lane.index, options.slice.size(),
                           job->wall.At(started_nanos), job->wall.At(result.first_byte_nanos),
                           job->wall.Nanos()});
  }
  return result;
}

void LaneEngine::RunSlice(const Lane& lane, Job* job, std::vector<char>* scratch) noexcept {
  // After a failure nothing is begun: in shared memory, which does not close, it could go well, and
  // the others would have what this rank has given up.
  Status status = failure();
  try {
    if (status.ok()) status = Exchange(lane, job, scratch).status;
  } catch (...) {
    status = CaughtStatus("a lane cannot go on");
  }
  if (status.ok() || job->failed.exchange(true)) return;
  // The first lane that fails says why, before the connections close: who sees them close finds
  // the words. That wakes the other lanes as well.
  try {
    status = Explain(status, job->request.operation->Describe(), job->record.step);
  } catch (...) {  // no memory for the words
  }
  Fail(status);
}

void LaneEngine::Finish(const std::shared_ptr<Job>& job) noexcept {
  job->Ended();
  if (!job->failed) telemetry_.Add(job->record);
  const Status status = job->failed ? failure() : Status();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.Free(job->range());
    --num_running_;
    idle_.notify_all();
  }
  // The lanes go on before this thread does what follows.
  StartNext();
  End(job->request, status);
}

void LaneEngine::End(const AllReduceRequest& request, const Status& status) noexcept {
  try {
    request.done(status);
  } catch (...) {
    Fail(CaughtStatus("what follows an all-reduce has failed"));
  }
}

ControlOptions LaneEngine::OptionsOfControl() {
  ControlOptions options;
  options.stall_warning_seconds = options_.stall_warning_seconds;
  if (options_.warn) {
    options.warn = [this](const std::string& ranks) {
      options_.warn("rank " + std::to_string(rank_) + " has waited " +
                    SecondsText(options_.stall_warning_seconds) + " s for rank(s) " + ranks +
                    " before a step; still waiting");
    };
  }
  options.on_thread = [this] { engine_of_this_thread = this; };
  options.on_failure = [this](const Status& status) { Fail(status); };
  return options;
}

MessengerOptions LaneEngine::MessagesOptions() {
  MessengerOptions options;
  options.rank = rank_;
  options.timeout_seconds = options_.timeout_seconds;
  options.stall_warning_seconds = options_.stall_warning_seconds;
  options.warn = options_.warn;
  options.on_thread = [this] { engine_of_this_thread = this; };
  options.on_failure = [this](const Status& status) { Fail(Explain(status, "messages", step_)); };
  return options;
}

Status LaneEngine::Explain(const Status& status, const std::string& what, int64_t step) noexcept {
  if (Status known = failure(); !known.ok()) return known;
  try {
    std::string message = "rank " + std::to_string(rank_) + ", " + what + ": " + status.message();
    const bool disagree = status.code() == StatusCode::kFailedPrecondition;
    // Sent before listening: the other side listens for it, too.
    if (disagree) control_->Farewell(message);
    // A rank that was stopped finds itself late with all that it waits for: the others know why.
    const bool is_late = status.code() == StatusCode::kDeadlineExceeded;
    if (disagree || is_late || status.code() == StatusCode::kUnavailable) {
      const std::string words = control_->HearFarewells(
          std::min(disagree ? kDisagreementSeconds : kFarewellSeconds, options_.timeout_seconds));
      if (!words.empty()) message += " (" + words + ")";
    }
    if (step >= 0) message += "; step " + std::to_string(step) + " was not completed";
    return Status(status.code(), std::move(message));
  } catch (...) {  // no memory for more words
    return status;
  }
}

template <typename Call>
Status LaneEngine::Message(Call exchange) noexcept {
  if (Status known = failure(); !known.ok()) return known;
  Status status;
  try {
    status = exchange();
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
    status = Status(status.code(), text.str());
  } catch (...) {
    if (status.ok()) status = CaughtStatus("a message cannot be exchanged");
  }
  return Fail(status);
}

bool LaneEngine::InForkedChild() const { return getpid() != process_; }

Status LaneEngine::failure() noexcept {
  if (InForkedChild()) {
    // Without a look at the mutex: a thread that is not here may hold it.
    return Status(StatusCode::kFailedPrecondition,
                  "the engine runs in the process that started it, not in one forked from it");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

Status LaneEngine::Fail(const Status& cause) noexcept {
  if (InForkedChild()) return failure();  // the connections are the parent's too
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failure_.ok()) return failure_;
    failure_ = cause;
  }
  control_->Farewell(cause.message());
  for (auto& lane : lanes_) {  // which grow no more
    for (Connection& connection : lane->peers.row) connection.Shutdown();
    for (Connection& connection : lane->peers.column) connection.Shutdown();
  }
  control_->Shutdown();
  messenger_->End(cause);
  StartNext();  // ends what is queued
  return cause;
}

void LaneEngine::Abort(const Status& reason) noexcept { Fail(reason); }

Status LaneEngine::AllGather(const std::string& mine, std::vector<std::string>* all) {
  return Message([&] { return control_->AllGather(mine, options_.timeout_seconds, all); });
}

Status LaneEngine::Broadcast(int root, std::string* message) {
  return Message([&] { return control_->Broadcast(root, options_.timeout_seconds, message); });
}

Status LaneEngine::Grow(MeshOptions meeting, Socket listener, Socket local_listener) noexcept {
  if (Status known = failure(); !known.ok()) return known;
  const bool fits = meeting.addresses.size() == static_cast<size_t>(world_size_);
  if (!fits || meeting.num_lanes <= num_lanes_) {
    return Status(StatusCode::kInvalidArgument,
                  "an engine grows to more lanes than it has, between the same ranks");
  }
  Status status;
  try {
    meeting.rank = rank_;
    meeting.first_lane = num_lanes_;
    meeting.timeout_seconds = options_.timeout_seconds;
    meeting.interrupted = [this] {
      Status known = failure();
      return known.ok() ? control_->Standing() : known;
    };
    Mesh mesh;
    // Lanes run on the grid of the engine, which follows from the hosts.
    const std::string difference = DifferenceOfHosts(hosts_, meeting.hosts);
    if (!difference.empty()) status = Status(StatusCode::kFailedPrecondition, difference);
    if (status.ok()) {
      status = ConnectMesh(meeting, std::move(listener), &mesh, std::move(local_listener));
    }
    if (status.ok()) status = AddLanes(std::move(mesh.lanes));
    if (status.ok()) return status;
    if (Status known = failure(); !known.ok()) return known;
    std::string text = "rank " + std::to_string(rank_) + ", while lanes " +
                       std::to_string(meeting.first_lane + 1) + " to " +
                       std::to_string(meeting.num_lanes) + " are added: " + status.message();
    if (status.code() == StatusCode::kUnavailable) {
      const std::string words = control_->HearFarewells(kFarewellSeconds);
      if (text.find(words) == std::string::npos) text += " (" + words + ")";
    }
    status = Status(status.code(), std::move(text));
  } catch (...) {
    if (status.ok()) status = CaughtStatus("no lanes can be added");
  }
  return Fail(status);
}

}  // namespace tf_libra
