// A process that may have few descriptors, as real ones: the limits of a forked child are its own.
#include "ops/lanes/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <string>
#include <vector>

#include "ops/lanes/engine_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::descriptors_test {
namespace {

using testing::kGenerousSeconds;
using testing::NumOpen;
using testing::OnEveryRank;

void InAnotherProcess(void (*body)()) {
  const int before = testing::Failures();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
    _exit(testing::Failures() == before ? 0 : 1);
  }
  int outcome = -1;
  CHECK_EQ(waitpid(child, &outcome, 0), child);
  CHECK_EQ(outcome, 0);
}

void Limit(int soft, int hard) {
  const rlimit limit{static_cast<rlim_t>(soft), static_cast<rlim_t>(hard)};
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// Three ranks of four lanes each in one process: 34 ends of connections by Unix sockets.
constexpr int kWorld = 3, kLanes = 4;

TEST_CASE("SoftLimitIsRaised") {
  testing::OverBoth();
  InAnotherProcess([] {
    Limit(NumOpen() + 4, 512);
    std::vector<Mesh> meshes = testing::ConnectAll(kWorld, kLanes);
    for (const Mesh& mesh : meshes) CHECK_EQ(mesh.lanes.size(), static_cast<size_t>(kLanes));
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    CHECK_EQ(limit.rlim_cur, limit.rlim_max);
  });
}

TEST_CASE("SoftLimitThatSufficesIsLeftAlone") {
  testing::OverBoth();
  InAnotherProcess([] {
    Limit(256, 512);
    const std::vector<Mesh> meshes = testing::ConnectAll(kWorld, kLanes);
    rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    CHECK_EQ(limit.rlim_cur, 256u);
  });
}

// Known before any rank connects: no rank waits for the deadline.
TEST_CASE("HardLimitDoesNotSuffice") {
  testing::OverBoth();
  InAnotherProcess([] {
    testing::Meeting meeting(kWorld, kLanes, 1e4);
    const int most = NumOpen() + 5;
    Limit(most, most);
    std::vector<Mesh> meshes(kWorld);
    OnEveryRank(kWorld, [&](int rank) {
      const Status status = meeting.Connect(rank, &meshes[rank]);
      CHECK_EQ(status, testing::StatusIs(
                           StatusCode::kResourceExhausted,
                           "rank " + std::to_string(rank) + ", to connect to 2 other rank(s)"));
      // Control connects rank 0 to the others, and these not to each other.
      const std::string each =
          std::string(rank == 0 ? "" : "up to ") + (IsUnix(testing::RendezvousHost()) ? "6" : "7");
      CHECK_EQ(status.message(), testing::Contains("by " + each + " connections each, needs "));
      CHECK_EQ(status.message(),
               testing::Contains("this process may have " + std::to_string(most) + ": "));
      CHECK_EQ(status.message(), testing::Contains("ulimit -n "));
    });
  });
}

// Of this process, but for `free` descriptors.
class FullTable {
 public:
  explicit FullTable(int free) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(NumOpen() + free);
    setrlimit(RLIMIT_NOFILE, &limit);
    for (;;) {
      Socket more(dup(0));
      if (!more.valid()) break;
      taken_.push_back(std::move(more));
    }
    for (int i = 0; i < free && !taken_.empty(); ++i) taken_.pop_back();
  }
  ~FullTable() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
  std::vector<Socket> taken_;
};

// What was free when it was looked at is taken when it is needed.
TEST_CASE("TableThatFillsMeanwhile") {
  testing::OverBoth();
  for (const int rank : {0, 1}) {
    Socket listener;
    Address address;
    CHECK_EQ(Listen(testing::RendezvousHost(), 0, &listener, &address), testing::IsOk());
    Socket waiting;
    CHECK_EQ(BeginConnect(address, &waiting), testing::IsOk());
    Socket socket;
    Status status;
    {
      const FullTable full(0);
      status = rank == 0 ? Accept(listener, &socket) : BeginConnect(address, &socket);
    }
    CHECK_EQ(status, testing::StatusIs(StatusCode::kResourceExhausted, "file descriptors: "));
  }
}

// The messenger opens its descriptors, a set to wait on and an event, with the first message. A
// rank that cannot have them reports it immediately, and a peer that waits for its message receives
// the error.
TEST_CASE("MessagesThatHaveNoDescriptors") {
  testing::OverBoth();
  for (const int free : {0, 1}) {
    const testing::Engines engines = testing::MakeEngines(testing::ConnectAll(2, 2));
    char sent = 'x', received = 0;
    const auto message = [](int peer, char* data, std::promise<Status>* end) {
      MessageRequest request;
      request.peer = peer;
      request.name = "x";
      request.content = "int8 []";
      request.data = data;
      request.num_bytes = 1;
      request.done = [end](const Status& status) { end->set_value(status); };
      return request;
    };
    std::promise<Status> sending, receiving;
    engines[1]->Receive(message(0, &received, &receiving));
    {
      const FullTable full(free);
      engines[0]->Send(message(1, &sent, &sending));
    }
    CHECK_EQ(sending.get_future().get(),
             testing::StatusIs(StatusCode::kResourceExhausted,
                               free == 0 ? "epoll_create: " : "eventfd: "));
    const Status told = receiving.get_future().get();
    CHECK_EQ(told, testing::StatusIs(StatusCode::kUnavailable, "rank 0 gave up: "));
    CHECK_EQ(told.message(), testing::Contains("file descriptors: "));
    CHECK_EQ(testing::AllReduce(engines[0].get(), testing::Small()),
             testing::StatusIs(StatusCode::kResourceExhausted, "file descriptors: "));
  }
}

}  // namespace
}  // namespace tf_libra::descriptors_test
