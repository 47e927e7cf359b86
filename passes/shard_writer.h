// Writes the graph of sharded updates.

#ifndef TF_LIBRA_PASSES_SHARD_WRITER_H_
#define TF_LIBRA_PASSES_SHARD_WRITER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "passes/branches.h"
#include "passes/derivations.h"
#include "passes/gather_order.h"
#include "passes/owned_updates.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"

namespace tf_libra {

std::string ControlTo(const std::string& node);
void AddControl(const std::string& from, tensorflow::NodeDef* node);

// Writes the graph in which the nodes of all sharded groups compute owned parts.
class ShardWriter {
 public:
  ShardWriter(const OwnedUpdates& updates, const std::unordered_map<int, int64_t>& parts,
              tensorflow::GraphDef* graph);
  // Makes an all-reduce a reduce-scatter.
  void WriteScatter(int root);
  void WriteParts();
  // Lets nodes that sum owned parts, at least one, add their sums over all ranks. Returns the node
  // that does so, which comes after `after` and follows the all-reduce `root` in its attributes. It
  // is in none of the `branches` of sums, by node: ranks add zero if a branch is not taken.
  std::string WriteSums(int root, const std::vector<NamedSum>& sums,
                        const std::unordered_map<int, Branches>& branches,
                        const std::vector<std::string>& after);
  // Writes one gather per dtype. Returns their names. One `in_background` may go on when the graph
  // has ended. `variables` are names by the node of the handle.
  std::vector<std::string> WriteGathers(const Gather& planned,
                                        const std::unordered_map<int, std::string>& variables,
                                        const std::vector<std::string>& after, bool in_background);
  // Makes a gather the last of its step, after all updates of slots, which are nodes that compute
  // owned parts.
  void EndStep(const std::string& gather, const std::vector<int>& slots);
  // Renames assignments of weights, and adds what WriteGathers has made. `copies` has the copy of
  // the step that each assignment belongs to.
  void Finish(const std::unordered_map<int, int>& copies);

  // The names of all sums and gathered variables, in the order in which ranks exchange them.
  const std::vector<std::string>& exchanged() const { return exchanged_; }

 private:
  std::string NewName(std::string name);
  void WriteIdentity(tensorflow::NodeDef* def);
  // Makes an operand of a node that computes owned parts an owned part, or a scalar.
  void TakePart(int node, int slot, int64_t size, tensorflow::NodeDef* def);
  static tensorflow::DataType OperandType(const tensorflow::NodeDef& def, int slot);
  void WriteAssign(int node, tensorflow::NodeDef* def);
  // The node, outside of all conditionals, at whose end the assignment `node`, which is written
  // with the name `owned`, has been made, or is in a branch that was not taken.
  std::string EndOfBranches(int node, const std::string& owned);
  // Nodes that touch a weight after its assignment may have lost their control edge to it, as one
  // that follows from others.
  void WaitForGathers(const std::unordered_map<int, int>& copies);
  // The node at whose end the variables of a gather are whole.
  std::string EndOf(const std::string& gather);
  // Lets the forward pass wait, group by group, for gathers that the last call has begun. Other
  // graphs need no such node: the variables are locked. But there a thread of TensorFlow waits.
  void WaitForLastCall();
  std::string WriteAwait(const std::string& gather, const char* what,
                         const std::vector<int>& handles, const std::vector<std::string>& after);
  bool IsReadByPartsAlone(int node) const;

  const OwnedUpdates& updates_;
  const std::unordered_map<int, int64_t>& parts_;
  tensorflow::GraphDef* const graph_;
  std::set<int> roots_;  // all-reduces that become reduce-scatters
  std::unordered_set<std::string> names_;
  std::map<std::pair<std::string, int64_t>, std::string> taken_;
  std::map<int, std::string> owned_names_, gathers_of_;  // by assignment of a weight
  // Gathers that may go on when the graph has ended, with the nodes of their handles, and the nodes
  // that wait for them.
  std::map<std::string, std::vector<int>> in_background_;
  std::map<std::string, std::string> ends_;
  std::vector<tensorflow::NodeDef> added_;
  std::vector<std::string> exchanged_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_SHARD_WRITER_H_
