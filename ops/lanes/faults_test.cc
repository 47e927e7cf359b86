// One of four processes on two hosts is killed, stopped for longer than the deadline, or cut off
// from the others, while they all-reduce on two levels, in two concurrent streams, send to each
// other, or all-reduce in pairs. A rank that needs the lost one reports it; a rank that does not
// goes on. What is all-reduced has blocks of zeros, which are left out between hosts.
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/lane_engine.h"
#include "ops/lanes/testing.h"

namespace tf_libra::faults_test {
namespace {

constexpr int kWorld = 4, kLanes = 2, kLost = 3;
// Before it happens.
constexpr int kRounds = 3;
// Floats of an all-reduce: each lane sends enough of them to another host to leave out zeros.
constexpr size_t kSparse = 200'000;
// Longer than any live rank is late.
constexpr double kDeadlineSeconds = 10;

enum class Injury { kKill, kStop, kCut };

// What the processes of a job know of each other.
struct Shared {
  std::atomic<int> num_listening{0};
  char hosts[kWorld][64] = {}, local_hosts[kWorld][64] = {};
  uint16_t ports[kWorld] = {};
  std::atomic<bool> is_up_to{false};  // the one that will be lost has done its rounds
  std::atomic<int> num_ended{0};      // of those that need it
};

void WaitFor(const std::function<bool()>& holds) {
  while (!holds()) poll(nullptr, 0, 1);  // a job that takes too long is ended by its alarm
}

// Of one round of one rank.
class Round {
 public:
  Round(LaneEngine* engine, int number) : engine_(engine), number_(number) {}

  void AllReduce(int first_lane, int num_threads) {
    auto info = std::make_shared<OperationInfo>();
    info->group = first_lane;
    info->first_lane = first_lane;
    info->num_threads = num_threads;
    info->tensor_names = {"values"};
    info->ComputeDigest();
    std::vector<float>* const values = Values();
    values->resize(kSparse);
    for (size_t i = 0; i < kSparse; ++i) (*values)[i] = i / 1000 % 3 == 0 ? 1.0f : 0.0f;
    AllReduceRequest request;
    request.operation = info;
    request.tensors = {{values->data(), values->data(), 4 * values->size()}};
    request.done = End();
    engine_->AllReduce(std::move(request));
  }

  void Send(int to) { engine_->Send(Message(to)); }
  void Receive(int from) { engine_->Receive(Message(from)); }

  void AllReduceAmong(std::vector<int> ranks) {
    std::vector<float>* const values = Values();
    CollectiveRequest request;
    request.kind = CollectiveKind::kAllReduce;
    request.ranks = std::move(ranks);
    request.name = Name();
    request.content = "floats";
    request.input = reinterpret_cast<const char*>(values->data());
    request.output = reinterpret_cast<char*>(values->data());
    request.num_bytes = 4 * values->size();
    request.done = End();
    engine_->Run(std::move(request));
  }

  // The first error.
  Status Wait() {
    Status first;
    for (std::promise<Status>& end : ends_) {
      const Status status = end.get_future().get();
      if (first.ok()) first = status;
    }
    return first;
  }

 private:
  std::string Name() const { return "round " + std::to_string(number_); }

  std::vector<float>* Values() {
    memory_.emplace_back(20'000, 1.0f);
    return &memory_.back();
  }

  std::function<void(const Status&)> End() {
    ends_.emplace_back();
    return [end = &ends_.back()](const Status& status) { end->set_value(status); };
  }

  MessageRequest Message(int peer) {
    std::vector<float>* const values = Values();
    MessageRequest request;
    request.peer = peer;
    request.name = Name();
    request.content = "floats";
    request.data = reinterpret_cast<char*>(values->data());
    request.num_bytes = 4 * values->size();
    request.done = End();
    return request;
  }

  LaneEngine* const engine_;
  const int number_;
  std::deque<std::vector<float>> memory_;
  std::deque<std::promise<Status>> ends_;
};

struct Operation {
  const char* name;
  void (*begin)(int rank, Round* round);
  // Who waits for the lost one itself, and who does not need it at all.
  std::vector<int> next, others;
  bool lists = true;  // whom it has waited for, as rank(s)
};

const std::vector<Operation>& Operations() {
  static const std::vector<Operation> operations = {
      {"two levels", [](int, Round* round) { round->AllReduce(0, kLanes); }, {1, 2}, {}},
      {"streams",
       [](int, Round* round) {
         for (int lane = 0; lane < kLanes; ++lane) round->AllReduce(lane, 1);
       },
       {1, 2},
       {}},
      {"sends",
       [](int rank, Round* round) {
         round->Send((rank + 1) % kWorld);
         round->Receive((rank + kWorld - 1) % kWorld);
       },
       {0, 2},
       {},
       false},
      {"pairs",
       [](int rank, Round* round) {
         round->AllReduceAmong(rank % 3 == 0 ? std::vector<int>{0, 3} : std::vector<int>{2, 1});
       },
       {0},
       {1, 2},
       false},
  };
  return operations;
}

bool Has(const std::vector<int>& ranks, int rank) {
  return std::count(ranks.begin(), ranks.end(), rank) > 0;
}

Mesh ConnectedMesh(int rank, Shared* shared) {
  Socket listener, local_listener;
  Address address, local_address;
  CHECK_EQ(Listen("127.0.0.1", 0, &listener, &address), testing::IsOk());
  CHECK_EQ(Listen(kUnixHost, 0, &local_listener, &local_address), testing::IsOk());
  std::strncpy(shared->hosts[rank], address.host.c_str(), sizeof(shared->hosts[rank]) - 1);
  std::strncpy(shared->local_hosts[rank], local_address.host.c_str(),
               sizeof(shared->local_hosts[rank]) - 1);
  shared->ports[rank] = address.port;
  ++shared->num_listening;
  WaitFor([shared] { return shared->num_listening == kWorld; });
  MeshOptions options;
  options.rank = rank;
  options.secret.fill(0xce);
  options.num_lanes = kLanes;
  options.hosts = {0, 0, 1, 1};
  options.timeout_seconds = testing::kGenerousSeconds;
  for (int other = 0; other < kWorld; ++other) {
    options.addresses.push_back({shared->hosts[other], shared->ports[other]});
    options.local_addresses.push_back({shared->local_hosts[other], 0});
  }
  Mesh mesh;
  CHECK_EQ(ConnectMesh(options, std::move(listener), &mesh, std::move(local_listener)),
           testing::IsOk());
  return mesh;
}

// Copies of all its connections but control, to be cut where the engine does not know of it.
std::vector<Socket> Copies(const Mesh& mesh) {
  std::vector<Socket> copies;
  const auto add = [&copies](const Socket& socket) {
    if (socket.valid()) copies.emplace_back(dup(socket.fd()));
  };
  for (const Connection& one : mesh.messages) add(one.socket);
  for (const GridPeers& peers : mesh.lanes) {
    for (const Connection& one : peers.row) add(one.socket);
    for (const Connection& one : peers.column) add(one.socket);
  }
  return copies;
}

void LiveUntilItEnds(int rank, const Operation& operation, Injury injury, Shared* shared) {
  Mesh mesh = ConnectedMesh(rank, shared);
  std::vector<Socket> copies;
  if (rank == kLost) copies = Copies(mesh);
  LaneEngineOptions options;
  options.timeout_seconds = kDeadlineSeconds;
  std::shared_ptr<LaneEngine> engine;
  CHECK_EQ(LaneEngine::Start(options, std::move(mesh), &engine), testing::IsOk());
  const auto run = [&](int number) {
    Round round(engine.get(), number);
    operation.begin(rank, &round);
    return round.Wait();
  };
  int number = 0;
  while (number < kRounds) CHECK_EQ(run(number++), testing::IsOk());
  if (rank == kLost) {
    if (injury == Injury::kCut) {
      for (Socket& copy : copies) copy.Shutdown();
    }
    shared->is_up_to = true;
    for (;;) pause();
  }
  if (Has(operation.others, rank)) {
    // After the others have noticed, too.
    WaitFor([&] { return shared->num_ended == static_cast<int>(operation.next.size()); });
    for (const int last = number + kRounds; number < last;)
      CHECK_EQ(run(number++), testing::IsOk());
    engine->Flush();
    return;
  }
  Status status;
  while (status.ok()) status = run(number++);
  ++shared->num_ended;
  if (!Has(operation.next, rank)) return;
  const bool is_late = injury == Injury::kStop;
  const bool lists = is_late && operation.lists;
  CHECK_EQ(status,
           testing::StatusIs(is_late ? StatusCode::kDeadlineExceeded : StatusCode::kUnavailable,
                             (lists ? "rank(s) " : "rank ") + std::to_string(kLost)));
}

struct Job {
  const Operation* operation;
  Injury injury;
  Shared* shared;
  std::vector<pid_t> ranks;
};

Job Begin(const Operation& operation, Injury injury) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  Job job{&operation, injury, new (memory) Shared, {}};
  for (int rank = 0; rank < kWorld; ++rank) {
    job.ranks.push_back(fork());
    if (job.ranks.back() != 0) continue;
    alarm(120);
    LiveUntilItEnds(rank, operation, injury, job.shared);
    if (testing::Failures() > 0)
      std::cerr << "in rank " << rank << " of " << operation.name << "\n";
    _exit(testing::Failures() == 0 ? 0 : 1);
  }
  return job;
}

void End(const Job& job) {
  for (int rank = 0; rank < kWorld; ++rank) {
    if (rank == kLost) continue;
    int outcome = -1;
    CHECK_EQ(waitpid(job.ranks[rank], &outcome, 0), job.ranks[rank]);
    CHECK_EQ(outcome, 0);
  }
  kill(job.ranks[kLost], SIGKILL);
  CHECK_EQ(waitpid(job.ranks[kLost], nullptr, 0), job.ranks[kLost]);
  munmap(job.shared, sizeof(Shared));
}

// All operations concurrently: most of their time is waiting.
void OneIsLost(Injury injury) {
  std::vector<Job> jobs;
  for (const Operation& operation : Operations()) jobs.push_back(Begin(operation, injury));
  for (const Job& job : jobs) {
    WaitFor([&job] { return job.shared->is_up_to.load(); });
    const int signal = injury == Injury::kKill ? SIGKILL : SIGSTOP;
    if (injury != Injury::kCut) CHECK_EQ(kill(job.ranks[kLost], signal), 0);
  }
  for (const Job& job : jobs) End(job);
}

TEST_CASE("Killed") { OneIsLost(Injury::kKill); }
TEST_CASE("Stopped") { OneIsLost(Injury::kStop); }
TEST_CASE("CutOff") { OneIsLost(Injury::kCut); }

}  // namespace
}  // namespace tf_libra::faults_test
