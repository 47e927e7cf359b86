// SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for proofs that do not reveal the secret.
#ifndef TF_LIBRA_OPS_LANES_SHA256_H_
#define TF_LIBRA_OPS_LANES_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tf_libra {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  void Add(const void* data, size_t size);
  // Once; nothing may be added afterwards.
  Digest Finish();

 private:
  static constexpr size_t kBlock = 64;
  void AddBlock(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, kBlock> rest_;  // what does not fill a block yet
  uint64_t num_bytes_ = 0;
};

Digest HmacSha256(const std::string& key, const std::string& message);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_SHA256_H_
