// A plan that is unregistered while Grappler is at a graph.

#include "passes/libra_optimizer.h"

#include <string>

#include "passes/plan_registry.h"
#include "passes/testing.h"
#include "tensorflow/core/grappler/grappler_item.h"
#include "tensorflow/core/protobuf/rewriter_config.pb.h"

namespace tf_libra {
namespace {

tensorflow::RewriterConfig_CustomGraphOptimizer Config() {
  tensorflow::RewriterConfig_CustomGraphOptimizer config;
  (*config.mutable_parameter_map())["plan"].set_s("plan");
  (*config.mutable_parameter_map())["digest"].set_s("digest");
  (*config.mutable_parameter_map())["op"].set_s("LibraAllReduce");
  return config;
}

tensorflow::grappler::GrapplerItem Item() {
  testing::Graph builder;
  builder.Reduce("a", "grad_a");
  builder.Reduce("b", "grad_b");
  tensorflow::grappler::GrapplerItem item;
  item.id = "graph";
  item.graph = builder.def;
  return item;
}

DOCTEST_TEST_CASE("GrapplerFinishesByThePlanItBeganWith") {
  const auto config = Config();
  const auto item = Item();
  const RegisteredPlan plan{"plan", "digest", {{{"a", "b"}, 1, 0}}, false};
  bool last = false;
  DOCTEST_CHECK(PlanRegistry::Global().Register(plan).ok());
  LibraOptimizer begun;
  DOCTEST_CHECK(begun.Init(&config).ok());
  DOCTEST_CHECK((PlanRegistry::Global().Unregister("plan", &last).ok() && last));

  tensorflow::GraphDef rewritten;
  DOCTEST_CHECK(begun.Optimize(nullptr, item, &rewritten).ok());
  LibraOptimizer too_late;
  DOCTEST_CHECK(too_late.Init(&config).ok());
  DOCTEST_CHECK(absl::IsAborted(too_late.Optimize(nullptr, item, &rewritten)));

  DOCTEST_CHECK(PlanRegistry::Global().Register(plan).ok());
  LibraOptimizer again;
  DOCTEST_CHECK(again.Init(&config).ok());
  DOCTEST_CHECK(again.Optimize(nullptr, item, &rewritten).ok());
}

}  // namespace
}  // namespace tf_libra
