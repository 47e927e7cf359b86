// Authentication of a new connection: each side proves that it knows the job's secret, by a keyed
// digest of nonces that both drew for this connection.
//
//   caller: Hello, with a nonce
//   callee: Answer, with a nonce and its proof
//   caller: its proof; within one host, on a lane, with the file of memory to share
//   callee: one byte: the connection is accepted, with or without that memory
//
// Proofs name the caller, the callee, the lane and the role, so the bytes of one connection open
// no other connection. A process that takes the address of a rank learns nothing that it could
// use. The secret does not protect against an attacker who changes bytes on the wire.
#ifndef TF_LIBRA_OPS_LANES_HANDSHAKE_H_
#define TF_LIBRA_OPS_LANES_HANDSHAKE_H_

#include <array>
#include <cstdint>

#include "ops/lanes/sha256.h"

namespace tf_libra {

// Drawn once per meeting of the ranks.
using JobSecret = std::array<uint8_t, 64>;
using Nonce = std::array<uint8_t, 32>;

// Plain integers of fixed size and one byte order: all machines of a job are of one kind, which the
// ranks compare before training.
struct Hello {
  char magic[8];
  Nonce nonce;
  int32_t rank;
  int32_t lane;
  int32_t world_size;
  int32_t num_lanes;
};
static_assert(sizeof(Hello) == 56, "Hello goes over the wire as it is");

struct Answer {
  char magic[8];
  Nonce nonce;
  Digest proof;
};
static_assert(sizeof(Answer) == 72, "Answer goes over the wire as it is");

inline constexpr char kMagic[8] = {'T', 'F', 'L', 'I', 'B', 'R', 'A', '6'};
inline constexpr uint8_t kWelcome = 1;
inline constexpr uint8_t kWelcomeInMemory = 2;

enum class Role : uint8_t { kCaller = 1, kCallee = 2 };

// Returns the proof of the side with this role, for a call of rank `callee` with `hello`, answered
// with `nonce`.
Digest Proof(const JobSecret& secret, Role role, const Hello& hello, int32_t callee,
             const Nonce& nonce);

// Takes the same time wherever the first difference is.
bool SameDigest(const Digest& left, const Digest& right);

// From the system's random numbers.
Nonce DrawNonce();

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_HANDSHAKE_H_
