#include "ops/lanes/direct_all_reduce.h"

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/direct_all_reduce_testing.h"

namespace tf_libra::direct_all_reduce_test {
namespace {

using testing::ConnectAll;
using testing::HeaderOf;
using testing::OnEveryRank;
using testing::OptionsFor;
using testing::Scripted;
using testing::Tensors;

std::vector<float> Sum(const std::vector<std::vector<float>>& inputs) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<float> sum(inputs[0].size());
  ReduceBlock(ElementType::kFloat32, Reduction::kSum, pointers, sum.size(), sum.data());
  return sum;
}

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

TEST_CASE("EqualsTheSum") {
  testing::OverAll();
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
          CHECK_EQ(result.status, testing::IsOk());
          CHECK_EQ(result.first_byte_nanos > 0, world_size > 1);
          CHECK(tensors[rank].Flat(true) == expected);
          if (!in_place) CHECK(tensors[rank].Flat(false) == inputs[rank]);
        });
      }
    }
  }
}

// Whatever the sizes are, and whichever rank is ahead: rings and blocks fill and empty at any
// place.
TEST_CASE("SizesOfAllKinds") {
  testing::OverAll();
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
        CHECK_EQ(testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch).status,
                 testing::IsOk());
      });
      const std::vector<float> expected = Sum(inputs);
      for (const Tensors& one : tensors) CHECK(one.Flat(true) == expected);
    }
  }
}

// What waits for the parts of all peers fits a cache, however many they are and however much it is.
TEST_CASE("ScratchIsSmall") {
  testing::OverAll();
  constexpr int kRanks = 12;
  const std::vector<Mesh> meshes = ConnectAll(kRanks, 1);
  for (const size_t count : {size_t{kRanks}, size_t{1} << 19}) {
    OnEveryRank(kRanks, [&](int rank) {
      const Tensors tensors({count}, rank, true);
      const Buffers buffers(tensors.views);
      std::vector<char> scratch;
      CHECK_EQ(testing::RunWatched(OptionsFor(meshes[rank], buffers), &scratch).status,
               testing::IsOk());
      CHECK(scratch.capacity() <= (count == kRanks ? size_t{32} << 10 : size_t{1} << 20));
    });
  }
}

// Several exchanges in a row over one lane, with nothing in between.
TEST_CASE("OneAfterTheOther") {
  testing::OverAll();
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
      CHECK_EQ(testing::RunWatched(options, &scratch).status, testing::IsOk());
      CHECK(tensors.Flat(true) == Sum(inputs));
    }
  });
}

// Everything comes a byte at a time, the header too.
TEST_CASE("PeerThatSendsBytewise") {
  testing::OverAll();
  Scripted script(2, 101);
  std::thread peer([&] {
    const ExchangeHeader header = HeaderOf(script.buffers);
    std::vector<float> theirs(101, 2.0f);  // chunks: [0, 50) is rank 0's, [50, 101) rank 1's
    for (const char byte : testing::HeaderBytes(script.End(1), header)) script.Send(1, &byte, 1);
    for (size_t i = 0; i < 50 * sizeof(float); ++i) {
      script.Send(1, reinterpret_cast<const char*>(theirs.data()) + i, 1);
    }
    const ExchangeHeader theirs_header = script.ReceiveHeader(1);
    CHECK(std::memcmp(&theirs_header, &header, sizeof(header)) == 0);
    const std::vector<char> part = script.Receive(1, 51 * sizeof(float));
    CHECK(std::memcmp(part.data(), script.tensors.inputs[0].data() + 50, part.size()) == 0);
    const std::vector<char> sum = script.ReceiveSum(1, 50 * sizeof(float));
    CHECK(std::memcmp(sum.data(), script.tensors.outputs[0].data(), sum.size()) == 0);
    for (size_t i = 0; i < 51 * sizeof(float); ++i) {
      script.SendSum(1, reinterpret_cast<const char*>(theirs.data() + 50) + i, 1);
    }
  });
  CHECK_EQ(script.Run().status, testing::IsOk());
  peer.join();
  for (size_t i = 0; i < 101; ++i) {
    CHECK_EQ(script.tensors.outputs[0][i], i < 50 ? script.tensors.inputs[0][i] + 2.0f : 2.0f);
  }
}

// Whatever the header says otherwise is named, and nothing of the payload is used.
TEST_CASE("HeadersThatDiffer") {
  testing::OverAll();
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
    CHECK_EQ(status, testing::StatusIs(StatusCode::kFailedPrecondition, "rank 2"));
    CHECK_EQ(status.message(), testing::Contains(one.expected));
    script.CheckUntouched();
  }
}

}  // namespace
}  // namespace tf_libra::direct_all_reduce_test
