#include "ops/lanes/execution_counter.h"

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::execution_counter_test {
namespace {

std::shared_ptr<const OperationInfo> Operation(const std::string& function,
                                               std::vector<std::string> names) {
  auto operation = std::make_shared<OperationInfo>();
  operation->function = function;
  operation->tensor_names = std::move(names);
  operation->ComputeDigest();
  return operation;
}

using Times = std::map<std::string, int64_t>;

// Those of one tensor are one tensor.
TEST_CASE("PartsCountWithTheFirst") {
  Executions executions;
  const auto parts = [](std::vector<int64_t> starts, std::vector<std::string> names) {
    auto operation = std::make_shared<OperationInfo>();
    operation->tensor_names = std::move(names);
    operation->part_starts = std::move(starts);
    operation->ComputeDigest();
    return operation;
  };
  executions.RecordExecution(parts({-1, 0}, {"a", "b"}));
  executions.RecordExecution(parts({8}, {"b"}));
  executions.RecordExecution(parts({20, -1}, {"b", "c"}));
  CHECK_EQ(executions.Count(""), 3);
  CHECK((executions.Take("") == Times{{"a", 1}, {"b", 1}, {"c", 1}}));
}

// A tensor may be in several operations, and an operation executed several times.
TEST_CASE("TensorsAreCountedByFunction") {
  Executions executions;
  const auto two = Operation("upper", {"a", "b"});
  executions.RecordExecution(two);
  executions.RecordExecution(two);
  executions.RecordExecution(Operation("upper", {"b"}));
  executions.RecordExecution(Operation("lower", {"a"}));
  CHECK_EQ(executions.Count("upper"), 5);
  CHECK_EQ(executions.Count("lower"), 1);
  CHECK_EQ(executions.Count("neither"), 0);
  CHECK((executions.Take("upper") == Times{{"a", 2}, {"b", 3}}));
  CHECK_EQ(executions.Count("upper"), 0);
  CHECK(executions.Take("upper").empty());
  CHECK_EQ(executions.Count("lower"), 1);
}

TEST_CASE("ThreadsLoseNothing") {
  Executions executions;
  const auto operation = Operation("step", {"a", "b", "c"});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) executions.RecordExecution(operation);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(executions.Count("step"), 12000);
  CHECK_EQ(executions.Take("step")["c"], 4000);
}

TEST_CASE("NamesAreQuoted") {
  CHECK_EQ(ExecutionsJson({}), std::string("{}"));
  CHECK_EQ(ExecutionsJson({{"a\"b", 1}, {"c", 20}}), std::string("{\"a\\\"b\":1,\"c\":20}"));
}

}  // namespace
}  // namespace tf_libra::execution_counter_test
