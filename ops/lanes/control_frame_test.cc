#include "ops/lanes/control_frame.h"

#include <cstring>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::control_frame_test {
namespace {

using Kind = ControlHeader::Kind;

// Of rank 1 of six without hosts: its neighbours are 0, behind which are 2 to 4, and 5.
const Tree& OfRank1() {
  static const Tree* const tree = new Tree(1, 6, {});
  return *tree;
}

Status Check(Kind kind, uint32_t num_bytes, int origin, int target, int neighbour) {
  return CheckControlHeader(
      {ControlHeader::kMagic, static_cast<uint32_t>(kind), num_bytes, origin, target}, OfRank1(),
      neighbour);
}

TEST_CASE("IsReadAsItWasWritten") {
  const auto frame = MakeControlFrame(Kind::kAbort, 3, ControlHeader::kAll, "no data");
  ControlHeader header;
  std::memcpy(&header, frame->bytes.data(), sizeof(header));
  CHECK_EQ(frame->bytes.size(), sizeof(header) + 7);
  CHECK(header.Is(Kind::kAbort));
  CHECK_EQ(header.num_bytes, 7u);
  CHECK_EQ(header.origin, 3);
  CHECK_EQ(frame->text(), std::string("no data"));
  CHECK_EQ(CheckControlHeader(header, OfRank1(), 0), testing::IsOk());
}

TEST_CASE("WhatMayCome") {
  constexpr int kAll = ControlHeader::kAll;
  CHECK_EQ(OfRank1().Toward(4), 0);
  CHECK_EQ(OfRank1().Toward(5), 5);
  CHECK_EQ(Check(Kind::kData, ControlFrame::kMaxDataBytes, 4, kAll, 0), testing::IsOk());
  CHECK_EQ(Check(Kind::kData, 0, 5, kAll, 5), testing::IsOk());
  CHECK_EQ(Check(Kind::kGone, ControlFrame::kMaxWordsBytes, 2, kAll, 0), testing::IsOk());
  CHECK_EQ(Check(Kind::kProbe, 0, 4, 1, 0), testing::IsOk());
  CHECK_EQ(Check(Kind::kAlive, 0, 4, 5, 0), testing::IsOk());  // to be passed on
}

TEST_CASE("WhatMayNot") {
  constexpr int kAll = ControlHeader::kAll;
  const auto refused = [](Kind kind, uint32_t num_bytes, int origin, int target, int neighbour) {
    CHECK_EQ(Check(kind, num_bytes, origin, target, neighbour),
             testing::StatusIs(
                 StatusCode::kFailedPrecondition,
                 "rank " + std::to_string(neighbour) + " sent something that is no message"));
  };
  refused(Kind::kData, 0, 5, kAll, 0);  // who is behind another
  refused(Kind::kData, 0, 1, kAll, 0);  // the own rank
  for (const int nobody : {-1, 6}) refused(Kind::kData, 0, nobody, kAll, 0);
  refused(Kind::kData, 0, 0, 1, 0);
  refused(Kind::kData, ControlFrame::kMaxDataBytes + 1, 0, kAll, 0);
  refused(Kind::kAbort, ControlFrame::kMaxWordsBytes + 1, 0, kAll, 0);
  refused(Kind::kProbe, 1, 0, 1, 0);
  refused(Kind::kProbe, 0, 0, 2, 0);  // back to where it came from
  for (const int nobody : {-1, 6}) refused(Kind::kAlive, 0, 0, nobody, 0);
  refused(static_cast<Kind>(0), 0, 0, kAll, 0);
  refused(static_cast<Kind>(6), 0, 0, kAll, 0);
  ControlHeader header = MakeControlFrame(Kind::kData, 0, kAll, "")->header;
  header.magic = 1;
  CHECK_EQ(CheckControlHeader(header, OfRank1(), 0),
           testing::StatusIs(StatusCode::kFailedPrecondition, "rank 0"));
}

TEST_CASE("WhatIsTooLong") {
  const std::string most(ControlFrame::kMaxDataBytes, 'x');
  CHECK_EQ(CheckControlData(most), testing::IsOk());
  CHECK_EQ(CheckControlData(most + "x"),
           testing::StatusIs(StatusCode::kInvalidArgument, "bytes at most"));
}

}  // namespace
}  // namespace tf_libra::control_frame_test
