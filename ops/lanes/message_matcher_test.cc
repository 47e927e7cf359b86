#include "ops/lanes/message_matcher.h"

#include <memory>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::message_matcher_test {
namespace {

TransferPtr Made(const std::string& key) {
  auto transfer = std::make_shared<Transfer>();
  transfer->key = key;
  return transfer;
}

TEST_CASE("TheFirstOfAKeyMeet") {
  MessageMatcher channels;
  const TransferPtr one = Made("mx"), next = Made("mx"), other = Made("my");
  TransferPtr transfer;
  Announced announced;
  channels.Post(one);
  channels.Post(next);
  channels.Post(other);
  CHECK(!channels.MatchNext("mx", &transfer, &announced));
  channels.Announce("my", {1, 8, "floats"});
  channels.Announce("mx", {2, 16, ""});
  CHECK(channels.MatchNext("mx", &transfer, &announced));
  CHECK(transfer == one);
  CHECK_EQ(announced.id, 2u);
  CHECK(!channels.MatchNext("mx", &transfer, &announced));
  channels.Announce("mx", {3, 16, ""});
  CHECK(channels.MatchNext("mx", &transfer, &announced));
  CHECK(transfer == next);
  CHECK(!channels.MatchNext("mx", &transfer, &announced));
  CHECK(channels.MatchNext("my", &transfer, &announced));
  CHECK(transfer == other);
  CHECK_EQ(announced.content, std::string("floats"));
}

TEST_CASE("WhatIsAnnouncedIsNamed") {
  MessageMatcher channels;
  CHECK_EQ(channels.NameAnnounced(3), std::string());
  channels.Post(Made("mposted"));
  CHECK_EQ(channels.NameAnnounced(3), std::string());
  channels.Announce("mb", {1, 4, "float32 [1]"});
  channels.Announce("mb", {2, 4, "float32 [2]"});
  channels.Announce("ma", {3, 4, "float32 [3]"});
  CHECK_EQ(channels.num_announced(), 3u);
  CHECK_EQ(channels.announced_bytes(), 39u);
  CHECK_EQ(channels.NameAnnounced(2), std::string("'a' (float32 [3]), 'b' (float32 [1])"));
  CHECK_EQ(channels.NameAnnounced(1), std::string("'a' (float32 [3]) and more"));
  TransferPtr transfer;
  Announced announced;
  channels.Post(Made("ma"));
  CHECK(channels.MatchNext("ma", &transfer, &announced));
  CHECK_EQ(channels.num_announced(), 2u);
  CHECK_EQ(channels.announced_bytes(), 26u);
  CHECK_EQ(channels.NameAnnounced(2), std::string("'b' (float32 [1])"));
}

}  // namespace
}  // namespace tf_libra::message_matcher_test
