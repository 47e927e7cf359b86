#include "ops/async_handle.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ops/testing/tensorflow.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_libra {
namespace {

using tensorflow::Tensor;

const Status kLost(StatusCode::kUnavailable, "rank 1 is gone");

DOCTEST_TEST_CASE("WhoComesBeforeTheEndIsCalledAtIt") {
  Pending pending({});
  std::vector<std::string> heard;
  pending.Then([&](const Status& status) { heard.push_back(status.message()); });
  DOCTEST_CHECK(heard.empty());
  DOCTEST_CHECK(pending.status().ok());
  pending.End(kLost);
  DOCTEST_CHECK(heard == std::vector<std::string>{"rank 1 is gone"});
  DOCTEST_CHECK(pending.status().code() == StatusCode::kUnavailable);
}

DOCTEST_TEST_CASE("WhoComesAfterTheEndIsCalledAtOnce") {
  Pending pending({});
  pending.End(kLost);
  int called = 0;
  pending.Then([&](const Status& status) {
    ++called;
    DOCTEST_CHECK_EQ(status.message(), "rank 1 is gone");
    DOCTEST_CHECK_EQ(pending.status().message(), "rank 1 is gone");  // no lock is held
  });
  DOCTEST_CHECK_EQ(called, 1);
}

// Until the end, and no longer: what follows may want the memory.
DOCTEST_TEST_CASE("TensorsLiveUntilTheEnd") {
  Tensor tensor(tensorflow::DT_FLOAT, {4});
  Pending pending({tensor});
  DOCTEST_CHECK(!tensor.RefCountIsOne());
  bool was_free = false;
  pending.Then([&](const Status&) { was_free = tensor.RefCountIsOne(); });
  DOCTEST_CHECK(!tensor.RefCountIsOne());
  pending.End(Status());
  DOCTEST_CHECK(was_free);
}

// Whichever is first, what follows is called once.
DOCTEST_TEST_CASE("EndAndThenAtOnce") {
  for (int round = 0; round < 200; ++round) {
    Pending pending({});
    std::atomic<int> called{0};
    std::thread ends([&] { pending.End(Status()); });
    pending.Then([&](const Status&) { ++called; });
    ends.join();
    DOCTEST_CHECK_EQ(called.load(), 1);
  }
}

// Copies of the tensor that holds it stand for the same; out of the process it cannot come.
DOCTEST_TEST_CASE("AHandleIsOfThisProcess") {
  const auto pending = std::make_shared<Pending>(std::vector<Tensor>());
  const tensorflow::Variant handle = PendingHandle{pending};
  const tensorflow::Variant copy = handle;
  DOCTEST_CHECK(copy.get<PendingHandle>()->pending == pending);
  DOCTEST_CHECK(copy.get<int>() == nullptr);
  DOCTEST_CHECK(!PendingHandle().Decode(tensorflow::VariantTensorData()));
}

}  // namespace
}  // namespace tf_libra
