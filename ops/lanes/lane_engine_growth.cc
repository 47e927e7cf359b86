// Lanes that are added to an engine, at its start and later.
#include <cstdio>
#include <string>
#include <utility>

#include "ops/lanes/lane_engine.h"

namespace tf_libra {

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
      return known.ok() ? control_->PeerStatus() : known;
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
      const std::string words = control_->WaitForAborts(kAbortWaitSeconds);
      if (text.find(words) == std::string::npos) text += " (" + words + ")";
    }
    status = Status(status.code(), std::move(text));
  } catch (...) {
    if (status.ok()) status = CaughtStatus("no lanes can be added");
  }
  return Fail(status);
}

}  // namespace tf_libra
