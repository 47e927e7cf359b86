#include "ops/lanes/message_transfer.h"

#include <chrono>
#include <memory>
#include <string>
#include <unordered_set>

#include "ops/lanes/testing.h"

namespace tf_libra::message_transfer_test {
namespace {

constexpr double kTimeout = 100, kWarning = 10;

TransferPtr Made(int peer, const std::string& key, TimePoint last_progress = TimePoint()) {
  auto transfer = std::make_shared<Transfer>();
  transfer->peer = peer;
  transfer->key = key;
  transfer->last_progress = last_progress;
  return transfer;
}

TEST_CASE("TransfersThatCannotBe") {
  CHECK_EQ(CheckTransfer(*Made(1, "mx"), 0, 2), testing::IsOk());
  for (const int peer : {-1, 0, 2}) {
    CHECK_EQ(CheckTransfer(*Made(peer, "mx"), 0, 2),
             testing::StatusIs(
                 StatusCode::kInvalidArgument,
                 "another rank from 0 to 1, got " + std::to_string(peer) + " for 'x' at rank 0"));
  }
  CHECK_EQ(CheckTransfer(*Made(1, "m"), 0, 2),
           testing::StatusIs(StatusCode::kInvalidArgument, "got ''"));
}

TEST_CASE("WhoHasWaitedForHowLong") {
  const TimePoint now = Clock::now();
  const auto before = [now](int seconds) { return now - std::chrono::seconds(seconds); };
  const TransferPtr fresh = Made(1, "mfresh", before(4)), late = Made(1, "mlate", before(12)),
                    later = Made(1, "mlater", before(50)), over = Made(1, "mover", before(100)),
                    empty = Made(1, "mempty", before(500));
  empty->num_bytes = 1;
  empty->num_ready = 0;
  const std::unordered_set<TransferPtr> all = {fresh, late, later, over, empty};
  StalledTransfers waits = FindStalledTransfers(all, now, kTimeout, kWarning);
  CHECK_EQ(waits.overdue.size(), 1u);
  CHECK(waits.overdue[0] == over.get());
  CHECK_EQ(waits.late.size(), 2u);
  CHECK((waits.late[0] == later.get() && waits.late[1] == late.get()));
  CHECK((late->warned && later->warned && !fresh->warned && !empty->warned));
  // Once.
  waits = FindStalledTransfers({fresh, late, later}, now, kTimeout, kWarning);
  CHECK((waits.overdue.empty() && waits.late.empty()));
  CHECK_EQ(waits.next_check_seconds, kWarning - 4);
  waits = FindStalledTransfers({late, later}, now, kTimeout, kWarning);
  CHECK_EQ(waits.next_check_seconds, kTimeout - 50);
}

// All its bytes may be on their way to a receiver that never requests them.
TEST_CASE("EagerSendWaitsForItsRequest") {
  const TimePoint now = Clock::now();
  const TransferPtr send = Made(1, "cx", now - std::chrono::seconds(100));
  send->num_bytes = send->num_ready = send->num_moved = 8;
  send->is_eager = send->in_place = true;
  const auto overdue = [&] {
    return FindStalledTransfers({send}, now, kTimeout, kWarning).overdue.size();
  };
  CHECK_EQ(overdue(), 1u);
  send->is_matched = true;
  CHECK_EQ(overdue(), 0u);
  // Some of its bytes may wait for those of other ranks, unless they are copied as they come.
  send->num_bytes = send->num_ready = 16;
  CHECK_EQ(overdue(), 0u);
  send->copies = true;
  CHECK_EQ(overdue(), 1u);
}

TEST_CASE("NobodyIsWarnedOfWhatIsOverBefore") {
  const TimePoint now = Clock::now();
  const StalledTransfers waits = FindStalledTransfers(
      {Made(1, "mx", now - std::chrono::seconds(99))}, now, kTimeout, kTimeout);
  CHECK((waits.overdue.empty() && waits.late.empty()));
  CHECK_EQ(waits.next_check_seconds, 1.0);
}

}  // namespace
}  // namespace tf_libra::message_transfer_test
