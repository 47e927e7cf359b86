// Registration of the pass with TensorFlow's Grappler.

#ifndef TF_LIBRA_PASSES_LIBRA_OPTIMIZER_H_
#define TF_LIBRA_PASSES_LIBRA_OPTIMIZER_H_

#include <memory>
#include <string>

#include "passes/plan_registry.h"
#include "tensorflow/core/grappler/optimizers/custom_graph_optimizer.h"

namespace tf_libra {

// What the config of a call names it.
inline constexpr char kOptimizerName[] = "tf_libra";

// Applies a registered plan to the graph it is given. The parameter map names the plan:
//   "plan" (s): its id;
//   "digest" (s): must be the digest that the id is registered with;
//   "op" (s): the op to write, of which a rewriter is registered, such as "LibraAllReduce".
// Where one of them is missing or does not fit, the graph stays as it is, and the report of the
// plan says why.
class LibraOptimizer : public tensorflow::grappler::CustomGraphOptimizer {
 public:
  std::string name() const override { return kOptimizerName; }
  // Function bodies are not looked into: each is a graph of its own to Grappler.
  bool UsesFunctionLibrary() const override { return false; }

  absl::Status Init(const tensorflow::RewriterConfig_CustomGraphOptimizer* config) override;
  // Aborted where nothing changes, which Grappler takes as "keep the graph".
  absl::Status Optimize(tensorflow::grappler::Cluster* cluster,
                        const tensorflow::grappler::GrapplerItem& item,
                        tensorflow::GraphDef* optimized_graph) override;

 private:
  std::string plan_id_;
  std::string digest_;
  // Found at the start and held: the plan may be unregistered before Grappler is through.
  std::shared_ptr<const RegisteredPlan> plan_;
  std::string op_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_LIBRA_OPTIMIZER_H_
