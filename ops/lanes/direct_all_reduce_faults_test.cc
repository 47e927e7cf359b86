// Peers that are gone, late, or write what cannot be, and signals, in the middle of an exchange.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/direct_all_reduce_testing.h"

namespace tf_libra::direct_all_reduce_faults_test {
namespace {

using testing::ConnectAll;
using testing::HeaderOf;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::OnEveryRank;
using testing::OptionsFor;
using testing::Scripted;
using testing::Tensors;

TEST_CASE("PeerThatIsGone") {
  testing::OverAll();
  Scripted before(2, 1000);
  before.End(1) = Connection();
  CHECK_EQ(before.Run().status, testing::StatusIs(StatusCode::kUnavailable, "rank 1"));

  Scripted within(2, 1 << 20);
  std::thread death([&] {
    within.Receive(1, 1000);
    within.End(1) = Connection();
  });
  CHECK_EQ(within.Run().status, testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
  death.join();
  within.CheckUntouched();
}

// Rank 1 has sent all that there is room for and has been sent its part; it owes nothing until
// rank 2 arrives, which it never does. That rank 1 has left is known all the same.
TEST_CASE("PeerThatIsGoneWhileAnotherIsLate") {
  testing::OverAll();
  Scripted script(3, 3 << 16);  // chunks of 256 KiB: two blocks
  std::thread death([&] {
    const ExchangeHeader header = HeaderOf(script.buffers);
    const std::vector<char> block(128 * 1024, '\0');
    script.SendHeader(1, header);
    script.SendSegmentHeader(1, block.size());
    script.Send(1, block.data(), block.size());
    script.ReceiveHeader(1);
    script.ReceiveWhole(1, 1 << 18);
    script.End(1) = Connection();
  });
  CHECK_EQ(script.Run().status, testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
  death.join();
}

TEST_CASE("PeerThatDoesNotArrive") {
  testing::OverAll();
  Scripted script(3, 1000, 1);
  script.options.stall_warning_seconds = kShortSeconds / 4;
  std::vector<std::string> warnings;
  script.options.on_stall = [&](const std::string& ranks, double seconds) {
    CHECK(seconds >= kShortSeconds / 4);
    warnings.push_back(ranks);
  };
  const ExchangeHeader header = HeaderOf(script.buffers);
  const std::vector<char> part(333 * sizeof(float), '\0');
  script.SendHeader(1, header);
  script.Send(1, part.data(), part.size());
  const ExchangeResult result = script.Run();
  // Rank 1's sum is missing too, but for want of rank 2's part.
  CHECK_EQ(result.status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 2"));
  CHECK_EQ(result.first_byte_nanos, 0);  // the wait for all to arrive is not over
  CHECK_EQ(warnings.size(), 1u);
  CHECK((!warnings.empty() && warnings[0] == "2"));
  script.CheckUntouched();
}

// It has sent everything and takes nothing: it is the one that is waited for.
TEST_CASE("PeerThatStopsReading") {
  testing::OverAll();
  const size_t count = 1 << 21;
  Scripted script(2, count, kShortSeconds);
  const int small = 1 << 16;  // so that the buffers of the connection cannot hold half of that
  setsockopt(script.meshes[0].lanes[0].column[1].socket.fd(), SOL_SOCKET, SO_SNDBUF, &small,
             sizeof(small));
  setsockopt(script.End(1).socket.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  std::vector<std::string> warnings;
  script.options.stall_warning_seconds = kShortSeconds / 4;
  script.options.on_stall = [&](const std::string& ranks, double) { warnings.push_back(ranks); };
  std::thread peer([&] {
    const ExchangeHeader header = HeaderOf(script.buffers);
    const std::vector<char> half(count * sizeof(float) / 2, '\0');
    script.SendHeader(1, header);
    script.SendSegmentHeader(1, half.size());
    script.Send(1, half.data(), half.size());
    script.ReceiveHeader(1);
    script.ReceiveWhole(1, half.size());
    script.SendSegmentHeader(1, half.size());
    script.SendSum(1, half.data(), half.size());  // as if it were the sum
  });
  CHECK_EQ(script.Run().status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
  peer.join();
  CHECK((!warnings.empty() && warnings.back() == "1"));
}

// Another process may write anything into shared memory, at any time.
TEST_CASE("PositionsThatCannotBe") {
  testing::OverAll();
  if (!testing::SharingMemory()) return;
  RingEnd* (*const ends[])(SharedMemory*) = {
      [](SharedMemory* memory) { return memory->outgoing_parts(); },
      [](SharedMemory* memory) { return memory->incoming_parts(); },
      [](SharedMemory* memory) { return memory->outgoing_sums(); },
  };
  for (const auto& end : ends) {
    Scripted script(2, 1 << 20);
    script.SendHeader(1, HeaderOf(script.buffers));
    // What has not been written, or has not been read yet, by far.
    static_cast<void>(end(script.End(1).memory.get())->Advance(1u << 30));
    CHECK_EQ(script.Run().status,
             testing::StatusIs(StatusCode::kFailedPrecondition,
                               "rank 1 wrote an invalid position into the shared memory"));
    script.CheckUntouched();
  }
}

// Rank 1 does something again and again, until the exchange of rank 0 has ended.
Status RunAgainst(Scripted* script, const std::function<void()>& attack) {
  std::atomic<bool> is_over{false};
  std::thread peer([&] {
    while (!is_over) attack();
  });
  const Status status = script->Run().status;
  is_over = true;
  peer.join();
  return status;
}

// A position that goes back and forth moves nothing: the exchange ends long before its deadline.
TEST_CASE("PositionsThatGoBack") {
  testing::SetRendezvousHost(kUnixHost, true);
  RingEnd* (*const ends[])(SharedMemory*) = {
      [](SharedMemory* memory) { return memory->outgoing_parts(); },
      [](SharedMemory* memory) { return memory->outgoing_sums(); },
  };
  for (const auto& end : ends) {
    Scripted script(2, 1 << 20);
    script.SendHeader(1, HeaderOf(script.buffers));
    RingEnd* const attacked = end(script.End(1).memory.get());
    const int fd = script.End(1).socket.fd();
    const Status status = RunAgainst(&script, [attacked, fd] {
      for (const size_t step : {size_t{64}, 0 - size_t{64}}) {
        static_cast<void>(attacked->Advance(step));
        send(fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);  // so that rank 0 looks
        poll(nullptr, 0, 1);
      }
    });
    CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition,
                                       "rank 1 wrote an invalid position into the shared memory"));
  }
}

// Bytes that wake this rank move nothing: as many as there is room for end the exchange, and a few
// at a time keep neither its warning nor its deadline from coming.
TEST_CASE("PeerThatWakesWithoutEnd") {
  testing::SetRendezvousHost(kUnixHost, true);
  const std::vector<char> bytes(1 << 16);
  for (const bool is_flood : {true, false}) {
    Scripted script(2, 1000, is_flood ? kGenerousSeconds : kShortSeconds);
    std::vector<std::string> warnings;
    script.options.stall_warning_seconds = kShortSeconds / 4;
    script.options.on_stall = [&](const std::string& ranks, double) { warnings.push_back(ranks); };
    const Status status = RunAgainst(&script, [&] {
      send(script.End(1).socket.fd(), bytes.data(), is_flood ? bytes.size() : 10,
           MSG_NOSIGNAL | MSG_DONTWAIT);
      if (!is_flood) poll(nullptr, 0, 1);
    });
    if (is_flood) {
      CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition,
                                         "rank 1 sends an endless stream of wake-ups"));
    } else {
      CHECK_EQ(status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
      CHECK((warnings.size() == 1 && warnings[0] == "1"));
    }
  }
}

// Rank 1 is a process of its own, in the middle of many all-reduces. If these are sparse, over
// sockets most of their blocks are left out.
void WithAnotherProcess(double timeout_seconds, bool are_sparse,
                        const std::function<void(const ExchangeOptions&, pid_t)>& body) {
  testing::Meeting meeting(2, 1);
  Tensors tensors({1 << 19}, 0, true);
  for (size_t i = 0; are_sparse && i < tensors.inputs[0].size(); ++i) {
    if (i / 1000 % 3 > 0) tensors.inputs[0][i] = 0;
  }
  const Buffers buffers(tensors.views);
  const auto reduce = [&](const Mesh& mesh, double timeout_seconds) {
    return OptionsFor(mesh, buffers, timeout_seconds);
  };
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    // A fork leaves no sockets behind, and rank 1 of two needs no listener.
    for (Socket& listener : meeting.listeners) listener = Socket();
    Mesh mesh;
    std::vector<char> scratch;
    if (!meeting.Connect(1, &mesh).ok()) _exit(1);
    while (testing::RunWatched(reduce(mesh, kGenerousSeconds), &scratch).status.ok()) {
    }
    _exit(0);
  }
  Mesh mesh;
  CHECK_EQ(meeting.Connect(0, &mesh), testing::IsOk());
  std::vector<char> scratch;
  const ExchangeOptions usual = reduce(mesh, kGenerousSeconds);
  for (int round = 0; round < 20; ++round)
    CHECK_EQ(testing::RunWatched(usual, &scratch).status, testing::IsOk());
  body(reduce(mesh, timeout_seconds), child);
  kill(child, SIGKILL);
  CHECK_EQ(waitpid(child, nullptr, 0), child);
}

TEST_CASE("ProcessThatIsKilled") {
  testing::OverAll();
  for (const bool are_sparse : {false, true}) {
    WithAnotherProcess(kGenerousSeconds, are_sparse,
                       [](const ExchangeOptions& options, pid_t child) {
                         std::vector<char> scratch;
                         std::thread killer([child] { kill(child, SIGKILL); });
                         Status status;
                         while ((status = testing::RunWatched(options, &scratch).status).ok()) {
                         }
                         killer.join();
                         CHECK_EQ(status, testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
                       });
  }
}

TEST_CASE("ProcessThatIsStopped") {
  testing::OverAll();
  WithAnotherProcess(1, /*are_sparse=*/true, [](const ExchangeOptions& options, pid_t child) {
    std::vector<char> scratch;
    CHECK_EQ(kill(child, SIGSTOP), 0);
    Status status;
    while ((status = testing::RunWatched(options, &scratch).status).ok()) {
    }
    CHECK_EQ(status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
  });
}

// Signals end system calls early. They say nothing about the peer.
TEST_CASE("InterruptedBySignals") {
  testing::OverAll();
  struct sigaction action{};
  action.sa_handler = [](int) {};  // without SA_RESTART
  sigaction(SIGUSR1, &action, nullptr);
  Scripted script(2, 1000, kShortSeconds);
  std::atomic<pthread_t> target{pthread_self()};
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) {
      pthread_kill(target, SIGUSR1);
      poll(nullptr, 0, 1);
    }
  });
  CHECK_EQ(script.Run().status, testing::StatusIs(StatusCode::kDeadlineExceeded, "rank(s) 1"));
  const std::vector<Mesh> meshes = ConnectAll(2, 1);
  OnEveryRank(2, [&](int rank) {
    if (rank == 0) target = pthread_self();
    std::vector<char> scratch;
    for (int round = 0; round < 20; ++round) {
      Tensors tensors({1 << 18}, rank, true);
      const Buffers buffers(tensors.views);
      CHECK_EQ(testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch).status,
               testing::IsOk());
    }
    // From here on this thread's identity may be reused.
    if (rank == 0) {
      stop = true;
      caller.join();
    }
  });
}

}  // namespace
}  // namespace tf_libra::direct_all_reduce_faults_test
