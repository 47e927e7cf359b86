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

void GrapplerFinishesByThePlanItBeganWith() {
  const auto config = Config();
  const auto item = Item();
  const RegisteredPlan plan{"plan", "digest", {{{"a", "b"}, 1, 0}}, false};
  bool last = false;
  EXPECT_THAT_TRUE(PlanRegistry::Global().Register(plan).ok());
  LibraOptimizer begun;
  EXPECT_THAT_TRUE(begun.Init(&config).ok());
  EXPECT_THAT_TRUE(PlanRegistry::Global().Unregister("plan", &last).ok() && last);

  tensorflow::GraphDef rewritten;
  EXPECT_THAT_TRUE(begun.Optimize(nullptr, item, &rewritten).ok());
  LibraOptimizer too_late;
  EXPECT_THAT_TRUE(too_late.Init(&config).ok());
  EXPECT_THAT_TRUE(absl::IsAborted(too_late.Optimize(nullptr, item, &rewritten)));

  EXPECT_THAT_TRUE(PlanRegistry::Global().Register(plan).ok());
  LibraOptimizer again;
  EXPECT_THAT_TRUE(again.Init(&config).ok());
  EXPECT_THAT_TRUE(again.Optimize(nullptr, item, &rewritten).ok());
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests(
      {{"GrapplerFinishesByThePlanItBeganWith", GrapplerFinishesByThePlanItBeganWith}});
}
