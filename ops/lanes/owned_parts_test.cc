#include "ops/lanes/owned_parts.h"

#include <cstdint>
#include <random>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra {
namespace {

TEST_CASE("OwnedElementsCoverTheTensorAndBeginAtWholeVectors") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    const size_t count = random() % (round % 2 == 0 ? 300 : size_t{1} << 40);
    const size_t world_size = 1 + random() % 9;
    size_t at = 0;
    for (size_t rank = 0; rank < world_size; ++rank) {
      const ByteRange owned = OwnedElements(count, world_size, rank);
      CHECK_EQ(owned.begin, at);
      CHECK(owned.end >= owned.begin);
      CHECK_EQ(owned.begin % kOwnedElements, 0u);
      CHECK(owned.size() <= count / world_size + 2 * kOwnedElements);
      at = owned.end;
    }
    CHECK_EQ(at, count);
  }
}

// Chunk k of every lane has the elements that rank k owns, and only what is sent or summed.
TEST_CASE("ChunksAreTheOwnedParts") {
  const std::vector<size_t> counts = {500, 0, 3, 1000};
  const size_t world_size = 3, num_lanes = 2;
  for (const ExchangeSteps steps : {ExchangeSteps::kReduceScatter, ExchangeSteps::kAllGather}) {
    for (size_t rank = 0; rank < world_size; ++rank) {
      std::vector<std::vector<int32_t>> inputs, outputs;
      std::vector<TensorView> tensors;
      for (size_t i = 0; i < counts.size(); ++i) {
        inputs.emplace_back(counts[i]);
        const bool is_part = steps == ExchangeSteps::kReduceScatter;
        outputs.emplace_back(is_part ? OwnedElements(counts[i], world_size, rank).size()
                                     : counts[i]);
      }
      for (size_t i = 0; i < counts.size(); ++i) {
        tensors.push_back({inputs[i].data(), outputs[i].data(), counts[i] * sizeof(int32_t)});
      }
      const OwnerLayout layout =
          LayOutByOwner(tensors, sizeof(int32_t), num_lanes, world_size, rank, steps);
      CHECK_EQ(layout.slices.back().end, layout.buffers.num_bytes());
      CHECK_EQ(layout.buffers.num_bytes(), 1503 * sizeof(int32_t));
      std::vector<size_t> of_rank(world_size);
      for (size_t lane = 0; lane < num_lanes; ++lane) {
        CHECK_EQ(layout.chunks[lane].front().begin, layout.slices[lane].begin);
        CHECK_EQ(layout.chunks[lane].back().end, layout.slices[lane].end);
        for (size_t owner = 0; owner < world_size; ++owner) {
          of_rank[owner] += layout.chunks[lane][owner].size();
        }
        // Every element of the own chunk is written once.
        layout.buffers.ForEachRun(layout.chunks[lane][rank],
                                  [](const char*, char* output, size_t size) {
                                    for (size_t at = 0; at < size; at += sizeof(int32_t)) {
                                      ++*reinterpret_cast<int32_t*>(output + at);
                                    }
                                    return true;
                                  });
      }
      for (size_t owner = 0; owner < world_size; ++owner) {
        size_t owned = 0;
        for (const size_t count : counts) owned += OwnedElements(count, world_size, owner).size();
        CHECK_EQ(of_rank[owner], owned * sizeof(int32_t));
      }
      for (size_t i = 0; i < counts.size(); ++i) {
        const ByteRange owned = OwnedElements(counts[i], world_size, rank);
        for (size_t at = 0; at < outputs[i].size(); ++at) {
          const bool is_own =
              steps == ExchangeSteps::kReduceScatter || (at >= owned.begin && at < owned.end);
          CHECK_EQ(outputs[i][at], is_own ? 1 : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tf_libra
