// All-reduces and sends among 2 or more processes of one host: the latency of each, and CPU time.
// One round over all transports, element types and sizes. benchmarks/transport.py starts this
// program and defines the columns that it prints.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmarks/forked_ranks.h"
#include "benchmarks/lanes.h"
#include "ops/lanes/element.h"
#include "ops/lanes/lane_engine.h"

namespace {

using tf_libra::Clock;
using tf_libra::ElementType;
using tf_libra::Reduction;

constexpr size_t kLargest = 16 << 20;
// The small sizes show latency and get more repetitions: times `repetitions`, divided.
constexpr struct {
  size_t bytes;
  int times, divided;
} kSizes[] = {
    {4 << 10, 10, 1}, {64 << 10, 5, 1}, {1 << 20, 1, 1}, {4 << 20, 1, 2}, {kLargest, 1, 5}};
constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kFloat64,
                                  ElementType::kFloat16, ElementType::kBFloat16};

enum class Operation {
  kLane,        // a planned all-reduce in place
  kLaneCopy,    // the same into another buffer, as sends have two
  kCollective,  // by messages, as `tf_libra.collectives.all_reduce`
  kSend,        // each rank to the next, as `tf_libra.collectives.send` and `receive`
};

char* OtherBuffer() {
  static std::vector<char> buffer(kLargest);
  return buffer.data();
}

struct Transport {
  const char* name;
  bool all_types;  // or float32 alone
  std::shared_ptr<tf_libra::LaneEngine> engine;
  Operation operation;

  // Averages `data`, or sends it; blocks.
  void Run(ElementType type, char* data, size_t num_bytes) const {
    static const auto info = MakeOperation(Reduction::kAverage, 1);
    if (operation == Operation::kLane || operation == Operation::kLaneCopy) {
      char* const output = operation == Operation::kLane ? data : OtherBuffer();
      return ::AllReduce(engine.get(), info, type, data, output, num_bytes);
    }
    if (operation == Operation::kSend) return SendToNext(data, num_bytes);
    Block([&](std::function<void(const tf_libra::Status&)> done) {
      tf_libra::CollectiveRequest request;
      for (int rank = 0; rank < engine->world_size(); ++rank) request.ranks.push_back(rank);
      request.name = "tensor";
      request.element_type = type;
      request.element_size = ElementSize(type);
      request.reduction = Reduction::kAverage;
      request.input = request.output = data;
      request.num_bytes = num_bytes;
      request.done = std::move(done);
      engine->Run(std::move(request));
    });
  }

  void SendToNext(char* data, size_t num_bytes) const {
    const int world_size = engine->world_size();
    tf_libra::MessageRequest request;
    request.name = "tensor";
    request.data = data;
    request.num_bytes = num_bytes;
    std::atomic<int> left{2};
    Block([&](std::function<void(const tf_libra::Status&)> done) {
      request.done = [&left, done](const tf_libra::Status& status) {
        Require(status);
        if (--left == 0) done(status);
      };
      request.peer = (engine->rank() + 1) % world_size;
      engine->Send(request);
      request.peer = (engine->rank() + world_size - 1) % world_size;
      request.data = OtherBuffer();
      engine->Receive(request);
    });
  }
};

// Normal numbers of one magnitude, so that averages stay normal numbers, too.
void Fill(ElementType type, int rank, std::vector<char>* data) {
  std::mt19937 random(rank);
  for (size_t at = 0; at < data->size(); at += ElementSize(type)) {
    const float value = 1 + static_cast<float>(random() % 1024) / 1024;
    const double wide = value;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint16_t half = type == ElementType::kFloat16 ? 0x3c00 | (random() & 0x3ff) : bits >> 16;
    const void* const source = type == ElementType::kFloat32   ? static_cast<const void*>(&value)
                               : type == ElementType::kFloat64 ? static_cast<const void*>(&wide)
                                                               : static_cast<const void*>(&half);
    std::memcpy(data->data() + at, source, ElementSize(type));
  }
}

void Measure(const Transport& transport, ElementType type, size_t bytes, int repetitions,
             ForkedRanks* ranks, std::vector<char>* data) {
  std::vector<double> seconds;
  transport.Run(type, data->data(), bytes);
  ranks->Synchronize();
  const double cpu = CpuSeconds();
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    transport.Run(type, data->data(), bytes);
    seconds.push_back(-tf_libra::SecondsUntil(start));
  }
  const double mean = ranks->Mean((CpuSeconds() - cpu) / repetitions);
  if (ranks->rank() != 0) return;
  std::printf("%d %s %s %zu %.4e", ranks->world_size(), transport.name, ElementName(type), bytes,
              mean);
  for (const double one : seconds) std::printf(" %.4e", one);
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: latencies RANKS REPETITIONS\n");
    return 2;
  }
  ForkedRanks ranks(std::atoi(argv[1]));
  const int repetitions = std::atoi(argv[2]);
  {
    const auto memory = ranks.Connect(tf_libra::kUnixHost, 1, true);
    const Transport transports[] = {
        {"lanes-memory", true, memory, Operation::kLane},
        {"lanes-copy", false, memory, Operation::kLaneCopy},
        {"collectives", false, memory, Operation::kCollective},
        {"sends", false, memory, Operation::kSend},
        {"lanes-unix", false, ranks.Connect(tf_libra::kUnixHost, 1, false), Operation::kLane},
        {"lanes-tcp", false, ranks.Connect("127.0.0.1", 1, false), Operation::kLane}};
    std::vector<char> data(kLargest);
    for (const ElementType type : kTypes) {
      Fill(type, ranks.rank(), &data);
      for (const auto& size : kSizes) {
        const int times = std::max(1, repetitions * size.times / size.divided);
        for (const Transport& transport : transports) {
          if (type != ElementType::kFloat32 && !transport.all_types) continue;
          Measure(transport, type, size.bytes, times, &ranks, &data);
        }
      }
    }
  }
  return ranks.Join();
}
