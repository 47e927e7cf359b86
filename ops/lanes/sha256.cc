#include "ops/lanes/sha256.h"

#include <algorithm>
#include <cstring>

namespace tf_libra {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t Rotated(uint32_t value, int by) { return value >> by | value << (32 - by); }

}  // namespace

void Sha256::AddBlock(const uint8_t* block) {
  uint32_t words[64];
  for (int i = 0; i < 16; ++i) {
    words[i] = static_cast<uint32_t>(block[i * 4]) << 24 |
               static_cast<uint32_t>(block[i * 4 + 1]) << 16 |
               static_cast<uint32_t>(block[i * 4 + 2]) << 8 | block[i * 4 + 3];
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t low = words[i - 15], high = words[i - 2];
    words[i] = words[i - 16] + (Rotated(low, 7) ^ Rotated(low, 18) ^ low >> 3) + words[i - 7] +
               (Rotated(high, 17) ^ Rotated(high, 19) ^ high >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t one = h + (Rotated(e, 6) ^ Rotated(e, 11) ^ Rotated(e, 25)) +
                         ((e & f) ^ (~e & g)) + kRound[i] + words[i];
    const uint32_t two =
        (Rotated(a, 2) ^ Rotated(a, 13) ^ Rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const uint32_t sums[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state_[i] += sums[i];
}

void Sha256::Add(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (size > 0) {
    const size_t at = num_bytes_ % kBlock;
    const size_t count = std::min(size, kBlock - at);
    std::memcpy(rest_.data() + at, bytes, count);
    num_bytes_ += count;
    bytes += count;
    size -= count;
    if (at + count == kBlock) AddBlock(rest_.data());
  }
}

Digest Sha256::Finish() {
  const uint64_t num_bits = num_bytes_ * 8;
  const uint8_t one = 0x80, zero = 0;
  Add(&one, 1);
  while (num_bytes_ % kBlock != kBlock - 8) Add(&zero, 1);
  for (int shift = 56; shift >= 0; shift -= 8) {
    const auto byte = static_cast<uint8_t>(num_bits >> shift);
    Add(&byte, 1);
  }
  Digest digest;
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - i % 4 * 8));
  }
  return digest;
}

Digest HmacSha256(const std::string& key, const std::string& message) {
  uint8_t padded[64] = {};
  if (key.size() > sizeof(padded)) {
    Sha256 hash;
    hash.Add(key.data(), key.size());
    const Digest digest = hash.Finish();
    std::memcpy(padded, digest.data(), digest.size());
  } else {
    std::memcpy(padded, key.data(), key.size());
  }
  uint8_t inner[64], outer[64];
  for (size_t i = 0; i < sizeof(padded); ++i) {
    inner[i] = padded[i] ^ 0x36;
    outer[i] = padded[i] ^ 0x5c;
  }
  Sha256 within, around;
  within.Add(inner, sizeof(inner));
  within.Add(message.data(), message.size());
  const Digest digest = within.Finish();
  around.Add(outer, sizeof(outer));
  around.Add(digest.data(), digest.size());
  return around.Finish();
}

}  // namespace tf_libra
