// Two ranks of one thread, which move by hand what an exchange would.
#include "ops/lanes/direct_all_reduce_io.h"

#include <cstring>
#include <string>
#include <vector>

#include "ops/lanes/direct_all_reduce_testing.h"

namespace tf_libra::direct_all_reduce_io_test {
namespace {

constexpr size_t kBlock = 256;

// One side: the slice is two chunks, and this rank owns that of its number.
struct Side {
  testing::Tensors tensors;
  Buffers buffers;
  ExchangeOptions options;
  std::vector<char> block = std::vector<char>(kBlock);
  ExchangeIo moves;
  std::vector<ExchangePeer> peers;

  Side(const Mesh& mesh, size_t count_of_a_chunk, int64_t sequence)
      : tensors({2 * count_of_a_chunk}, mesh.rank, false),
        buffers(tensors.views),
        options(Options(mesh, sequence)),
        moves(options, Chunk(mesh.rank), kBlock) {
    ExchangePeer peer;
    peer.index = peer.rank = 1 - mesh.rank;
    const Connection& connection = mesh.lanes[0].column[peer.index];
    peer.fd = connection.socket.fd();
    peer.memory = connection.memory.get();
    peer.chunk = Chunk(peer.rank);
    peer.block = block.data();
    peers.push_back(peer);
  }
  Side(const Side&) = delete;

  ExchangeOptions Options(const Mesh& mesh, int64_t sequence) {
    ExchangeOptions made = testing::OptionsFor(mesh, buffers);
    made.header.sequence = sequence;
    return made;
  }
  ByteRange Chunk(int rank) const {
    const size_t half = buffers.num_bytes() / 2;
    return rank == 0 ? ByteRange{0, half} : ByteRange{half, 2 * half};
  }
  ExchangePeer* peer() { return &peers[0]; }
  // There may be news at any time.
  Step Receive() {
    peer()->is_drained = false;
    return moves.Receive(peer());
  }
  Step Send() {
    peer()->is_full = false;
    return moves.Send(peer());
  }
  void Turn() {
    CHECK(Receive() != Step::kFailed);
    CHECK(Send() != Step::kFailed);
  }
};

struct Two {
  std::vector<Mesh> meshes = testing::ConnectAll(2, 1);
  Side one, other;

  explicit Two(size_t count_of_a_chunk, int64_t other_sequence = 5)
      : one(meshes[0], count_of_a_chunk, 5), other(meshes[1], count_of_a_chunk, other_sequence) {}

  template <typename Condition>
  void MoveUntil(Condition holds) {
    while (!holds(one) || !holds(other)) {
      one.Turn();
      other.Turn();
    }
  }
  void MoveParts() {
    MoveUntil([](const Side& side) { return !side.moves.LacksPart(side.peers[0]); });
  }
};

// Blocks that are the whole chunk, one more, and one less than it; of floats.
TEST_CASE("PartsAndSumsComeBlockByBlock") {
  testing::OverAll();
  for (const size_t count : {size_t{1}, kBlock / 4 - 1, kBlock / 4, kBlock / 4 + 1, kBlock}) {
    Two two(count);
    const size_t chunk = count * 4;
    size_t num_blocks = 0;
    while (two.one.moves.summed() < chunk) {
      two.MoveParts();
      for (Side* side : {&two.one, &two.other}) {
        const ExchangeIo& moves = side->moves;
        CHECK(!moves.LacksPart(*side->peer()));
        CHECK_EQ(moves.BlockEnd(), std::min(chunk, moves.summed() + kBlock));
        // A "sum" here is what the other sent.
        const size_t begin = moves.summed(), size = moves.BlockEnd() - begin;
        char* const to = reinterpret_cast<char*>(side->tensors.outputs[0].data());
        std::memcpy(to + side->Chunk(1 - side->peer()->rank).begin + begin,
                    moves.PartOf(*side->peer(), begin, false), size);
        CHECK(!moves.SentAll(*side->peer()));
        side->moves.Summed(begin + size, &side->peers);
      }
      ++num_blocks;
    }
    CHECK_EQ(num_blocks, (chunk + kBlock - 1) / kBlock);
    two.MoveUntil([](const Side& side) {
      return side.moves.SentAll(side.peers[0]) && side.moves.ReceivedAll(side.peers[0]);
    });
    for (Side* side : {&two.one, &two.other}) {
      CHECK(!side->moves.WantsToSend(*side->peer()));
      CHECK(!side->moves.WantsToReceive(*side->peer()));
      CHECK_EQ(side->moves.result()->status, testing::IsOk());
      CHECK(side->moves.result()->first_byte_nanos > 0);
    }
    // Each chunk is of the rank that does not own it, on both.
    const auto &mine = two.one.tensors, &theirs = two.other.tensors;
    for (size_t i = 0; i < 2 * count; ++i) {
      const float expected = (i < count ? theirs : mine).inputs[0][i];
      CHECK_EQ(mine.outputs[0][i], expected);
      CHECK_EQ(theirs.outputs[0][i], expected);
    }
  }
}

// No sum is sent before there is one, and no more of it than there is.
TEST_CASE("SumsWaitForTheirBlock") {
  testing::OverAll();
  Two two(kBlock);
  two.MoveUntil([](const Side& side) {
    const ExchangePeer& peer = side.peers[0];
    return !side.moves.LacksPart(peer) && peer.part_sent == peer.chunk.size();
  });
  ExchangeIo& moves = two.one.moves;
  CHECK(!moves.WantsToSend(*two.one.peer()));
  CHECK(two.one.Send() == Step::kBlocked);
  CHECK_EQ(two.one.peer()->sum_sent, 0u);
  moves.Summed(kBlock, &two.one.peers);
  CHECK(moves.WantsToSend(*two.one.peer()));
  while (two.one.peer()->sum_sent < kBlock) two.one.Turn();
  CHECK_EQ(two.one.peer()->sum_sent, kBlock);
  CHECK(!moves.WantsToSend(*two.one.peer()));
  CHECK(!moves.SentAll(*two.one.peer()));
}

// Both sides find the difference, whichever reads first, and nothing of the payload is taken.
TEST_CASE("HeadersThatDifferAreTheEnd") {
  testing::OverAll();
  Two two(kBlock, 6);
  Step step = Step::kBlocked;
  CHECK(two.other.Send() == Step::kProgress);
  while (step == Step::kBlocked) step = two.one.Receive();
  CHECK(step == Step::kFailed);
  CHECK_EQ(two.one.moves.result()->status,
           testing::StatusIs(StatusCode::kFailedPrecondition,
                             "rank 1 is at all-reduce 6, this rank at 5"));
  CHECK_EQ(two.one.peer()->header_sent, sizeof(ExchangeHeader));  // though it was to fail
  step = Step::kBlocked;
  while (step == Step::kBlocked) step = two.other.Receive();
  CHECK(step == Step::kFailed);
  CHECK_EQ(two.other.moves.result()->status,
           testing::StatusIs(StatusCode::kFailedPrecondition,
                             "rank 0 is at all-reduce 5, this rank at 6"));
  CHECK_EQ(two.one.peer()->part_received + two.other.peer()->part_received, 0u);
}

TEST_CASE("APeerThatClosesIsNamed") {
  testing::OverBoth();
  Two two(kBlock);
  two.meshes[1].lanes[0].column[0].Shutdown();
  Step step = Step::kBlocked;
  while (step == Step::kBlocked) step = two.one.Receive();
  CHECK(step == Step::kFailed);
  CHECK_EQ(two.one.moves.result()->status, testing::StatusIs(StatusCode::kUnavailable, "rank 1 "));
}

}  // namespace
}  // namespace tf_libra::direct_all_reduce_io_test
