// Ranks of one host as forked processes, which share memory for addresses and measurements.
#ifndef TF_LIBRA_BENCHMARKS_FORKED_RANKS_H_
#define TF_LIBRA_BENCHMARKS_FORKED_RANKS_H_

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/lanes.h"
#include "ops/lanes/lane_engine.h"

// CPU seconds of all threads in this process.
inline double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Pins the calling thread, and threads that it starts later, to one of the cores it may use.
inline void PinToCore(int index) {
  cpu_set_t allowed, core;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int left = index % CPU_COUNT(&allowed);
  CPU_ZERO(&core);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && left-- == 0) CPU_SET(cpu, &core);
  }
  sched_setaffinity(0, sizeof(core), &core);
}

class ForkedRanks {
 public:
  static constexpr int kMaxRanks = 16;

  // Forks a process for each rank but 0, and pins each rank to a core.
  explicit ForkedRanks(int world_size) : world_size_(world_size) {
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || world_size > kMaxRanks) std::exit(1);
    shared_ = static_cast<Shared*>(memory);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared_->barrier, &attributes, world_size);
    for (int other = 1; other < world_size && rank_ == 0; ++other) {
      const pid_t child = fork();
      if (child < 0) std::exit(1);
      if (child == 0) {
        rank_ = other;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
      } else {
        children_.push_back(child);
      }
    }
    PinToCore(rank_);
  }

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  // Blocks until all ranks call this. What they stored in shared memory is then visible.
  void Synchronize() { pthread_barrier_wait(&shared_->barrier); }

  // Connects all ranks. All call this, in the same order.
  std::shared_ptr<tf_libra::LaneEngine> Connect(const char* host, int num_lanes,
                                                bool share_memory) {
    tf_libra::Socket listener;
    tf_libra::Address address;
    Require(Listen(host, 0, &listener, &address));
    std::snprintf(shared_->hosts[rank_], sizeof(shared_->hosts[rank_]), "%s", address.host.c_str());
    shared_->ports[rank_] = address.port;
    Synchronize();
    tf_libra::MeshOptions options;
    options.rank = rank_;
    options.num_lanes = num_lanes;
    options.share_memory = share_memory;
    options.secret.fill(1);
    options.addresses.resize(world_size_);
    for (int rank = 0; rank < world_size_; ++rank) {
      options.addresses[rank].host = shared_->hosts[rank];
      options.addresses[rank].port = shared_->ports[rank];
    }
    Synchronize();
    tf_libra::Mesh mesh;
    Require(ConnectMesh(options, std::move(listener), &mesh));
    std::shared_ptr<tf_libra::LaneEngine> engine;
    Require(tf_libra::LaneEngine::Start({}, std::move(mesh), &engine));
    return engine;
  }

  // The mean of a value over all ranks, which all call this.
  double Mean(double mine) {
    shared_->values[rank_] = mine;
    Synchronize();
    double sum = 0;
    for (int rank = 0; rank < world_size_; ++rank) sum += shared_->values[rank];
    Synchronize();
    return sum / world_size_;
  }

  // The exit status of this rank, for rank 0 after the end of all others.
  int Join() const {
    int failed = 0;
    for (const pid_t child : children_) {
      int status = 0;
      waitpid(child, &status, 0);
      failed |= status;
    }
    return failed == 0 ? 0 : 1;
  }

 private:
  struct Shared {
    pthread_barrier_t barrier;
    char hosts[kMaxRanks][128];
    int ports[kMaxRanks];
    double values[kMaxRanks];
  };

  const int world_size_;
  int rank_ = 0;
  Shared* shared_ = nullptr;
  std::vector<pid_t> children_;
};

#endif  // TF_LIBRA_BENCHMARKS_FORKED_RANKS_H_
