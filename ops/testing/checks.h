// Checks of the C++ tests: doctest, and what doctest needs to know about tests that fork.
#ifndef TF_LIBRA_OPS_TESTING_CHECKS_H_
#define TF_LIBRA_OPS_TESTING_CHECKS_H_

// A check is a call, and no `try` around one: a third of a test's compilation.
#define DOCTEST_CONFIG_SUPER_FAST_ASSERTS
// Signals are for the sanitizers, which say more, and for the tests' own children.
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <string>

#include "third_party/doctest/doctest.h"

namespace tf_libra {
namespace testing {

// Checks of this process that have failed so far: a forked child exits with that, and what has
// failed once need not be tried a hundred times.
int Failures();

// CHECK_EQ(text, Contains("part"))
inline doctest::Contains Contains(const std::string& part) {
  return doctest::Contains(doctest::String(part.data(), static_cast<unsigned>(part.size())));
}

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_TESTING_CHECKS_H_
