// Helpers for tests of the direct all-reduce: tensors, and ranks that a test plays.
#ifndef TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_TESTING_H_
#define TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_TESTING_H_

#include <random>
#include <string>
#include <vector>

#include "ops/lanes/direct_all_reduce.h"
#include "ops/lanes/testing.h"
#include "ops/lanes/zero_blocks.h"

namespace tf_libra {
namespace testing {

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

inline ExchangeHeader HeaderOf(const Buffers& buffers) {
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

inline ExchangeOptions OptionsFor(const Mesh& mesh, const Buffers& buffers,
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
    CHECK_EQ(testing::Send(End(rank), data, size), testing::IsOk());
  }
  void SendHeader(int rank, const ExchangeHeader& header) {
    const std::string bytes = testing::HeaderBytes(End(rank), header);
    Send(rank, bytes.data(), bytes.size());
  }
  std::vector<char> Receive(int rank, size_t size) {
    std::vector<char> data(size);
    CHECK_EQ(testing::Receive(End(rank), data.data(), size), testing::IsOk());
    return data;
  }
  // Of bytes that travel whole: over sockets only.
  void SendSegmentHeader(int rank, size_t num_bytes) {
    SegmentHeader header;
    header.num_bytes = static_cast<uint32_t>(num_bytes);
    if (End(rank).memory == nullptr) Send(rank, &header, sizeof(header));
  }
  // A part that has no zeros.
  void ReceiveWhole(int rank, size_t size) {
    while (size > 0) {
      SegmentHeader header;
      header.num_bytes = static_cast<uint32_t>(size);
      if (End(rank).memory == nullptr) {
        CHECK_EQ(testing::Receive(End(rank), &header, sizeof(header)), testing::IsOk());
      }
      CHECK(header.kind == SegmentKind::kWhole);
      Receive(rank, header.num_bytes);
      size -= header.num_bytes;
    }
  }
  void SendSum(int rank, const void* data, size_t size) {
    CHECK_EQ(testing::SendSum(End(rank), data, size), testing::IsOk());
  }
  std::vector<char> ReceiveSum(int rank, size_t size) {
    std::vector<char> data(size);
    CHECK_EQ(testing::ReceiveSum(End(rank), data.data(), size), testing::IsOk());
    return data;
  }
  ExchangeHeader ReceiveHeader(int rank) {
    ExchangeHeader header;
    CHECK_EQ(testing::ReceiveHeader(End(rank), &header), testing::IsOk());
    return header;
  }
  void CheckUntouched() {
    for (const float value : tensors.outputs[0]) CHECK_EQ(value, -1.0f);
  }
};

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_DIRECT_ALL_REDUCE_TESTING_H_
