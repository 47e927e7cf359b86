// Updates of weights that a rank can compute for the parts of tensors that it owns.

#ifndef TF_LIBRA_PASSES_OWNED_UPDATES_H_
#define TF_LIBRA_PASSES_OWNED_UPDATES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/graph_writer.h"
#include "passes/rewrite_report.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_libra {

// The updates of one trace that are element-wise, as Python has found.
struct UpdateSharding {
  std::map<std::string, int64_t> num_elements;  // by gradient
  std::set<int> slots;                          // arguments of the function, by index
  bool overlaps_calls = false;                  // whether the last gathers go on after the graph
};

// Thread-safe map from id to shardings, which Python adds and nothing changes.
class UpdateShardings {
 public:
  static UpdateShardings& Global();
  void Register(const std::string& id, UpdateSharding sharding);
  // Returns null for an unknown id.
  std::shared_ptr<const UpdateSharding> Find(const std::string& id) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const UpdateSharding>> shardings_;
};

bool IsReshape(const std::string& op);

// Python lets these ops through only if they combine all elements, over all axes. "All" and "Any"
// are of type bool.
bool IsSum(const std::string& op);
tensorflow::DataType SumType(const tensorflow::NodeDef& sum);

// The mode of LibraAssignOwned; nullptr for an op that is no dense assignment.
const char* AssignMode(const std::string& op);

struct Use {
  int node;
  int slot;  // index of the input
  int port;  // of the output that is used; Graph::kControlSlot for a control edge
};

// Finds, for one all-reduce after the other, the nodes that compute owned parts.
class OwnedUpdates {
 public:
  // All arguments must outlive this object. The positions of the graph's nodes must not change.
  OwnedUpdates(const UpdateSharding& sharding, const NodesToKeep& keep,
               const tensorflow::GraphDef* graph);

  // Returns why the all-reduce of `group` stays whole; empty if it does not. `taken` are the parts
  // of the groups before: copies of a step share variables, and so what computes parts of them.
  std::string Collect(const ReportedGroup& group, const std::unordered_map<int, int64_t>& taken);

  int root() const { return root_; }
  // Nodes that sum all elements of an owned part; of the tensor, when ranks have added them. If a
  // tensor has one element, TensorFlow may have made the sum a Reshape.
  const std::set<int>& sums() const { return sums_; }
  // Nodes that compute owned parts, with the size of the whole tensor.
  const std::unordered_map<int, int64_t>& parts() const { return parts_; }
  const std::vector<std::vector<Use>>& uses() const { return uses_; }
  const std::unordered_map<std::string, int>& index() const { return index_; }

  // The dimensions, of one element each, of the output of a node that sums all elements; -1 if they
  // are unknown.
  int NumDimsOfSum(int node) const;

  // The node that puts out the handle that `node` takes, perhaps through conditionals.
  int HandleOf(int node) const;
  // The Switches that the handle passes on its way to `node`, from the innermost conditional on.
  std::vector<int> SwitchesOf(int node) const;
  bool IsSlot(int handle) const;

 private:
  void CollectParts(const ReportedGroup& group, const std::unordered_map<int, int64_t>& taken);
  void VisitParts();
  // Adds assignments that depend on no gradient, between two updates that do. Returns whether there
  // are any. Those after the last update stay whole.
  bool AddAssignsBetweenUpdates();
  // Returns whether there are more nodes that ranks may add than the parts have been found with.
  bool AddSumsOfOneElement();
  int SourceOfFirst(int node) const;            // the node whose output is the first input
  bool IsBehind(int earlier, int later) const;  // by edges of any kind
  void Fail(int node, const char* what);
  void Add(int node, int slot, int64_t size);
  // The assignment `node` writes a variable: what reads a slot reads its owned part.
  void VisitVariable(int node, int64_t size);

  const UpdateSharding& sharding_;
  const NodesToKeep& keep_;
  const tensorflow::GraphDef* const graph_;
  std::unordered_map<std::string, int> index_;
  std::vector<std::vector<Use>> uses_;
  const std::unordered_map<int, int64_t>* taken_ = nullptr;
  int root_ = -1;
  std::set<int> sums_;
  std::set<int> sums_of_one_;
  std::unordered_map<int, int64_t> parts_;
  std::unordered_map<int, int64_t> variables_;  // by the node of the handle
  std::vector<int> waiting_;
  std::vector<std::pair<int, int64_t>> later_;  // assignments behind an update, with sizes
  std::string reason_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_OWNED_UPDATES_H_
