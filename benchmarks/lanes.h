// What benchmarks of lanes without TensorFlow share.
#ifndef TF_LIBRA_BENCHMARKS_LANES_H_
#define TF_LIBRA_BENCHMARKS_LANES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
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

// Sums over all ranks in place; blocks.
inline void AllReduce(tf_libra::Engine* engine, float* data, size_t count, int num_threads) {
  auto operation = std::make_shared<tf_libra::OperationInfo>();
  operation->num_threads = num_threads;
  operation->reduction = tf_libra::Reduction::kSum;
  operation->tensor_names = {"tensor"};
  operation->ComputeDigest();
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  tf_libra::AllReduceRequest request;
  request.operation = operation;
  request.tensors = {{data, data, count * sizeof(float)}};
  request.done = [&](const tf_libra::Status& status) {
    Require(status);
    const std::lock_guard<std::mutex> lock(mutex);
    done = true;
    wake.notify_one();
  };
  engine->AllReduce(std::move(request));
  std::unique_lock<std::mutex> lock(mutex);
  wake.wait(lock, [&] { return done; });
}

#endif  // TF_LIBRA_BENCHMARKS_LANES_H_
