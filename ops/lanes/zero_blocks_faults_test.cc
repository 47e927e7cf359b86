// A peer that is lost, or falls silent, in the middle of what it sends without its zero blocks: of
// a part, of a sum, and of rows that are gathered. Whatever has come is all that is written.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ops/lanes/direct_all_reduce_testing.h"
#include "ops/lanes/testing.h"
#include "ops/lanes/zero_blocks.h"

namespace tf_libra::zero_blocks_faults_test {
namespace {

using Bytes = std::vector<char>;

// Of each of two ranks. One mixed segment, which fits the buffers of a connection.
constexpr size_t kChunkBytes = 64 * 1024;
constexpr size_t kGuardBytes = 4096;
constexpr char kUntouched = '\x55';

// Of three blocks, two are of zeros.
Bytes Sparse() {
  Bytes bytes(kChunkBytes);
  for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = at / kZeroBlockBytes % 3 == 0 ? 1 : 0;
  return bytes;
}

// A range as a sender sends it.
std::string Wire(const Bytes& bytes) {
  const Buffers buffers({{bytes.data(), nullptr, bytes.size()}});
  OutgoingSegments segments;
  std::string wire;
  for (size_t at = 0; at < bytes.size();) {
    segments.Begin(buffers, OutgoingSegments::Side::kInputs, {0, bytes.size()}, at, bytes.size(),
                   /*omits_zeros=*/true);
    CHECK(segments.current().header.kind == SegmentKind::kMixed);
    wire.append(segments.header_rest(), segments.header_left());
    for (size_t run = at, end; run < segments.current().end; run = end) {
      end = segments.current().RunEnd(run);
      if (segments.current().Travels(run)) wire.append(&bytes[run], end - run);
    }
    size_t all = SIZE_MAX;
    segments.Advance(bytes.size(), &at, &all);
  }
  return wire;
}

// An exchange of rank 0 with a peer that a test plays.
class Victim {
 public:
  Victim(ExchangeSteps steps, double timeout_seconds) : meshes_(testing::ConnectAll(2, 1)) {
    char* const data = output_.data() + kGuardBytes;
    const bool in_place = steps == ExchangeSteps::kAllGather;
    if (in_place) std::fill_n(data, kChunkBytes, '\1');
    buffers_ = Buffers({{in_place ? data : input_.data(), data, 2 * kChunkBytes}});
    options_ = testing::OptionsFor(meshes_[0], buffers_, timeout_seconds);
    options_.steps = steps;
  }

  // The peer sends the header and so much of `wire`. Then it leaves, or takes what comes and says
  // nothing any more.
  Status RunAgainst(const std::string& wire, size_t num_sent, bool leaves) {
    const Connection& connection = meshes_[1].lanes[0].column[0];
    const std::string bytes =
        testing::HeaderBytes(connection, options_.header) + wire.substr(0, num_sent);
    std::atomic<bool> is_over{false};
    std::thread peer([&] {
      CHECK_EQ(testing::Send(connection, bytes.data(), bytes.size()), testing::IsOk());
      if (leaves) {
        meshes_[1] = Mesh();
        return;
      }
      Bytes taken(kChunkBytes);
      while (!is_over) {
        const int fd = connection.socket.fd();
        if (recv(fd, taken.data(), taken.size(), MSG_DONTWAIT) <= 0) poll(nullptr, 0, 1);
      }
    });
    Bytes scratch;
    const Status status = testing::RunWatched(options_, &scratch).status;
    is_over = true;
    peer.join();
    return status;
  }

  // Of the peer's chunk the first `num_written` bytes at most have been written, and of all else
  // the own chunk.
  void CheckWritten(size_t num_written) const {
    const auto are_untouched = [this](size_t begin, size_t end) {
      return std::all_of(output_.begin() + begin, output_.begin() + end,
                         [](char byte) { return byte == kUntouched; });
    };
    CHECK(are_untouched(0, kGuardBytes));
    CHECK(are_untouched(kGuardBytes + kChunkBytes + num_written, output_.size()));
  }

 private:
  std::vector<Mesh> meshes_;
  const Bytes input_ = Bytes(2 * kChunkBytes, '\1');
  Bytes output_ = Bytes(2 * kGuardBytes + 2 * kChunkBytes, kUntouched);
  Buffers buffers_;
  ExchangeOptions options_;
};

// Where the stream of a range may end: in its header, behind it, in a block, between two, and a
// byte before its end.
std::vector<size_t> Cuts(size_t size) {
  constexpr size_t kHeader = sizeof(SegmentHeader);
  return {0,
          kHeader / 2,
          kHeader,
          kHeader + 100,
          kHeader + kZeroBlockBytes,
          kHeader + 3 * kZeroBlockBytes + 7,
          size - 1};
}

// Blocks that are whole by then, with the zeros between and behind them.
size_t NumWritten(size_t cut) {
  if (cut < sizeof(SegmentHeader)) return 0;
  return ((cut - sizeof(SegmentHeader)) / kZeroBlockBytes + 1) * 3 * kZeroBlockBytes;
}

void CheckLosses(ExchangeSteps steps, const std::string& before) {
  const std::string range = Wire(Sparse());
  for (const bool leaves : {true, false}) {
    std::vector<size_t> cuts = Cuts(range.size());
    if (!leaves) cuts = {cuts[3]};  // each takes its deadline
    for (const size_t cut : cuts) {
      Victim victim(steps, leaves ? testing::kGenerousSeconds : testing::kShortSeconds);
      const Status status = victim.RunAgainst(before + range, before.size() + cut, leaves);
      if (leaves) {
        CHECK_EQ(status, testing::StatusIs(StatusCode::kUnavailable, "rank 1"));
      } else {
        CHECK_EQ(status, testing::StatusIs(StatusCode::kDeadlineExceeded, "for rank(s) 1"));
      }
      const bool is_part = steps == ExchangeSteps::kAll && before.empty();
      victim.CheckWritten(is_part ? 0 : std::min(NumWritten(cut), kChunkBytes));
    }
  }
}

TEST_CASE("LostInMidPart") {
  testing::OverBoth();
  CheckLosses(ExchangeSteps::kAll, "");
}

TEST_CASE("LostInMidSum") {
  testing::OverBoth();
  CheckLosses(ExchangeSteps::kAll, Wire(Sparse()));
}

TEST_CASE("LostInMidRows") {
  testing::OverBoth();
  CheckLosses(ExchangeSteps::kAllGather, "");
}

// So much for the script: what it sends in full is taken.
TEST_CASE("WholeStreamsAreTaken") {
  testing::OverBoth();
  const std::string range = Wire(Sparse());
  Victim rows(ExchangeSteps::kAllGather, testing::kGenerousSeconds);
  CHECK_EQ(rows.RunAgainst(range, range.size(), /*leaves=*/false), testing::IsOk());
  rows.CheckWritten(kChunkBytes);
  Victim sums(ExchangeSteps::kAll, testing::kGenerousSeconds);
  CHECK_EQ(sums.RunAgainst(range + range, 2 * range.size(), /*leaves=*/false), testing::IsOk());
  sums.CheckWritten(kChunkBytes);
}

}  // namespace
}  // namespace tf_libra::zero_blocks_faults_test
