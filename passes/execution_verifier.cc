// Inspects each graph that is about to be executed under a plan, and records in the plan's report
// whether the graph has the nodes that the pass wrote. TensorFlow drops Grappler's result if an
// optimizer fails or takes too long, of which the pass learns nothing.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "passes/libra_optimizer.h"
#include "passes/pending_all_reduces.h"
#include "passes/rewrite_report.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/protobuf/config.pb.h"
#include "tensorflow/core/public/session_options.h"

namespace tf_libra {
namespace {

// The plan that the config of a call names; empty where it names none.
std::string PlanOf(const tensorflow::ConfigProto& config) {
  for (const auto& optimizer : config.graph_options().rewrite_options().custom_optimizers()) {
    if (optimizer.name() != kOptimizerName) continue;
    const auto found = optimizer.parameter_map().find("plan");
    if (found != optimizer.parameter_map().end()) return found->second.s();
  }
  return "";
}

class ExecutedGraphs : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.session_options == nullptr || options.function_def == nullptr ||
        options.graph == nullptr || *options.graph == nullptr) {
      return absl::OkStatus();
    }
    const std::string plan = PlanOf(options.session_options->config);
    if (plan.empty()) return absl::OkStatus();
    ExecutedGraph executed;
    for (const tensorflow::Node* node : (*options.graph)->op_nodes()) {
      if (IsWritten(node->def())) {
        executed.written.insert(node->name());
      } else if (IsPendingAllReduce(node->def())) {
        std::vector<std::string> names;
        tensorflow::TryGetNodeAttr(node->attrs(), "tensor_names", &names);
        executed.left.insert(executed.left.end(), names.begin(), names.end());
      }
    }
    if (executed.written.empty() && executed.left.empty()) return absl::OkStatus();
    std::sort(executed.left.begin(), executed.left.end());
    RewriteReports::Global().Confirm(plan, options.function_def->signature().name(),
                                     std::move(executed));
    return absl::OkStatus();
  }
};

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, 0,
                      ExecutedGraphs);

}  // namespace
}  // namespace tf_libra
