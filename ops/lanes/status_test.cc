#include "ops/lanes/status.h"

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "ops/lanes/testing.h"

namespace tf_libra::status_test {
namespace {

template <typename Thrown>
Status Caught(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return CaughtStatus("a lane cannot start");
  }
}

TEST_CASE("OnlyTheDefaultIsOk") {
  CHECK(Status().ok());
  CHECK_EQ(Status().message(), std::string());
  for (const StatusCode code :
       {StatusCode::kInvalidArgument, StatusCode::kFailedPrecondition, StatusCode::kUnavailable,
        StatusCode::kDeadlineExceeded, StatusCode::kResourceExhausted, StatusCode::kInternal}) {
    const Status status(code, "why");
    CHECK(!status.ok());
    CHECK(status.code() == code);
    CHECK_EQ(status.message(), std::string("why"));
  }
}

TEST_CASE("CopiesSayTheSame") {
  const std::string words(1000, 'w');
  Status copy;
  {
    const Status status(StatusCode::kUnavailable, words);
    copy = status;
  }
  CHECK(copy.code() == StatusCode::kUnavailable);
  CHECK_EQ(copy.message(), words);
}

TEST_CASE("MessagesAreValidUtf8") {
  const std::string cut = "/data/m\xC3";
  const std::string valid = "/data/m\xEF\xBF\xBD";
  CHECK_EQ(Status(StatusCode::kUnavailable, cut).message(), valid);
  CHECK_EQ(Status(StatusCode::kUnavailable, cut.c_str()).message(), valid);
  CHECK_EQ(Caught(std::runtime_error(cut)),
           testing::StatusIs(StatusCode::kInternal, "a lane cannot start: " + valid));
}

// An exception is reported by its type, after what was being done.
TEST_CASE("WhatIsThrownIsTold") {
  CHECK_EQ(Caught(std::bad_alloc()),
           testing::StatusIs(StatusCode::kResourceExhausted, "a lane cannot start: out of memory"));
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again),
                                    "thread");
  CHECK_EQ(Caught(no_thread),
           testing::StatusIs(StatusCode::kResourceExhausted, "a lane cannot start: thread: "));
  CHECK_EQ(Caught(std::runtime_error("the user's trouble")),
           testing::StatusIs(StatusCode::kInternal, "a lane cannot start: the user's trouble"));
  CHECK_EQ(Caught(5), testing::StatusIs(StatusCode::kInternal, "an exception of unknown type"));
}

}  // namespace
}  // namespace tf_libra::status_test
