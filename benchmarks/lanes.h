// What benchmarks of lanes without TensorFlow share.
#ifndef TF_LIBRA_BENCHMARKS_LANES_H_
#define TF_LIBRA_BENCHMARKS_LANES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "ops/lanes/lane_engine.h"

// Ends the program where something has failed.
inline void Require(const tf_libra::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// Calls `start` with a callback, and blocks until the callback is called.
template <typename Start>
void Block(Start start) {
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  start([&](const tf_libra::Status& status) {
    Require(status);
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
    wake.notify_one();
  });
  std::unique_lock<std::mutex> lock(mutex);
  wake.wait(lock, [&] { return done; });
}

inline std::shared_ptr<const tf_libra::OperationInfo> MakeOperation(tf_libra::Reduction reduction,
                                                                    int num_threads) {
  auto operation = std::make_shared<tf_libra::OperationInfo>();
  operation->num_threads = num_threads;
  operation->reduction = reduction;
  operation->tensor_names = {"tensor"};
  operation->ComputeDigest();
  return operation;
}

// All-reduces `input` into `output`, which may be the same memory; blocks.
inline void AllReduce(tf_libra::Engine* engine,
                      std::shared_ptr<const tf_libra::OperationInfo> operation,
                      tf_libra::ElementType type, const void* input, void* output,
                      size_t num_bytes) {
  Block([&](std::function<void(const tf_libra::Status&)> done) {
    tf_libra::AllReduceRequest request;
    request.operation = std::move(operation);
    request.element_type = type;
    request.tensors = {{input, output, num_bytes}};
    request.done = std::move(done);
    engine->AllReduce(std::move(request));
  });
}

// Sums over all ranks in place; blocks.
inline void AllReduce(tf_libra::Engine* engine, float* data, size_t count, int num_threads) {
  AllReduce(engine, MakeOperation(tf_libra::Reduction::kSum, num_threads),
            tf_libra::ElementType::kFloat32, data, data, count * sizeof(float));
}

#endif  // TF_LIBRA_BENCHMARKS_LANES_H_
