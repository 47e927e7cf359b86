#include "ops/lanes/engine_shutdown.h"

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "ops/lanes/engine_testing.h"

namespace tf_libra::engine_shutdown_test {
namespace {

using testing::ConnectAll;
using testing::MakeEngine;
using testing::Patient;
using testing::Small;

// What follows an all-reduce does not return: closing says so in time, and leaves it alone.
TEST_CASE("ClosingEndsInTime") {
  testing::OverAll();
  std::vector<Mesh> meshes = ConnectAll(2, 2);
  LaneEngineOptions options;
  options.timeout_seconds = testing::kShortSeconds;
  auto engine = MakeEngine(options, std::move(meshes[0]));
  std::promise<void> entered, leave;
  auto left = std::make_shared<std::promise<void>>();
  AllReduceRequest request;
  request.operation = Small().Info();
  request.done = [&, left](const Status&) {
    entered.set_value();
    leave.get_future().wait();
    left->set_value();
  };
  engine->AllReduce(std::move(request));
  meshes.clear();
  entered.get_future().wait();
  CHECK_EQ(EndWithin(std::move(engine), "it ends"),
           testing::StatusIs(StatusCode::kDeadlineExceeded, "has not returned"));
  leave.set_value();
  left->get_future().wait();  // it uses what lies on this stack
  auto quick = MakeEngine(Patient(), std::move(ConnectAll(1, 1)[0]));
  CHECK_EQ(EndWithin(std::move(quick), "it ends"), testing::IsOk());
}

}  // namespace
}  // namespace tf_libra::engine_shutdown_test
