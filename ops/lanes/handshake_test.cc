#include "ops/lanes/handshake.h"

#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::handshake_test {
namespace {

std::string Hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", byte);
    text += two;
  }
  return text;
}

// Rank 3 calls rank 1 on lane 2.
struct Conversation {
  JobSecret secret;
  Role role = Role::kCaller;
  Hello hello;
  int32_t callee = 1;
  Nonce nonce;

  Conversation() {
    for (size_t i = 0; i < secret.size(); ++i) secret[i] = static_cast<uint8_t>(i);
    std::memcpy(hello.magic, kMagic, sizeof(kMagic));
    hello.nonce.fill(7);
    hello.rank = 3;
    hello.lane = 2;
    hello.world_size = 8;
    hello.num_lanes = 4;
    nonce.fill(9);
  }
  std::string Shown() const { return Hex(Proof(secret, role, hello, callee, nonce)); }
};

// Python's hmac of the role, the hello, the callee and the nonce, one after the other: ranks of
// another build have to come to the same.
TEST_CASE("KnownProofs") {
  Conversation one;
  CHECK_EQ(one.Shown(), "98e25cada29df8e22a58f6dd11623107320a7ecf8cc06304ed2700831826bc00");
  one.role = Role::kCallee;
  CHECK_EQ(one.Shown(), "fdd6e071da71434fb54cb961cf799e8c4652a6880af529f95ec741b572233a81");
}

// With any bit flipped of what one side knows, sends or has drawn, another proof is required: the
// bytes of one connection open no other.
TEST_CASE("AProofIsOfOneConnectionAlone") {
  std::set<std::string> shown = {Conversation().Shown()};
  size_t expected = 1;
  const auto turn_all_of = [&](auto member) {
    Conversation one;
    auto* const bytes = reinterpret_cast<uint8_t*>(&(one.*member));
    for (size_t bit = 0; bit < 8 * sizeof(one.*member); ++bit) {
      bytes[bit / 8] ^= 1 << bit % 8;
      shown.insert(one.Shown());
      bytes[bit / 8] ^= 1 << bit % 8;
      ++expected;
    }
  };
  turn_all_of(&Conversation::secret);
  turn_all_of(&Conversation::hello);
  turn_all_of(&Conversation::callee);
  turn_all_of(&Conversation::nonce);
  Conversation one;
  one.role = Role::kCallee;
  shown.insert(one.Shown());
  CHECK_EQ(shown.size(), expected + 1);
}

TEST_CASE("DigestsAreTheSameInEveryByte") {
  Digest digest;
  digest.fill(0x5a);
  CHECK(SameDigest(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    for (const uint8_t bit : {0x01, 0x80}) {
      Digest other = digest;
      other[i] ^= bit;
      CHECK(!SameDigest(digest, other));
    }
  }
  // Differences that would cancel each other.
  Digest two = digest;
  two[0] ^= 1;
  two[31] ^= 1;
  CHECK(!SameDigest(digest, two));
}

TEST_CASE("NoncesAreDrawnAnew") {
  std::set<Nonce> drawn;
  for (int i = 0; i < 100; ++i) drawn.insert(DrawNonce());
  CHECK_EQ(drawn.size(), 100u);
}

}  // namespace
}  // namespace tf_libra::handshake_test
