#include "ops/lanes/exchange.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

using testing::ConnectAll;
using testing::kGenerousSeconds;
using testing::kShortSeconds;
using testing::OnEveryRank;

// Tensors of random float32 on one rank, and room for what becomes of them.
struct Tensors {
  std::vector<std::vector<float>> inputs, outputs;
  std::vector<TensorView> views;

  Tensors(const std::vector<size_t>& counts, int seed, bool in_place) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    for (const size_t count : counts) {
      inputs.emplace_back(count);
      for (float& value : inputs.back()) value = static_cast<float>(random() % 100000) / 7;
      outputs.emplace_back(count, -1.0f);
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      auto& output = in_place ? inputs[i] : outputs[i];
      views.push_back({inputs[i].data(), output.data(), counts[i] * sizeof(float)});
    }
  }

  std::vector<float> Flat(bool output) const {
    std::vector<float> flat;
    for (const TensorView& view : views) {
      const float* begin = static_cast<const float*>(output ? view.output : view.input);
      flat.insert(flat.end(), begin, begin + view.num_bytes / sizeof(float));
    }
    return flat;
  }
};

std::vector<float> Sum(const std::vector<std::vector<float>>& inputs) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<float> sum(inputs[0].size());
  ReduceBlock(ElementType::kFloat32, Reduction::kSum, pointers, sum.size(), sum.data());
  return sum;
}

ExchangeHeader HeaderOf(const Buffers& buffers) {
  ExchangeHeader header;
  header.sequence = 5;
  header.digest = 0x1234;
  header.num_bytes = buffers.num_bytes();
  header.group = 2;
  header.num_threads = 1;
  header.element_type = static_cast<uint8_t>(ElementType::kFloat32);
  header.reduction = static_cast<uint8_t>(Reduction::kSum);
  return header;
}

ExchangeOptions OptionsFor(const Mesh& mesh, const Buffers& buffers,
                           double timeout_seconds = kGenerousSeconds) {
  ExchangeOptions options;
  options.rank = mesh.rank;
  options.peers = &mesh.lanes[0].column;
  options.header = HeaderOf(buffers);
  options.buffers = &buffers;
  options.slice = {0, buffers.num_bytes()};
  options.timeout_seconds = timeout_seconds;
  options.stall_warning_seconds = kGenerousSeconds;
  return options;
}

// One rank is the exchange, the others are played by the test over their ends of the lane.
struct Scripted {
  std::vector<Mesh> meshes;
  Tensors tensors;
  Buffers buffers;
  ExchangeOptions options;
  std::vector<char> scratch;

  Scripted(int world_size, size_t count, double timeout_seconds = kGenerousSeconds)
      : meshes(ConnectAll(world_size, 1)),
        tensors({count}, 0, false),
        buffers(tensors.views),
        options(OptionsFor(meshes[0], buffers, timeout_seconds)) {}

  ExchangeResult Run() { return testing::RunWatched(options, &scratch); }
  Connection& End(int rank) { return meshes[rank].lanes[0].column[0]; }

  void Send(int rank, const void* data, size_t size) {
    CHECK_OK(testing::Send(End(rank), data, size));
  }
  void SendHeader(int rank, const ExchangeHeader& header) {
    const std::string bytes = testing::HeaderBytes(End(rank), header);
    Send(rank, bytes.data(), bytes.size());
  }
  std::vector<char> Receive(int rank, size_t size) {
    std::vector<char> data(size);
    CHECK_OK(testing::Receive(End(rank), data.data(), size));
    return data;
  }
  void SendSum(int rank, const void* data, size_t size) {
    CHECK_OK(testing::SendSum(End(rank), data, size));
  }
  std::vector<char> ReceiveSum(int rank, size_t size) {
    std::vector<char> data(size);
    CHECK_OK(testing::ReceiveSum(End(rank), data.data(), size));
    return data;
  }
  ExchangeHeader ReceiveHeader(int rank) {
    ExchangeHeader header;
    CHECK_OK(testing::ReceiveHeader(End(rank), &header));
    return header;
  }
  void CheckUntouched() {
    for (const float value : tensors.outputs[0]) CHECK_EQ(value, -1.0f);
  }
};

// Around the block of 128 KiB and the call of 512 KiB, more tensors than fit into one call.
std::vector<std::vector<size_t>> Shapes() {
  const size_t block = 128 * 1024 / sizeof(float);
  return {{},
          {0},
          {0, 0, 0},
          {1},
          {2, 0, 1},
          {3},
          {block - 1},
          {block, block + 1, 1},
          {4 * block + 3},
          {0, 5, 0, 9 * block + 7, 1, 0},
          std::vector<size_t>(1000, 3),
          std::vector<size_t>(150, 1001)};
}

void EqualsTheSum() {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    const std::vector<Mesh> meshes = ConnectAll(world_size, 1);
    for (const auto& counts : Shapes()) {
      for (const bool in_place : {false, true}) {
        std::vector<Tensors> tensors;
        std::vector<std::vector<float>> inputs;
        for (int rank = 0; rank < world_size; ++rank) {
          tensors.emplace_back(counts, rank, in_place);
          inputs.push_back(tensors.back().Flat(false));
        }
        const std::vector<float> expected = Sum(inputs);
        OnEveryRank(world_size, [&](int rank) {
          const Buffers buffers(tensors[rank].views);
          std::vector<char> scratch;
          const ExchangeResult result =
              testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch);
          CHECK_OK(result.status);
          CHECK_EQ(result.first_byte_nanos > 0, world_size > 1);
          CHECK_TRUE(tensors[rank].Flat(true) == expected);
          if (!in_place) CHECK_TRUE(tensors[rank].Flat(false) == inputs[rank]);
        });
      }
    }
  }
}

// Whatever the sizes are, and whoever is ahead: rings and blocks fill and empty at any place.
void SizesOfAllKinds() {
  std::mt19937 random(3);
  for (const int world_size : {2, 3, 12}) {
    const std::vector<Mesh> meshes = ConnectAll(world_size, 1);
    for (int round = 0; round < 6; ++round) {
      std::vector<size_t> counts(random() % 5 + 1);
      for (size_t& count : counts) count = random() % (size_t{1} << (random() % 18));
      if (round == 0) counts = {(3 << 19) + 1};  // more than all rings hold
      std::vector<Tensors> tensors;
      std::vector<std::vector<float>> inputs;
      for (int rank = 0; rank < world_size; ++rank) {
        tensors.emplace_back(counts, rank + round * 100, true);
        inputs.push_back(tensors.back().Flat(false));
      }
      OnEveryRank(world_size, [&](int rank) {
        const Buffers buffers(tensors[rank].views);
        std::vector<char> scratch;
        CHECK_OK(testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch).status);
      });
      const std::vector<float> expected = Sum(inputs);
      for (const Tensors& one : tensors) CHECK_TRUE(one.Flat(true) == expected);
    }
  }
}

// What waits for the parts of all peers fits a cache, however many they are and however much it is.
void ScratchIsSmall() {
  constexpr int kRanks = 12;
  const std::vector<Mesh> meshes = ConnectAll(kRanks, 1);
  for (const size_t count : {size_t{kRanks}, size_t{1} << 19}) {
    OnEveryRank(kRanks, [&](int rank) {
      const Tensors tensors({count}, rank, true);
      const Buffers buffers(tensors.views);
      std::vector<char> scratch;
      CHECK_OK(testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch).status);
      CHECK_TRUE(scratch.capacity() <= (count == kRanks ? size_t{32} << 10 : size_t{1} << 20));
    });
  }
}

// Several exchanges in a row over one lane, with nothing in between.
void OneAfterTheOther() {
  const std::vector<Mesh> meshes = ConnectAll(3, 1);
  OnEveryRank(3, [&](int rank) {
    std::vector<char> scratch;
    for (int round = 0; round < 200; ++round) {
      Tensors tensors({static_cast<size_t>(round * 37 % 1000)}, round * 3 + rank, true);
      const Buffers buffers(tensors.views);
      ExchangeOptions options = OptionsFor(meshes[rank], buffers);
      options.header.sequence = static_cast<uint64_t>(round);
      std::vector<std::vector<float>> inputs;
      for (int other = 0; other < 3; ++other) {
        const Tensors theirs({static_cast<size_t>(round * 37 % 1000)}, round * 3 + other, true);
        inputs.push_back(theirs.Flat(false));
      }
      CHECK_OK(testing::RunWatched(options, &scratch).status);
      CHECK_TRUE(tensors.Flat(true) == Sum(inputs));
    }
  });
}

// Everything comes a byte at a time, the header too.
void PeerThatSendsBytewise() {
  Scripted script(2, 101);
  std::thread peer([&] {
    const ExchangeHeader header = HeaderOf(script.buffers);
    std::vector<float> theirs(101, 2.0f);  // chunks: [0, 50) is rank 0's, [50, 101) rank 1's
    for (const char byte : testing::HeaderBytes(script.End(1), header)) script.Send(1, &byte, 1);
    for (size_t i = 0; i < 50 * sizeof(float); ++i) {
      script.Send(1, reinterpret_cast<const char*>(theirs.data()) + i, 1);
    }
    const ExchangeHeader theirs_header = script.ReceiveHeader(1);
    CHECK_TRUE(std::memcmp(&theirs_header, &header, sizeof(header)) == 0);
    const std::vector<char> part = script.Receive(1, 51 * sizeof(float));
    CHECK_TRUE(std::memcmp(part.data(), script.tensors.inputs[0].data() + 50, part.size()) == 0);
    const std::vector<char> sum = script.ReceiveSum(1, 50 * sizeof(float));
    CHECK_TRUE(std::memcmp(sum.data(), script.tensors.outputs[0].data(), sum.size()) == 0);
    for (size_t i = 0; i < 51 * sizeof(float); ++i) {
      script.SendSum(1, reinterpret_cast<const char*>(theirs.data() + 50) + i, 1);
    }
  });
  CHECK_OK(script.Run().status);
  peer.join();
  for (size_t i = 0; i < 101; ++i) {
    CHECK_EQ(script.tensors.outputs[0][i], i < 50 ? script.tensors.inputs[0][i] + 2.0f : 2.0f);
  }
}

// Whatever the header says otherwise is named, and nothing of the payload is used.
void HeadersThatDiffer() {
  struct Case {
    const char* expected;
    void (*change)(ExchangeHeader*);
  };
  const Case cases[] = {
      {"no all-reduce", [](ExchangeHeader* header) { header->magic ^= 1; }},
      {"at all-reduce 6, this rank at 5", [](ExchangeHeader* header) { ++header->sequence; }},
      {"group 3, this rank group 2", [](ExchangeHeader* header) { header->group = 3; }},
      {"reduces 44 bytes, this rank 40", [](ExchangeHeader* header) { header->num_bytes = 44; }},
      {"uses 4 thread(s), this rank 1", [](ExchangeHeader* header) { header->num_threads = 4; }},
      {"dtype", [](ExchangeHeader* header) { header->element_type = 3; }},
      {"reduction", [](ExchangeHeader* header) { header->reduction = 1; }},
      {"other tensors", [](ExchangeHeader* header) { header->digest ^= 1; }},
  };
  for (const Case& one : cases) {
    Scripted script(3, 10);
    const std::string payload(100, '\1');
    ExchangeHeader header = HeaderOf(script.buffers);
    script.SendHeader(1, header);
    script.Send(1, payload.data(), payload.size());
    one.change(&header);
    script.SendHeader(2, header);
    script.Send(2, payload.data(), payload.size());
    const Status status = script.Run().status;
    CHECK_STATUS(status, StatusCode::kFailedPrecondition, "rank 2");
    CHECK_CONTAINS(status.message(), one.expected);
    script.CheckUntouched();
  }
}

void PeerThatIsGone() {
  Scripted before(2, 1000);
  before.End(1) = Connection();
  CHECK_STATUS(before.Run().status, StatusCode::kUnavailable, "rank 1");

  Scripted within(2, 1 << 20);
  std::thread death([&] {
    within.Receive(1, 1000);
    within.End(1) = Connection();
  });
  CHECK_STATUS(within.Run().status, StatusCode::kUnavailable, "rank 1");
  death.join();
  within.CheckUntouched();
}

// Rank 1 has sent all that there is room for and has been sent its part; it owes nothing until
// rank 2 arrives, which it never does. That rank 1 has left is known all the same.
void PeerThatIsGoneWhileAnotherIsLate() {
  Scripted script(3, 3 << 16);  // chunks of 256 KiB: two blocks
  std::thread death([&] {
    const ExchangeHeader header = HeaderOf(script.buffers);
    const std::vector<char> block(128 * 1024, '\0');
    script.SendHeader(1, header);
    script.Send(1, block.data(), block.size());
    script.ReceiveHeader(1);
    script.Receive(1, 1 << 18);
    script.End(1) = Connection();
  });
  CHECK_STATUS(script.Run().status, StatusCode::kUnavailable, "rank 1");
  death.join();
}

void PeerThatDoesNotArrive() {
  Scripted script(3, 1000, 1);
  script.options.stall_warning_seconds = kShortSeconds / 4;
  std::vector<std::string> warnings;
  script.options.on_stall = [&](const std::string& ranks, double seconds) {
    CHECK_TRUE(seconds >= kShortSeconds / 4);
    warnings.push_back(ranks);
  };
  const ExchangeHeader header = HeaderOf(script.buffers);
  const std::vector<char> part(333 * sizeof(float), '\0');
  script.SendHeader(1, header);
  script.Send(1, part.data(), part.size());
  const ExchangeResult result = script.Run();
  // Rank 1's sum is missing too, but for want of rank 2's part.
  CHECK_STATUS(result.status, StatusCode::kDeadlineExceeded, "for rank(s) 2");
  CHECK_EQ(result.first_byte_nanos, 0);  // the wait for all to arrive is not over
  CHECK_EQ(warnings.size(), 1u);
  CHECK_TRUE(!warnings.empty() && warnings[0] == "2");
  script.CheckUntouched();
}

// It has sent everything and takes nothing: it is the one that is waited for.
void PeerThatStopsReading() {
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
    script.Send(1, half.data(), half.size());
    script.ReceiveHeader(1);
    script.Receive(1, half.size());
    script.SendSum(1, half.data(), half.size());  // as if it were the sum
  });
  CHECK_STATUS(script.Run().status, StatusCode::kDeadlineExceeded, "for rank(s) 1");
  peer.join();
  CHECK_TRUE(!warnings.empty() && warnings.back() == "1");
}

// Another process may write anything into shared memory, at any time.
void PositionsThatCannotBe() {
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
    CHECK_STATUS(script.Run().status, StatusCode::kFailedPrecondition,
                 "rank 1 has written into the shared memory what cannot be");
    script.CheckUntouched();
  }
}

// Rank 1 is a process of its own, in the middle of many all-reduces.
void WithAnotherProcess(const std::function<void(const ExchangeOptions&, pid_t)>& body) {
  testing::Meeting meeting(2, 1);
  const Tensors tensors({1 << 19}, 0, true);
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
  CHECK_OK(meeting.Connect(0, &mesh));
  std::vector<char> scratch;
  const ExchangeOptions options = reduce(mesh, 1);
  for (int round = 0; round < 20; ++round) CHECK_OK(testing::RunWatched(options, &scratch).status);
  body(options, child);
  kill(child, SIGKILL);
  CHECK_EQ(waitpid(child, nullptr, 0), child);
}

void ProcessThatIsKilled() {
  WithAnotherProcess([](const ExchangeOptions& options, pid_t child) {
    std::vector<char> scratch;
    std::thread killer([child] { kill(child, SIGKILL); });
    Status status;
    while ((status = testing::RunWatched(options, &scratch).status).ok()) {
    }
    killer.join();
    CHECK_STATUS(status, StatusCode::kUnavailable, "rank 1");
  });
}

void ProcessThatIsStopped() {
  WithAnotherProcess([](const ExchangeOptions& options, pid_t child) {
    std::vector<char> scratch;
    CHECK_EQ(kill(child, SIGSTOP), 0);
    Status status;
    while ((status = testing::RunWatched(options, &scratch).status).ok()) {
    }
    CHECK_STATUS(status, StatusCode::kDeadlineExceeded, "for rank(s) 1");
  });
}

// Signals end system calls early. They say nothing about the peer.
void InterruptedBySignals() {
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
  CHECK_STATUS(script.Run().status, StatusCode::kDeadlineExceeded, "rank(s) 1");
  const std::vector<Mesh> meshes = ConnectAll(2, 1);
  OnEveryRank(2, [&](int rank) {
    if (rank == 0) target = pthread_self();
    std::vector<char> scratch;
    for (int round = 0; round < 20; ++round) {
      Tensors tensors({1 << 18}, rank, true);
      const Buffers buffers(tensors.views);
      CHECK_OK(testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch).status);
    }
    // From here on this thread's identity may be reused.
    if (rank == 0) {
      stop = true;
      caller.join();
    }
  });
}

}  // namespace
}  // namespace tf_libra

int main(int argc, char** argv) {
  using namespace tf_libra;
  return testing::RunTestsOverAll(
      {{"EqualsTheSum", EqualsTheSum},
       {"SizesOfAllKinds", SizesOfAllKinds},
       {"ScratchIsSmall", ScratchIsSmall},
       {"OneAfterTheOther", OneAfterTheOther},
       {"PeerThatSendsBytewise", PeerThatSendsBytewise},
       {"HeadersThatDiffer", HeadersThatDiffer},
       {"PeerThatIsGone", PeerThatIsGone},
       {"PeerThatIsGoneWhileAnotherIsLate", PeerThatIsGoneWhileAnotherIsLate},
       {"PeerThatDoesNotArrive", PeerThatDoesNotArrive},
       {"PeerThatStopsReading", PeerThatStopsReading},
       {"PositionsThatCannotBe", PositionsThatCannotBe},
       {"ProcessThatIsKilled", ProcessThatIsKilled},
       {"ProcessThatIsStopped", ProcessThatIsStopped},
       {"InterruptedBySignals", InterruptedBySignals}},
      argc, argv);
}
