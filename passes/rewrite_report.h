// What the pass did to a graph, and why it left out what it left out.

#ifndef TF_LIBRA_PASSES_REWRITE_REPORT_H_
#define TF_LIBRA_PASSES_REWRITE_REPORT_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

struct ReportedTensor {
  std::string name;
  std::string producer;  // node that feeds the all-reduce
  int port = 0;          // its output
};

struct ReportedGroup {
  int group = 0;
  int copy = 0;  // which copy of the step inside the graph
  std::string node;
  int num_threads = 1;
  std::string dtype;
  std::vector<ReportedTensor> tensors;
  std::vector<std::string> control_inputs;
};

struct Skipped {
  enum class Kind { kNode, kTensor, kPlan };
  Kind kind;
  std::string name;
  std::string reason;
};

struct GraphReport {
  std::vector<ReportedGroup> groups;
  std::vector<Skipped> skipped;
};

// Brings producers and control inputs up to date with `graph`, where other optimizers may have
// renamed or bypassed them since. Groups whose node is gone are left as they are.
void RefreshReport(const tensorflow::GraphDef& graph, GraphReport* report);

// Thread-safe; keeps the last report per plan and graph.
class RewriteReports {
 public:
  static RewriteReports& Global();

  void Record(const std::string& plan_id, const std::string& graph_id, GraphReport report);
  // Empty where nothing was recorded.
  GraphReport Find(const std::string& plan_id, const std::string& graph_id) const;
  void Erase(const std::string& plan_id);
  // {"plan": id, "graphs": [{"graph", "groups": [...], "skipped": [...]}]}, graphs by name.
  std::string ToJson(const std::string& plan_id) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, GraphReport>> reports_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_REWRITE_REPORT_H_
