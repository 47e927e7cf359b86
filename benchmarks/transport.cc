// One all-reduce after the other between two processes on one host, by TF-Libra's lanes through
// shared memory, over Unix sockets and over TCP, and by Gloo with the same number of connections,
// alone and overlapping computation on the same core. One round over all cases.
// benchmarks/transport.py starts this program and defines the columns that it prints.
#ifdef TF_LIBRA_WITH_GLOO
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/forked_ranks.h"
#include "benchmarks/lanes.h"
#include "ops/lanes/lane_engine.h"

namespace {

using tf_libra::Clock;
using tf_libra::SecondsUntil;

constexpr int kMaxLanes = 4;
constexpr size_t kSizes[] = {40 * 1000, 1 << 20, 16 << 20};
constexpr int kThreads[] = {1, 2, 4};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  // Sums in place; blocks.
  virtual void AllReduce(float* data, size_t count, int num_threads) = 0;
};

class Lanes : public Transport {
 public:
  Lanes(const char* name, std::shared_ptr<tf_libra::LaneEngine> engine)
      : name_(name), engine_(std::move(engine)) {}
  const char* name() const override { return name_; }

  void AllReduce(float* data, size_t count, int num_threads) override {
    ::AllReduce(engine_.get(), data, count, num_threads);
  }

 private:
  const char* const name_;
  const std::shared_ptr<tf_libra::LaneEngine> engine_;
};

#ifdef TF_LIBRA_WITH_GLOO
// A pool of threads, each with a context and a device of its own.
class GlooLanes : public Transport {
 public:
  GlooLanes(int rank, const std::string& folder) {
    for (int i = 0; i < kMaxLanes; ++i) {
      gloo::rendezvous::FileStore store(folder + "/" + std::to_string(i));
      gloo::transport::tcp::attr attributes("127.0.0.1");
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
      context->connectFullMesh(store, device);
      contexts_.push_back(context);
    }
    for (int i = 0; i < kMaxLanes; ++i) threads_.emplace_back([this, i] { Main(i); });
  }
  ~GlooLanes() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  const char* name() const override { return "gloo"; }

  void AllReduce(float* data, size_t count, int num_threads) override {
    std::unique_lock<std::mutex> lock(mutex_);
    data_ = data;
    count_ = count;
    num_threads_ = left_ = num_threads;
    ++generation_;
    wake_.notify_all();
    finished_.wait(lock, [this] { return left_ == 0; });
  }

 private:
  void Main(int index) {
    uint64_t seen = 0;
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || (generation_ != seen && index < num_threads_); });
      if (stop_) return;
      seen = generation_;
      const size_t begin = count_ * index / num_threads_;
      const size_t end = count_ * (index + 1) / num_threads_;
      float* const data = data_;
      lock.unlock();
      gloo::AllreduceOptions options(contexts_[index]);
      options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      options.setOutput(data + begin, end - begin);
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
      lock.lock();
      if (--left_ == 0) finished_.notify_one();
    }
  }

  std::vector<std::shared_ptr<gloo::Context>> contexts_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  float* data_ = nullptr;
  size_t count_ = 0;
  int num_threads_ = 0, left_ = 0;
  uint64_t generation_ = 0;
  bool stop_ = false;
};
#endif

// Dense arithmetic on data in the cache, as one thread of a matrix product would do.
uint64_t ComputeUntil(const std::atomic<bool>& stop) {
  alignas(64) float values[4096];
  for (int i = 0; i < 4096; ++i) values[i] = static_cast<float>(i);
  uint64_t rounds = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    for (float& value : values) value = value * 0.999f + 1.0f;
    asm volatile("" ::"r"(values) : "memory");
    ++rounds;
  }
  return rounds;
}

double RoundsPerSecondAlone() {
  std::atomic<bool> stop{false};
  const auto start = Clock::now();
  uint64_t rounds = 0;
  std::thread worker([&] { rounds = ComputeUntil(stop); });
  usleep(200 * 1000);
  stop = true;
  worker.join();
  return rounds / -SecondsUntil(start);
}

void Measure(Transport* transport, int rank, size_t bytes, int num_threads, int repetitions,
             std::vector<float>* data) {
  const size_t count = bytes / sizeof(float);
  transport->AllReduce(data->data(), count, num_threads);
  double cpu = CpuSeconds();
  auto start = Clock::now();
  for (int i = 0; i < repetitions; ++i) transport->AllReduce(data->data(), count, num_threads);
  const double alone = -SecondsUntil(start) / repetitions;
  cpu = (CpuSeconds() - cpu) / repetitions;

  const double full_speed = RoundsPerSecondAlone();
  std::atomic<bool> stop{false};
  uint64_t rounds = 0;
  transport->AllReduce(data->data(), 1, 1);  // both ranks start together
  start = Clock::now();
  std::thread worker([&] { rounds = ComputeUntil(stop); });
  for (int i = 0; i < repetitions; ++i) transport->AllReduce(data->data(), count, num_threads);
  const double overlapped = -SecondsUntil(start) / repetitions;
  stop = true;
  worker.join();
  const double speed = rounds / -SecondsUntil(start);
  transport->AllReduce(data->data(), 1, 1);
  if (rank == 0) {
    std::printf("%s %zu %d %.6e %.6e %.6e %.4f\n", transport->name(), bytes, num_threads, alone,
                cpu, overlapped, full_speed / speed);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: transport FOLDER REPETITIONS\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int repetitions = std::atoi(argv[2]);
  ForkedRanks ranks(2);
  const int rank = ranks.rank();
  {
    std::vector<std::unique_ptr<Transport>> transports;
    transports.push_back(std::make_unique<Lanes>(
        "lanes-memory", ranks.Connect(tf_libra::kUnixHost, kMaxLanes, true)));
    transports.push_back(std::make_unique<Lanes>(
        "lanes-unix", ranks.Connect(tf_libra::kUnixHost, kMaxLanes, false)));
    transports.push_back(
        std::make_unique<Lanes>("lanes-tcp", ranks.Connect("127.0.0.1", kMaxLanes, false)));
#ifdef TF_LIBRA_WITH_GLOO
    transports.push_back(std::make_unique<GlooLanes>(rank, folder));
#endif
    std::vector<float> data(kSizes[2] / sizeof(float), 1.0f);  // zeros would not be sent
    for (const size_t bytes : kSizes) {
      for (const int num_threads : kThreads) {
        for (const auto& transport : transports) {
          Measure(transport.get(), rank, bytes, num_threads, repetitions, &data);
        }
      }
    }
  }
  return ranks.Join();
}
