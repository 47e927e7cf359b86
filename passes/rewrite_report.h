// Report of the pass: what it changed in a graph, and why it left all-reduces out.

#ifndef TF_LIBRA_PASSES_REWRITE_REPORT_H_
#define TF_LIBRA_PASSES_REWRITE_REPORT_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
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
  bool is_sharded = false;  // ranks update the parts that they own
  std::string whole;        // why every rank updates all, although sharding was requested
};

struct Skipped {
  enum class Kind { kNode, kTensor, kPlan };
  Kind kind;
  std::string name;
  std::string reason;
};

// State of the pass's changes in the executed graph. TensorFlow discards Grappler's result if one
// of its optimizers fails or takes too long, and other optimizers may remove nodes of the pass.
enum class Outcome { kUnknown, kActive, kLost };

struct GraphReport {
  std::vector<ReportedGroup> groups;  // in the order in which they run
  // Names of sums and gathered variables, in the order in which sharded updates exchange them.
  std::vector<std::string> exchanged;
  int num_fused_updates = 0;  // updates of owned parts that are one op each
  std::vector<Skipped> skipped;
  Outcome outcome = Outcome::kUnknown;
  std::vector<std::string> left;  // tensors that are executed as they were traced; set with outcome
  int64_t serial = 0;             // grows whenever a report of any graph is recorded
};

// The all-reduces of a graph that is about to be executed.
struct ExecutedGraph {
  std::unordered_set<std::string> written;  // nodes, by name
  std::vector<std::string> left;            // tensors of all-reduces that are in no plan
};

// Updates producers and control inputs from `graph`, in which other optimizers may have renamed or
// bypassed nodes. Groups whose node is gone stay unchanged.
void RefreshGroups(const tensorflow::GraphDef& graph, std::vector<ReportedGroup>* groups);

// Thread-safe; keeps the last report per plan and graph.
class RewriteReports {
 public:
  static RewriteReports& Global();

  void Record(const std::string& plan_id, const std::string& graph_id, GraphReport report);
  // Records whether the executed graph has all reported groups. Adds a report if the pass has not
  // seen the graph.
  void Confirm(const std::string& plan_id, const std::string& graph_id, ExecutedGraph executed);
  // Returns an empty report if none was recorded.
  GraphReport Find(const std::string& plan_id, const std::string& graph_id) const;
  void Erase(const std::string& plan_id);
  // {"plan": id, "graphs": [{"graph", "serial", "in_force", "groups": [...], "left": [...],
  // "skipped": [...]}]}, graphs by name; "in_force" is null if unknown.
  std::string ToJson(const std::string& plan_id) const;

 private:
  mutable std::mutex mutex_;
  int64_t last_serial_ = 0;
  std::map<std::string, std::map<std::string, GraphReport>> reports_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_REWRITE_REPORT_H_
