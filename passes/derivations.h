// Names of sums and of gathered variables, by what they derive from: the same on all ranks, as node
// names, numbers of nodes and depths need not be.

#ifndef TF_LIBRA_PASSES_DERIVATIONS_H_
#define TF_LIBRA_PASSES_DERIVATIONS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "passes/gather_order.h"
#include "passes/owned_updates.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace tf_libra {

struct NamedSum {
  int node;
  std::string name;
};

// How parts are computed from gradients and variables.
class Derivations {
 public:
  // `order` is topological. `groups` have their assignments. Only the constructor uses `parts`,
  // `sums` and `order`.
  Derivations(const OwnedUpdates& updates, const std::unordered_map<int, int64_t>& parts,
              const std::set<int>& sums, const std::vector<ShardedGroup>& groups,
              const std::vector<int>& order, const tensorflow::GraphDef& graph);

  // Puts sums in an order that all ranks share. Returns false, with the reason, if nothing that
  // ranks share tells two of them apart.
  bool NameSums(const std::set<int>& sums, std::vector<NamedSum>* named, std::string* reason) const;

  // Puts the assignments of each group in an order that all ranks share, and names the variable, by
  // the node of its handle, that each of them writes.
  std::unordered_map<int, std::string> NameVariables(std::vector<ShardedGroup>* groups) const;

 private:
  struct Derivation {
    uint64_t shared;  // digest of what all ranks have in common
    uint64_t local;   // digest that tells the nodes of this graph apart, too
    std::set<std::string> tensors;
  };

  Derivation OfNode(int node) const;
  Derivation OfInput(const std::string& input) const;
  std::string Hex(int node) const;

  const OwnedUpdates& updates_;
  const tensorflow::GraphDef& graph_;
  // By the node of the handle: the tensor whose gradient updates the variable, and its number among
  // those of the tensor.
  std::unordered_map<int, std::pair<std::string, int>> variables_;
  std::unordered_map<int, Derivation> known_;
};

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_DERIVATIONS_H_
