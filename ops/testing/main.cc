// Main program of a test file: `-tc=NAME` runs one test, `--help` lists the other options.
#define DOCTEST_CONFIG_IMPLEMENT
#include <unistd.h>

#include <atomic>
#include <iostream>

#include "ops/testing/checks.h"

namespace tf_libra {
namespace testing {
namespace {

std::atomic<int> failures{0};

// Receives every failed check, in whatever thread, and prints how each test ended.
class Listener : public doctest::IReporter {
 public:
  explicit Listener(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override { name_ = test.m_name; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& end) override {
    std::cerr << (end.testCaseSuccess ? "ok     " : "FAILED ") << name_ << " (" << end.seconds
              << " s)" << std::endl;
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& check) override { failures += check.m_failed; }
  void log_message(const doctest::MessageData& message) override {
    failures += message.m_severity != doctest::assertType::is_warn;
  }
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  const char* name_ = "";
};

REGISTER_LISTENER("failures", 1, Listener);

}  // namespace

int Failures() { return failures; }

}  // namespace testing
}  // namespace tf_libra

int main(int argc, char** argv) {
  alarm(800);  // a test that hangs ends the program
  doctest::Context context;
  context.setOption("no-intro", true);
  context.setCout(&std::cerr);  // written immediately: a child that a test forks leaves by _exit
  context.applyCommandLine(argc, argv);
  return context.run();
}
