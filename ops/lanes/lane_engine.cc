#include "ops/lanes/lane_engine.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <thread>
#include <utility>

namespace tf_libra {
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

void LaneEngine::SetStep(int64_t step) {
  step_ = step;
  wall_ = WallClock();
}

std::shared_ptr<LaneEngine::Job> LaneEngine::NewJob(AllReduceRequest* request) {
  auto job = std::make_shared<Job>(*request, step_, wall_, grid_.has_rows());
  job->lanes.resize(request->operation->num_threads);
  if (!request->parts.empty()) {
    PrepareParts(*request, job.get());
  } else if (request->steps != ExchangeSteps::kAll) {
    job->owned = LayOutByOwner(request->tensors, ElementSize(request->element_type),
                               job->lanes.size(), world_size_, rank_, request->steps);
  }
  job->request = std::move(*request);
  return job;
}

Status LaneEngine::CheckOwnsParts(const AllReduceRequest& request) const {
  const OperationInfo& operation = *request.operation;
  if (grid_.has_rows()) {
    return Status(StatusCode::kInvalidArgument,
                  "ranks own parts only if all exchange directly, not in two levels; got " +
                      operation.Describe());
  }
  if (operation.WireType(request.element_type) != request.element_type) {
    return Status(StatusCode::kInvalidArgument,
                  "ranks own parts only of tensors that travel in their own dtype; got " +
                      operation.Describe());
  }
  return Status();
}

void LaneEngine::AllReduce(AllReduceRequest request) noexcept {
  if (InForkedChild()) return End(request, failure());
  std::shared_ptr<Job> job;
  Status refused;
  try {
    refused = CheckLanes(*request.operation, max_threads());
    if (refused.ok() && request.steps != ExchangeSteps::kAll) refused = CheckOwnsParts(request);
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
  of_this_thread_ = this;
  // Debuggers and profilers show it; Linux keeps 15 characters.
  char name[16];
  std::snprintf(name, sizeof(name), "libra lane %d", lane->index);
  pthread_setname_np(pthread_self(), name);
  WireScratch scratch;
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

void LaneEngine::PrepareParts(const AllReduceRequest& request, Job* job) const {
  job->header.reduction = static_cast<uint8_t>(Reduction::kSum);
  const std::vector<ByteRange>& parts = request.parts;
  const TensorView& tensor = request.tensors.front();
  size_t largest = 0;
  for (const ByteRange& part : parts) largest = std::max(largest, part.size());
  const bool is_whole = request.operation->WireType(request.element_type) == request.element_type;
  // A rank sends its part to each of the others, or 2 (N - 1) / N of all parts to sum them.
  if (is_whole && !grid_.has_rows() && parts.size() * largest <= 2 * tensor.num_bytes) {
    job->steps = ExchangeSteps::kAllGather;
    job->owned =
        LayOutParts(tensor, parts, ElementSize(request.element_type), job->lanes.size(), rank_);
    job->record.num_bytes = parts.size() * largest / 2;
    return;
  }
  if (tensor.num_bytes == 0) return;
  char* const data = static_cast<char*>(tensor.output);
  const ByteRange own = parts[rank_];
  std::memset(data, 0, own.begin);
  const size_t own_count = own.size() / ElementSize(request.element_type);
  Divide(request.element_type, request.part_divisor, tensor.input, own_count, data + own.begin);
  std::memset(data + own.end, 0, tensor.num_bytes - own.end);
  job->buffers = Buffers({{data, data, tensor.num_bytes}});
}

ExchangeResult LaneEngine::Exchange(const Lane& lane, Job* job, WireScratch* scratch) {
  const int64_t started_nanos = SteadyNanos();
  const int64_t started_cpu_nanos = ThreadCpuNanos();
  job->Began(started_nanos);
  const size_t element_size = ElementSize(job->request.element_type);
  const size_t num_lanes = job->lanes.size();
  ExchangeOptions options;
  options.links = &links_;
  options.header = job->header;
  options.buffers = &job->buffers;
  options.slice = Part({0, job->buffers.num_bytes()}, element_size, num_lanes,
                       lane.index - job->record.operation->first_lane);
  if (job->steps != ExchangeSteps::kAll) {
    const int index = lane.index - job->record.operation->first_lane;
    options.steps = job->steps;
    if (!job->request.parts.empty()) options.own_divisor = job->request.part_divisor;
    options.buffers = &job->owned.buffers;
    options.slice = job->owned.slices[index];
    options.chunks = &job->owned.chunks[index];
  }
  options.timeout_seconds = options_.timeout_seconds;
  options.stall_warning_seconds = options_.stall_warning_seconds;
  // Weights have no blocks of zeros to look for, and slots are seldom gathered.
  options.omits_zeros = omits_zeros_ && job->request.steps != ExchangeSteps::kAllGather;
  if (options_.warn) {
    options.on_stall = [this, job](const std::string& ranks, double seconds) {
      if (job->warned.exchange(true)) return;  // one lane speaks for all
      options_.warn("rank " + std::to_string(rank_) + " has waited " + SecondsText(seconds) +
                    " s for rank(s) " + ranks + " in " + job->request.operation->Describe() +
                    ", step " + std::to_string(job->record.step) + "; still waiting");
    };
  }
  const ElementType type = job->request.element_type;
  // Nothing of a rank alone travels.
  const bool is_rounded = world_size_ > 1 && job->request.operation->WireType(type) != type;
  if (!is_rounded) options.header.element_type = static_cast<uint8_t>(type);
  ExchangeResult result =
      is_rounded ? RunInWireFormat(options, job->errors, grid_, lane.peers, scratch)
                 : RunOnGrid(options, grid_, lane.peers, job->in_place, &scratch->blocks);
  job->HeardAll(result.first_byte_nanos);
  job->Sent(result.num_sent, result.num_omitted);
  job->UsedCores(ThreadCpuNanos() - started_cpu_nanos);
  if (result.status.ok() && options_.on_lane_done) {
    options_.on_lane_done({&job->record, lane.index, options.slice.size(),
                           job->wall.At(started_nanos), job->wall.At(result.first_byte_nanos),
                           job->wall.Nanos()});
  }
  return result;
}

void LaneEngine::RunSlice(const Lane& lane, Job* job, WireScratch* scratch) noexcept {
  // After a failure nothing is begun: in shared memory, which does not close, it could go well, and
  // the others would have what this rank has given up.
  Status status = failure();
  try {
    if (status.ok()) status = Exchange(lane, job, scratch).status;
  } catch (...) {
    status = CaughtStatus("a lane failed");
  }
  if (status.ok() || job->failed.exchange(true)) return;
  // The first lane that fails sends the reason before the connections close, so peers that see them
  // close find it. Closing also wakes the other lanes.
  try {
    status = Explain(status, job->request.operation->Describe(), job->record.step);
  } catch (...) {  // no memory for the words
  }
  Fail(status);
}

void LaneEngine::Finish(const std::shared_ptr<Job>& job) noexcept {
  job->Ended();
  // A reduce-scatter counts as the all-reduce of its gradients.
  if (!job->failed) telemetry_.Add(job->record);
  const Status status = job->failed ? failure() : Status();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.Free(job->range());
    --num_running_;
    idle_.notify_all();
  }
  // The lanes continue before this thread runs the callback.
  StartNext();
  End(job->request, status);
}

void LaneEngine::End(const AllReduceRequest& request, const Status& status) noexcept {
  try {
    request.done(status);
  } catch (...) {
    Fail(CaughtStatus("the callback of an all-reduce failed"));
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

Status LaneEngine::AllGather(const std::string& mine, std::vector<std::string>* all) {
  return Message([&] { return control_->AllGather(mine, options_.timeout_seconds, all); });
}

Status LaneEngine::Broadcast(int root, std::string* message) {
  return Message([&] { return control_->Broadcast(root, options_.timeout_seconds, message); });
}

}  // namespace tf_libra
