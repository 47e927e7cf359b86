#include "ops/lanes/sha256.h"

#include <cstdio>
#include <string>

#include "ops/lanes/testing.h"

namespace tf_libra::sha256_test {
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

// Added in pieces of this many bytes.
std::string HashOf(const std::string& text, size_t piece) {
  Sha256 hash;
  for (size_t at = 0; at < text.size(); at += piece) {
    hash.Add(text.data() + at, std::min(piece, text.size() - at));
  }
  return Hex(hash.Finish());
}

// The examples of FIPS 180-4, and a million times "a".
TEST_CASE("KnownDigests") {
  for (const size_t piece : {1u, 3u, 64u, 1000u}) {
    CHECK_EQ(HashOf("", piece), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_EQ(HashOf("abc", piece),
             "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_EQ(HashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", piece),
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK_EQ(HashOf(std::string(1000000, 'a'), piece),
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

// RFC 4231, cases 1, 2, 3 and 6.
TEST_CASE("KnownCodes") {
  CHECK_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(Hex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
           "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                          "Test Using Larger Than Block-Size Key - Hash Key First")),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

}  // namespace
}  // namespace tf_libra::sha256_test
