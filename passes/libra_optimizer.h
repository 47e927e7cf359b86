// Registration of the pass with TensorFlow's Grappler.

#ifndef TF_LIBRA_PASSES_LIBRA_OPTIMIZER_H_
#define TF_LIBRA_PASSES_LIBRA_OPTIMIZER_H_

#include <memory>
#include <string>

#include "passes/plan_registry.h"
#include "passes/update_sharding.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"

namespace tf_libra {

// Name of the pass in the config of a function call.
inline constexpr char kOptimizerName[] = "tf_libra";

// Applies a registered plan to a graph. The parameter map names the plan:
//   "plan" (s): its id;
//   "digest" (s): the digest under which the id is registered;
//   "op" (s): the op to write, which needs a registered rewriter, such as "LibraAllReduce".
//   "sharding" (s): id of the registered sharding of updates; may be missing.
// If one of them is missing or does not match, the graph stays unchanged, and the report of the
// plan has the reason.
class LibraOptimizer : public tensorflow::grappler::CustomGraphOptimizer {
 public:
  std::string name() const override { return kOptimizerName; }
  // The pass ignores function bodies: Grappler optimizes each as a graph of its own.
  bool UsesFunctionLibrary() const override { return false; }

  absl::Status Init(const tensorflow::RewriterConfig_CustomGraphOptimizer* config) override;
  // Returns Aborted if nothing changes, which tells Grappler to keep the graph.
  absl::Status Optimize(tensorflow::grappler::Cluster* cluster,
                        const tensorflow::grappler::GrapplerItem& item,
                        tensorflow::GraphDef* optimized_graph) override;

 private:
  std::string plan_id_;
  std::string digest_;
  // Shared ownership: the plan may be unregistered before Grappler has finished.
  std::shared_ptr<const RegisteredPlan> plan_;
  std::string op_;
  std::shared_ptr<const UpdateSharding> sharding_;  // null: every rank updates all
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LIBRA_OPTIMIZER_H_
