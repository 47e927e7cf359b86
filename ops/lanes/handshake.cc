#include "ops/lanes/handshake.h"

#include <sys/random.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace tf_libra {

Digest Proof(const JobSecret& secret, Role role, const Hello& hello, int32_t callee,
             const Nonce& nonce) {
  std::string message(1, static_cast<char>(role));
  message.append(reinterpret_cast<const char*>(&hello), sizeof(hello));
  message.append(reinterpret_cast<const char*>(&callee), sizeof(callee));
  message.append(nonce.begin(), nonce.end());
  return HmacSha256(std::string(secret.begin(), secret.end()), message);
}

bool SameDigest(const Digest& left, const Digest& right) {
  uint8_t difference = 0;
  for (size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == 0;
}

Nonce DrawNonce() {
  Nonce nonce;
  // So few bytes come in one call, or not at all.
  while (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return nonce;
}

}  // namespace tf_libra
