#include "ops/lanes/zero_marks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/direct_all_reduce_testing.h"
#include "ops/lanes/engine_testing.h"
#include "ops/lanes/testing.h"

namespace tf_libra::zero_marks_test {
namespace {

using testing::Operation;

using Bytes = std::vector<char>;
using Random = std::mt19937;

TEST_CASE("PiecesAreOfBlocksAlike") {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<bool> zeros(6);
    for (size_t i = 0; i < zeros.size(); ++i) zeros[i] = random() % 2 == 0;
    const size_t end = random() % (zeros.size() * kMarkedBlockBytes + 1);
    const size_t begin = end == 0 ? 0 : random() % end;
    size_t next = begin, last_asked = SIZE_MAX;
    bool was_zero = false;
    const auto is_zero = [&](size_t at) {
      CHECK((at == begin || at % kMarkedBlockBytes == 0));
      CHECK(at != last_asked);
      last_asked = at;
      return zeros[at / kMarkedBlockBytes];
    };
    ForEachPiece(begin, end, is_zero, [&](size_t from, size_t to, bool zero) {
      CHECK_EQ(from, next);
      CHECK((from == begin || zero != was_zero));
      ForEachMarkedBlock(from, to, [&](size_t first, size_t stop) {
        CHECK_EQ(first, next);
        CHECK_EQ(first / kMarkedBlockBytes, (stop - 1) / kMarkedBlockBytes);
        CHECK_EQ(zeros[first / kMarkedBlockBytes], zero);
        next = stop;
      });
      CHECK_EQ(next, to);
      was_zero = zero;
    });
    CHECK_EQ(next, end);
  }
}

// What one side marks, the other reads, wherever blocks begin, until their last byte is read.
TEST_CASE("BlocksInARingHaveMarksOfTheirOwn") {
  constexpr size_t kCapacity = 16 << 10;
  struct Block {
    uint64_t begin;
    bool is_zero;
  };
  Socket file;
  std::unique_ptr<SharedMemory> maker, taker;
  CHECK_EQ(SharedMemory::Make(kCapacity, &maker, &file), testing::IsOk());
  CHECK_EQ(SharedMemory::Take(file, kCapacity, &taker), testing::IsOk());
  RingEnd* const out = maker->outgoing_sums();
  RingEnd* const in = taker->incoming_sums();
  Random random(2);
  std::deque<Block> blocks;
  for (uint64_t next = 0, read = 0; next < 200 * kCapacity;) {
    if (next < read + kCapacity) {
      blocks.push_back({next, random() % 2 == 0});
      *out->mark(next) = blocks.back().is_zero ? 1 : 0;
      next += kMarkedBlockBytes + (random() % 3 == 0 ? 64 * (random() % 70) : 0);
    } else {
      read += 1 + random() % kMarkedBlockBytes;
    }
    while (!blocks.empty() && blocks.front().begin + kMarkedBlockBytes <= read) blocks.pop_front();
    for (const Block& block : blocks) CHECK_EQ(*in->mark(block.begin) != 0, block.is_zero);
  }
  CHECK_EQ(*taker->incoming_parts()->mark(0), 0);  // of another ring
}

// Runs of gradients, of zeros, and of gradients with some negative zeros.
Bytes Values(const Operation& operation, int rank, Random* random) {
  Bytes values = testing::Gradients(operation, rank, /*seed=*/0);
  const size_t element = ElementSize(operation.type);
  const uint64_t negative = uint64_t{1} << (8 * element - 1);
  for (size_t at = 0; at < operation.num_elements();) {
    const size_t limit = 8 * kMarkedBlockBytes / element;
    const size_t end = std::min(operation.num_elements(), at + 1 + (*random)() % limit);
    const int kind = (*random)() % 3;
    for (; at < end; ++at) {
      if (kind == 1) std::memset(&values[at * element], 0, element);
      if (kind == 2 && at % 7 == 0) std::memcpy(&values[at * element], &negative, element);
    }
  }
  return values;
}

struct Rank {
  Bytes input, output;
  Buffers buffers;
  ExchangeResult result;

  // In place, or from memory that has other bytes.
  Rank(Bytes values, size_t first_bytes, bool in_place)
      : input(std::move(values)), output(input.size(), '\x55') {
    char* const data = in_place ? input.data() : output.data();
    buffers =
        Buffers({{input.data(), data, first_bytes},
                 {input.data() + first_bytes, data + first_bytes, input.size() - first_bytes}});
  }
  const Bytes& Reduced(bool in_place) const { return in_place ? input : output; }
};

// Exchanges of all types in a row, so that rings wrap around at any place of any block.
TEST_CASE("SumsAreThoseOfAllBytes") {
  testing::SetRendezvousHost(kUnixHost, true);
  Random random(3);
  for (const int world_size : {2, 3}) {
    const std::vector<Mesh> meshes = testing::ConnectAll(world_size, 1);
    for (int round = 0; round < 16; ++round) {
      const bool in_place = round % 2 == 0;
      Operation operation;
      operation.type = static_cast<ElementType>(round / 2 % 4);
      const size_t element = ElementSize(operation.type);
      const size_t block = kMarkedBlockBytes / element;
      operation.counts = {world_size * (random() % 150 * block + random() % 3) + random() % 3};
      operation.reduction = round % 3 == 0 ? Reduction::kSum : Reduction::kAverage;
      std::vector<Rank> ranks;
      std::vector<Bytes> inputs;
      std::vector<const void*> pointers;
      for (int rank = 0; rank < world_size; ++rank) {
        inputs.push_back(Values(operation, rank, &random));
        ranks.emplace_back(inputs.back(), operation.counts[0] / 3 * element, in_place);
      }
      for (const Bytes& input : inputs) pointers.push_back(input.data());
      Bytes expected(inputs[0].size());
      ReduceBlock(operation.type, operation.reduction, pointers, operation.counts[0],
                  expected.data());
      testing::OnEveryRank(world_size, [&](int rank) {
        ExchangeOptions options = testing::OptionsFor(meshes[rank], ranks[rank].buffers);
        options.header.element_type = static_cast<uint8_t>(operation.type);
        options.header.reduction = static_cast<uint8_t>(operation.reduction);
        options.omits_zeros = rank != round % 4;
        Bytes scratch;
        ranks[rank].result = testing::RunWatched(options, &scratch);
      });
      for (int rank = 0; rank < world_size; ++rank) {
        CHECK_EQ(ranks[rank].result.status, testing::IsOk());
        CHECK(ranks[rank].Reduced(in_place) == expected);
        if (rank == round % 4) CHECK_EQ(ranks[rank].result.num_omitted, 0u);
      }
    }
  }
}

// An exchange of rank 0 with one that a test plays, of zeros: of a chunk of several blocks each.
struct Zeros {
  static constexpr size_t kChunkBytes = 10 * kMarkedBlockBytes;
  std::vector<Mesh> meshes;
  Rank rank;
  ExchangeOptions options;

  explicit Zeros(bool in_place)
      : meshes((testing::SetRendezvousHost(kUnixHost, true), testing::ConnectAll(2, 1))),
        rank(Bytes(2 * kChunkBytes), 2 * kChunkBytes, in_place),
        options(testing::OptionsFor(meshes[0], rank.buffers)) {}

  const Connection& Peer() const { return meshes[1].lanes[0].column[0]; }
  void SendHeader() const {
    const std::string header = testing::HeaderBytes(Peer(), options.header);
    CHECK_EQ(testing::Send(Peer(), header.data(), header.size()), testing::IsOk());
  }
  // Of the first so many bytes of a range, its blocks are marked.
  static void Mark(RingEnd* ring, size_t num_bytes) {
    for (size_t at = 0; at + kMarkedBlockBytes <= num_bytes; at += kMarkedBlockBytes) {
      *ring->mark(ring->position() + at) = 1;
    }
  }
  bool IsUntouched(size_t begin, size_t end) const {
    return std::all_of(rank.output.begin() + begin, rank.output.begin() + end,
                       [](char byte) { return byte == '\x55'; });
  }
};

TEST_CASE("PeerIsLostInMidBlock") {
  constexpr size_t kChunk = Zeros::kChunkBytes;
  for (const bool in_sum : {false, true}) {
    for (const size_t cut : {size_t{0}, size_t{1}, kMarkedBlockBytes - 1, kMarkedBlockBytes,
                             3 * kMarkedBlockBytes + 100, kChunk - 1}) {
      Zeros zeros(/*in_place=*/false);
      zeros.SendHeader();
      SharedMemory* const memory = zeros.Peer().memory.get();
      Zeros::Mark(memory->outgoing_parts(), kChunk);
      static_cast<void>(memory->outgoing_parts()->Advance(in_sum ? kChunk : cut));
      if (in_sum) {
        Zeros::Mark(memory->outgoing_sums(), kChunk);
        static_cast<void>(memory->outgoing_sums()->Advance(cut));
      }
      zeros.meshes[1] = Mesh();
      Bytes scratch;
      CHECK_EQ(testing::RunWatched(zeros.options, &scratch).status,
               testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
      CHECK(zeros.IsUntouched(kChunk + (in_sum ? cut : 0), 2 * kChunk));
      if (!in_sum && cut < kChunk) CHECK(zeros.IsUntouched(0, kChunk));
    }
  }
}

// A peer may write anything, at any time: sums are wrong, and nothing else happens.
TEST_CASE("MarksThatChangeAllTheTime") {
  constexpr size_t kChunk = Zeros::kChunkBytes;
  for (int round = 0; round < 20; ++round) {
    Zeros zeros(/*in_place=*/round % 2 == 0);
    zeros.SendHeader();
    SharedMemory* const memory = zeros.Peer().memory.get();
    RingEnd* const rings[] = {memory->outgoing_parts(), memory->outgoing_sums()};
    const uint64_t starts[] = {rings[0]->position(), rings[1]->position()};
    std::atomic<bool> is_over{false};
    std::thread peer([&, random = Random(round)]() mutable {
      for (int i = 0; !is_over; ++i) {
        const size_t which = random() % 2;
        *rings[which]->mark(starts[which] + random() % kChunk) = static_cast<uint8_t>(random());
        if (i == 1000) AdvanceRing(zeros.Peer().socket.fd(), rings[0], kChunk);
        if (i == 2000) AdvanceRing(zeros.Peer().socket.fd(), rings[1], kChunk);
      }
    });
    Bytes scratch;
    CHECK_EQ(testing::RunWatched(zeros.options, &scratch).status, testing::IsOk());
    is_over = true;
    peer.join();
  }
}

}  // namespace
}  // namespace tf_libra::zero_marks_test
