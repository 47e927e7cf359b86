// Precompiled header of code without TensorFlow where it is built for tests (Makefile): headers of
// the standard library take up to half of a unit's compilation. The extension is built without it,
// so a unit includes what it uses all the same.
#ifndef TF_LIBRA_OPS_TESTING_PRECOMPILED_H_
#define TF_LIBRA_OPS_TESTING_PRECOMPILED_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#endif  // TF_LIBRA_OPS_TESTING_PRECOMPILED_H_
