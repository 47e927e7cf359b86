// Helpers for tests of the engine: engines of ranks that are threads of one process, and
// all-reduces with known results.
#ifndef TF_LIBRA_OPS_LANES_ENGINE_TESTING_H_
#define TF_LIBRA_OPS_LANES_ENGINE_TESTING_H_

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra {
namespace testing {

using Engines = std::vector<std::shared_ptr<LaneEngine>>;

inline LaneEngineOptions Patient() {
  LaneEngineOptions options;
  options.timeout_seconds = kGenerousSeconds;
  return options;
}

inline std::shared_ptr<LaneEngine> MakeEngine(const LaneEngineOptions& options, Mesh mesh) {
  std::shared_ptr<LaneEngine> engine;
  CHECK_EQ(LaneEngine::Start(options, std::move(mesh), &engine), testing::IsOk());
  return engine;
}

inline Engines MakeEngines(std::vector<Mesh> meshes, const LaneEngineOptions& options = Patient()) {
  Engines engines;
  for (Mesh& mesh : meshes) engines.push_back(MakeEngine(options, std::move(mesh)));
  return engines;
}

struct Operation {
  std::vector<size_t> counts;  // elements of each tensor
  ElementType type = ElementType::kFloat32;
  int num_threads = 1;
  int first_lane = 0;
  Reduction reduction = Reduction::kAverage;
  std::optional<ElementType> wire_type = std::nullopt;
  bool in_place = false;
  int group = 0;
  std::string name = "tensor";

  std::shared_ptr<const OperationInfo> Info() const {
    auto info = std::make_shared<OperationInfo>();
    info->plan = "plan";
    info->group = group;
    info->num_threads = num_threads;
    info->first_lane = first_lane;
    info->reduction = reduction;
    info->wire_type = wire_type;
    info->tensor_names.assign(counts.size(), name);
    info->ComputeDigest();
    return info;
  }

  size_t num_elements() const {
    size_t total = 0;
    for (const size_t count : counts) total += count;
    return total;
  }
};

// A rank's gradients, laid end to end: finite, of mixed sizes, so that sums are rounded.
inline std::vector<char> Gradients(const Operation& operation, int rank, int seed) {
  std::mt19937 random(static_cast<uint32_t>(seed * 16 + rank));
  std::vector<char> bytes(operation.num_elements() * ElementSize(operation.type));
  for (size_t i = 0; i < operation.num_elements(); ++i) {
    const uint32_t bits = random();
    const float value = static_cast<float>(static_cast<int32_t>(bits)) / 3e6f;
    const double wide = value * 1.1;
    // Sign, an exponent from the middle of the range, any fraction.
    const uint16_t half = static_cast<uint16_t>(bits & 0xbfff) | 0x2000;
    switch (operation.type) {
      case ElementType::kFloat32:
        std::memcpy(&bytes[i * 4], &value, 4);
        break;
      case ElementType::kFloat64:
        std::memcpy(&bytes[i * 8], &wide, 8);
        break;
      default:
        std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

inline std::vector<char> Expected(const Operation& operation, int world_size, int seed) {
  std::vector<std::vector<char>> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < world_size; ++rank) {
    inputs.push_back(Gradients(operation, rank, seed));
  }
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<char> out(inputs[0].size());
  ReduceBlock(operation.type, operation.reduction, pointers, operation.num_elements(), out.data());
  return out;
}

// One call of AllReduce: its memory, and its end.
class Call {
 public:
  Call(const Operation& operation, int rank, int seed) : operation_(operation) {
    const std::vector<char> gradients = Gradients(operation, rank, seed);
    size_t at = 0;
    for (const size_t count : operation.counts) {
      const size_t size = count * ElementSize(operation.type);
      inputs_.emplace_back(gradients.begin() + at, gradients.begin() + at + size);
      outputs_.emplace_back(size, '\x55');
      at += size;
    }
  }

  void Start(LaneEngine* engine) {
    AllReduceRequest request;
    request.operation = operation_.Info();
    request.element_type = operation_.type;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      auto& output = operation_.in_place ? inputs_[i] : outputs_[i];
      request.tensors.push_back({inputs_[i].data(), output.data(), output.size()});
    }
    request.done = [this](const Status& status) {
      if (times_done_.fetch_add(1) == 0) end_.set_value(status);
    };
    engine->AllReduce(std::move(request));
  }

  // Once, after Start.
  Status Wait() { return end_.get_future().get(); }

  std::vector<char> Output() const {
    std::vector<char> flat;
    for (const auto& tensor : operation_.in_place ? inputs_ : outputs_) {
      flat.insert(flat.end(), tensor.begin(), tensor.end());
    }
    return flat;
  }

  int times_done() const { return times_done_; }

 private:
  const Operation operation_;
  std::vector<std::vector<char>> inputs_, outputs_;
  std::promise<Status> end_;
  std::atomic<int> times_done_{0};
};

inline Status AllReduce(LaneEngine* engine, const Operation& operation, int seed = 0,
                        std::vector<char>* output = nullptr) {
  Call call(operation, engine->rank(), seed);
  call.Start(engine);
  const Status status = call.Wait();
  if (output != nullptr) *output = call.Output();
  return status;
}

// All-reduces that are through, on all ranks.
class Count {
 public:
  void Add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // After this, others are under way.
  void WaitFor(int count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Many all-reduces until one fails; returns how.
inline Status ReduceUntilItEnds(LaneEngine* engine, const Operation& operation, Count* through) {
  for (;;) {
    const Status status = AllReduce(engine, operation);
    if (!status.ok()) return status;
    through->Add();
  }
}

inline Operation Small() {
  Operation operation;
  operation.counts = {50000, 1};
  operation.num_threads = 2;
  return operation;
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_ENGINE_TESTING_H_
