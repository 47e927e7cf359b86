// The job, without Horovod; all-reduces by Horovod's kernel are in tests/backends.
#include "ops/horovod_executor.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

DOCTEST_TEST_CASE("ItRunsFromStartToStop") {
  HorovodJob job;
  DOCTEST_CHECK(!job.is_running());
  job.Start(1, 3);
  DOCTEST_CHECK(job.is_running());
  job.Stop();
  DOCTEST_CHECK(!job.is_running());
}

DOCTEST_TEST_CASE("TheFirstReasonStaysUntilTheNextJob") {
  HorovodJob job;
  job.Start(1, 3);
  DOCTEST_CHECK(job.status().ok());
  job.Fail(Status(StatusCode::kUnavailable, "the cause"));
  job.Fail(Status(StatusCode::kInternal, "what follows from it"));
  DOCTEST_CHECK(job.status().code() == StatusCode::kUnavailable);
  DOCTEST_CHECK_EQ(job.status().message(), "the cause");
  job.Stop();
  DOCTEST_CHECK_EQ(job.status().message(), "the cause");
  job.Start(1, 3);
  DOCTEST_CHECK(job.status().ok());
}

// One all-reduce of a name runs, the others wait in order; another name does not wait for them.
DOCTEST_TEST_CASE("OneOfANameIsUnderWay") {
  HorovodJob job;
  std::vector<std::string> started;
  const auto enter = [&](const std::string& name, const std::string& as) {
    job.Enter(name, [&started, as] { started.push_back(as); });
  };
  enter("a", "a1");
  enter("a", "a2");
  enter("b", "b1");
  enter("a", "a3");
  DOCTEST_CHECK(started == std::vector<std::string>{"a1", "b1"});
  job.Leave("a");
  DOCTEST_CHECK(started == std::vector<std::string>{"a1", "b1", "a2"});
  job.Leave("b");
  job.Leave("a");
  DOCTEST_CHECK_EQ(started.back(), "a3");
  job.Leave("a");
  enter("a", "a4");
  enter("b", "b2");
  DOCTEST_CHECK(started == std::vector<std::string>{"a1", "b1", "a2", "a3", "a4", "b2"});
}

// As Horovod may: it calls back before `start` returns.
DOCTEST_TEST_CASE("WhatStartsMayLeaveAtOnce") {
  HorovodJob job;
  int started = 0;
  for (int i = 0; i < 3; ++i) {
    job.Enter("a", [&] {
      ++started;
      job.Leave("a");
    });
  }
  DOCTEST_CHECK_EQ(started, 3);
}

DOCTEST_TEST_CASE("NeverTwoOfANameAtOnce") {
  HorovodJob job;
  std::atomic<int> under_way{0}, started{0};
  std::atomic<bool> overlapped{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        job.Enter("a", [&] {
          if (++under_way > 1) overlapped = true;
          ++started;
          --under_way;
          job.Leave("a");
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  DOCTEST_CHECK(!overlapped);
  DOCTEST_CHECK_EQ(started.load(), 400);
}

}  // namespace
}  // namespace tf_libra
