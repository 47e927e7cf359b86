#include "ops/c_api.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ops/c_api_results.h"
#include "ops/engine_slot.h"
#include "ops/horovod_executor.h"
#include "ops/lanes/engine_shutdown.h"
#include "ops/lanes/lane_engine.h"
#include "ops/lanes/mesh.h"
#include "ops/lanes/owned_parts.h"
#include "ops/lanes/socket.h"
#include "ops/pending_gathers.h"
#include "ops/profiler_events.h"
#include "ops/step_backups.h"

namespace tf_libra {
namespace {

// An end of the process waits this long for the last gathers.
constexpr double kLastGatherSeconds = 30;

// The listeners between TfLibraListen and TfLibraConnect.
struct Listeners {
  Socket to_all, local;
};
struct ListenerSlot {
  std::mutex mutex;
  Listeners listeners;
};

ListenerSlot& WaitingListeners() {
  static ListenerSlot* const slot = new ListenerSlot;
  return *slot;
}

Status TakeListeners(Listeners* listeners) {
  ListenerSlot& waiting = WaitingListeners();
  const std::lock_guard<std::mutex> lock(waiting.mutex);
  *listeners = std::exchange(waiting.listeners, Listeners());
  if (listeners->to_all.valid()) return Status();
  return Status(StatusCode::kFailedPrecondition, "call TfLibraListen first");
}

MeshOptions MeshOptionsFor(int world_size, const char* const* hosts, const int* ports,
                           const char* const* machines, const char* const* local_hosts,
                           const uint8_t* secret, int num_lanes) {
  MeshOptions options;
  std::map<std::string, int> numbers;
  for (int i = 0; i < world_size; ++i) {
    options.addresses.push_back({hosts[i], static_cast<uint16_t>(ports[i])});
    if (machines == nullptr || local_hosts == nullptr) continue;
    const std::string machine = machines[i];
    options.hosts.push_back(machine.empty()
                                ? tf_libra::kUnknownHost
                                : numbers.emplace(machine, numbers.size()).first->second);
    options.local_addresses.push_back({local_hosts[i], 0});
  }
  std::memcpy(options.secret.data(), secret, options.secret.size());
  options.num_lanes = num_lanes;
  return options;
}

}  // namespace
}  // namespace tf_libra

using tf_libra::ActiveEngine;
using tf_libra::ExchangeActiveEngine;
using tf_libra::Guarded;
using tf_libra::last_error;
using tf_libra::NotRunning;
using tf_libra::returned_text;
using tf_libra::Status;
using tf_libra::StatusCode;

extern "C" {

const char* TfLibraLastError() { return last_error.message().c_str(); }

int TfLibraInterfaceAddress(const char* interface_name, const char** host) {
  return Guarded([&] {
    const Status status = tf_libra::InterfaceAddress(interface_name, &returned_text);
    *host = returned_text.c_str();
    return status;
  });
}

int TfLibraListen(const char* host, int first_port, int last_port, int is_additional,
                  const char** bound_host, int* port) {
  return Guarded([&] {
    tf_libra::Socket listener;
    tf_libra::Address bound;
    const Status status =
        tf_libra::ListenWithin(host, static_cast<uint16_t>(first_port),
                               static_cast<uint16_t>(last_port), &listener, &bound);
    if (status.ok()) {
      tf_libra::ListenerSlot& waiting = tf_libra::WaitingListeners();
      const std::lock_guard<std::mutex> lock(waiting.mutex);
      if (is_additional == 0) waiting.listeners = tf_libra::Listeners();
      (is_additional == 0 ? waiting.listeners.to_all : waiting.listeners.local) =
          std::move(listener);
      returned_text = bound.host;
      *bound_host = returned_text.c_str();
      *port = bound.port;
    }
    return status;
  });
}

int TfLibraConnect(int rank, int world_size, const char* const* hosts, const int* ports,
                   const char* const* machines, const char* const* local_hosts,
                   const uint8_t* secret, int num_lanes, double timeout_seconds,
                   double stall_warning_seconds, double liveness_seconds) {
  return Guarded([&] {
    if (ActiveEngine() != nullptr) {
      return Status(StatusCode::kFailedPrecondition,
                    "an engine is running in this process; close it first");
    }
    tf_libra::PendingGathers::Global().ForgetFailure();
    tf_libra::StepBackups::Global().Reset();
    auto options = tf_libra::MeshOptionsFor(world_size, hosts, ports, machines, local_hosts, secret,
                                            num_lanes);
    options.rank = rank;
    options.timeout_seconds = timeout_seconds;
    options.liveness_seconds = liveness_seconds;
    tf_libra::Listeners listeners;
    Status status = tf_libra::TakeListeners(&listeners);
    tf_libra::Mesh mesh;
    if (status.ok()) {
      status = tf_libra::ConnectMesh(options, std::move(listeners.to_all), &mesh,
                                     std::move(listeners.local));
    }
    if (!status.ok()) return status;
    tf_libra::LaneEngineOptions engine_options;
    engine_options.timeout_seconds = timeout_seconds;
    engine_options.stall_warning_seconds = stall_warning_seconds;
    // Not to TensorFlow's log, which most scripts silence. In one call: one line.
    engine_options.warn = [](const std::string& text) {
      std::fputs(("tf_libra: WARNING: " + text + "\n").c_str(), stderr);
    };
    engine_options.on_lane_done = tf_libra::ShowInProfiler;
    std::shared_ptr<tf_libra::LaneEngine> engine;
    status = tf_libra::LaneEngine::Start(engine_options, std::move(mesh), &engine);
    if (status.ok()) ExchangeActiveEngine(std::move(engine));
    return status;
  });
}

int TfLibraGrow(const char* const* hosts, const int* ports, const char* const* machines,
                const char* const* local_hosts, const uint8_t* secret, int num_lanes) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    tf_libra::Listeners listeners;
    const Status status = tf_libra::TakeListeners(&listeners);
    if (!status.ok()) return status;
    return engine->Grow(tf_libra::MeshOptionsFor(engine->world_size(), hosts, ports, machines,
                                                 local_hosts, secret, num_lanes),
                        std::move(listeners.to_all), std::move(listeners.local));
  });
}

int TfLibraEngineInfo(int* rank, int* world_size, int* ranks_per_host, int* num_lanes) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    *rank = engine->rank();
    *world_size = engine->world_size();
    *ranks_per_host = engine->ranks_per_host();
    *num_lanes = engine->max_threads();
    return Status();
  });
}

int TfLibraAllGather(const char* message, int64_t num_bytes, const char** all,
                     int64_t* all_num_bytes) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    std::vector<std::string> messages;
    const Status status = engine->AllGather(std::string(message, num_bytes), &messages);
    returned_text = tf_libra::WithLengths(messages);
    *all = returned_text.data();
    *all_num_bytes = static_cast<int64_t>(returned_text.size());
    return status;
  });
}

int TfLibraBroadcast(const char* message, int64_t num_bytes, const char** received,
                     int64_t* received_num_bytes) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    returned_text.assign(message, num_bytes);
    const Status status = engine->Broadcast(0, &returned_text);
    *received = returned_text.data();
    *received_num_bytes = static_cast<int64_t>(returned_text.size());
    return status;
  });
}

int TfLibraAwaitRead(double seconds, int* peer, const char** name) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    const Status status = engine->AwaitRead(seconds, peer, &returned_text);
    *name = returned_text.c_str();
    return status;
  });
}

int TfLibraSetStep(int64_t step) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine != nullptr) {
      engine->SetStep(step);
    } else if (tf_libra::HorovodJob::Global().is_running()) {
      tf_libra::HorovodJob::Global().SetStep(step);
    } else {
      return NotRunning();
    }
    return Status();
  });
}

int64_t TfLibraOwnedBegin(int64_t num_elements, int world_size, int rank) {
  if (rank == world_size) return num_elements;
  return tf_libra::OwnedElements(num_elements, world_size, rank).begin;
}

int TfLibraOmitZeros(int omits_zeros) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    engine->SetOmitsZeros(omits_zeros != 0);
    return Status();
  });
}

int TfLibraDrainTelemetry(const char** json) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    uint64_t dropped = 0;
    const auto records = engine->telemetry()->Drain(&dropped);
    returned_text = tf_libra::TelemetryJson(records, dropped);
    *json = returned_text.c_str();
    return Status();
  });
}

int TfLibraAbort(const char* reason) {
  return Guarded([&] {
    const auto engine = ActiveEngine();
    if (engine == nullptr) return NotRunning();
    engine->Abort(Status(StatusCode::kUnavailable, reason));
    return Status();
  });
}

int TfLibraClose(const char* why) {
  return Guarded([&] {
    // Other ranks need the parts of weights that this rank still sends. A failure ends all waits.
    tf_libra::PendingGathers::Global().AwaitAll(tf_libra::kLastGatherSeconds);
    // Another thread may be waiting in a collective, and holds the engine until that wait ends.
    auto engine = ExchangeActiveEngine(nullptr);
    if (engine == nullptr) return Status();
    return tf_libra::EndWithin(std::move(engine), why);
  });
}

int TfLibraStartHorovod(int rank, int world_size) {
  return Guarded([&] {
    tf_libra::HorovodJob::Global().Start(rank, world_size);
    return Status();
  });
}

int TfLibraFailHorovod(const char* reason) {
  return Guarded([&] {
    tf_libra::HorovodJob::Global().Fail(Status(StatusCode::kUnavailable, reason));
    return Status();
  });
}

int TfLibraStopHorovod() {
  return Guarded([] {
    tf_libra::HorovodJob::Global().Stop();
    return Status();
  });
}

}  // extern "C"
