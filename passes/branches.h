// Values that leave branches of conditionals, which are lowered to Switch and Merge, and enter
// them.

#ifndef TF_LIBRA_PASSES_BRANCHES_H_
#define TF_LIBRA_PASSES_BRANCHES_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "passes/indexed_graph.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_libra {

struct Branch {
  std::string predicate;  // as an input of a node
  int taken;              // output of the Switch
};
// From the outermost conditional on.
using Branches = std::vector<Branch>;

bool IsUnconditional(const IndexedGraph& graph, int node);

// Returns the branches that `node` is in; nullopt if it is in a loop or a switch of several
// branches.
std::optional<Branches> BranchesOf(const IndexedGraph& graph, int node);

// Writes the nodes by which a number passes branches, with names that `new_name` makes unique.
class BranchWriter {
 public:
  BranchWriter(std::function<std::string(std::string)> new_name,
               std::vector<tensorflow::NodeDef>* added)
      : new_name_(std::move(new_name)), added_(added) {}

  // Returns an output outside of the branches: `value`, or zero if one of them is not taken.
  std::string LeadOut(const std::string& value, tensorflow::DataType dtype,
                      const std::string& device, const Branches& branches);
  // Returns an output in the branches with a value from outside.
  std::string LeadIn(const std::string& value, tensorflow::DataType dtype,
                     const std::string& device, const Branches& branches);

 private:
  // Returns the name of a Switch.
  std::string Switch(const std::string& value, tensorflow::DataType dtype,
                     const std::string& device, const Branch& branch);

  std::function<std::string(std::string)> new_name_;
  std::vector<tensorflow::NodeDef>* const added_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_BRANCHES_H_
