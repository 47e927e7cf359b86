#include "passes/derivations.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/lanes/fnv.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_libra {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;
using tensorflow::TensorId;

uint64_t DigestOf(const std::string& text) {
  Fnv fnv;
  fnv.Add(text);
  return fnv.value();
}

// What Grappler annotates nodes with begins with "_".
std::string AttributesOf(const NodeDef& node) {
  std::map<std::string, std::string> sorted;
  for (const auto& [name, value] : node.attr()) {
    if (!absl::StartsWith(name, "_")) sorted.emplace(name, value.SerializeAsString());
  }
  return absl::StrJoin(sorted, ";", absl::PairFormatter("="));
}

int64_t IndexOf(const NodeDef& argument) {
  const auto found = argument.attr().find("index");
  return found == argument.attr().end() ? -1 : found->second.i();
}

}  // namespace

Derivations::Derivations(const OwnedUpdates& updates, const std::unordered_map<int, int64_t>& parts,
                         const std::set<int>& sums, const std::vector<ShardedGroup>& groups,
                         const std::vector<int>& order, const GraphDef& graph)
    : updates_(updates), graph_(graph) {
  std::map<std::string, std::set<std::pair<int64_t, int>>> of_tensor;
  std::set<int> seen;
  for (const ShardedGroup& group : groups) {
    for (const OwnedAssign& assign : group.assigns) {
      const int handle = updates.HandleOf(assign.node);
      if (!seen.insert(handle).second) continue;
      of_tensor[group.reported->tensors[assign.tensor].name].emplace(IndexOf(graph.node(handle)),
                                                                     handle);
    }
  }
  for (const auto& [tensor, handles] : of_tensor) {
    int number = 0;
    for (const auto& [index, handle] : handles) {
      variables_.emplace(handle, std::make_pair(tensor, number++));
    }
  }
  for (const int node : order) {
    if (parts.count(node) > 0 || sums.count(node) > 0) known_.emplace(node, OfNode(node));
  }
}

bool Derivations::NameSums(const std::set<int>& sums, std::vector<NamedSum>* named,
                           std::string* reason) const {
  std::map<std::string, int> by_name;
  for (const int node : sums) {
    const NodeDef& def = graph_.node(node);
    const Derivation& own = known_.at(node);
    const std::string name =
        absl::StrCat(def.op(), " of ", absl::StrJoin(own.tensors, " and "), ", ",
                     tensorflow::DataTypeString(SumType(def)), " of rank ",
                     updates_.NumDimsOfSum(node), ", ", Hex(node));
    const auto [other, is_new] = by_name.emplace(name, node);
    if (!is_new && known_.at(other->second).local != own.local) {
      *reason = absl::StrCat("'", graph_.node(other->second).name(), "' and '", def.name(),
                             "' sum alike, so that ranks cannot tell them apart");
      return false;
    }
    named->push_back({node, name});
  }
  // Equal names are equal sums.
  std::stable_sort(named->begin(), named->end(),
                   [](const NamedSum& one, const NamedSum& two) { return one.name < two.name; });
  return true;
}

std::unordered_map<int, std::string> Derivations::NameVariables(
    std::vector<ShardedGroup>* groups) const {
  std::unordered_map<int, std::string> names;
  for (ShardedGroup& group : *groups) {
    std::map<int, std::set<int>> gathered;         // by tensor
    std::map<int, std::set<std::string>> digests;  // of assignments, by handle
    for (const OwnedAssign& assign : group.assigns) {
      const int handle = updates_.HandleOf(assign.node);
      digests[handle].insert(Hex(assign.node));
      if (!updates_.IsSlot(handle)) gathered[assign.tensor].insert(handle);
    }
    const auto key = [&](const OwnedAssign& assign) {
      const int handle = updates_.HandleOf(assign.node);
      return std::make_tuple(assign.tensor, digests.at(handle), variables_.at(handle).second);
    };
    std::stable_sort(
        group.assigns.begin(), group.assigns.end(),
        [&](const OwnedAssign& one, const OwnedAssign& two) { return key(one) < key(two); });
    for (const auto& [tensor, handles] : gathered) {
      for (const int handle : handles) {
        // One variable of a tensor may be updated by other ops on another rank.
        const std::string by =
            handles.size() > 1 ? absl::StrCat(" by ", absl::StrJoin(digests.at(handle), "+")) : "";
        names.emplace(handle, absl::StrCat(group.reported->tensors[tensor].name, by));
      }
    }
  }
  return names;
}

Derivations::Derivation Derivations::OfNode(int node) const {
  const NodeDef& def = graph_.node(node);
  if (def.op() == "ReadVariableOp") return OfInput(def.name());
  const bool is_reshape = IsReshape(def.op());
  // What shape a sum has is no matter of its value.
  std::string shared =
      is_reshape ? "Identity" : absl::StrCat(def.op(), IsSum(def.op()) ? "" : AttributesOf(def));
  Derivation own{0, 0, {}};
  std::string local = shared;
  const int begin = AssignMode(def.op()) != nullptr ? 1 : 0;
  const int end = is_reshape || IsSum(def.op()) ? 1 : def.input_size();
  for (int slot = begin; slot < end; ++slot) {
    if (tensorflow::ParseTensorName(def.input(slot)).index() < 0) continue;
    const Derivation input = OfInput(def.input(slot));
    absl::StrAppend(&shared, "|", input.shared);
    absl::StrAppend(&local, "|", input.local);
    own.tensors.insert(input.tensors.begin(), input.tensors.end());
  }
  own.shared = DigestOf(shared);
  own.local = DigestOf(local);
  return own;
}

Derivations::Derivation Derivations::OfInput(const std::string& input) const {
  const TensorId id = tensorflow::ParseTensorName(input);
  const int source = updates_.index().at(std::string(id.node()));
  const auto known = known_.find(source);
  if (known != known_.end()) {
    Derivation output = known->second;
    if (id.index() > 0) {  // what is in one branch of a conditional is another value in the other
      output.shared = DigestOf(absl::StrCat("output ", id.index(), " of ", output.shared));
      output.local = DigestOf(absl::StrCat("output ", id.index(), " of ", output.local));
    }
    return output;
  }
  const NodeDef& def = graph_.node(source);
  const auto of = [](const std::string& text, std::set<std::string> tensors) {
    return Derivation{DigestOf(text), DigestOf(text), std::move(tensors)};
  };
  if (def.op() == "LibraAllReduce") {
    const std::string& tensor = def.attr().at("tensor_names").list().s(id.index());
    return of(absl::StrCat("gradient ", tensor), {tensor});
  }
  if (def.op() == "Const") return of(AttributesOf(def), {});
  if (def.op() == "Identity") return OfInput(def.input(0));
  if (def.op() == "ReadVariableOp") {
    const auto variable = variables_.find(updates_.HandleOf(source));
    if (variable != variables_.end()) {
      const auto& [tensor, number] = variable->second;
      // It may be read before and after it is updated.
      Derivation read = of(absl::StrCat("variable ", number, " of ", tensor), {tensor});
      read.local = DigestOf(absl::StrCat("node ", def.name()));
      return read;
    }
  }
  return {DigestOf("another value"), DigestOf(absl::StrCat("node ", input)), {}};
}

std::string Derivations::Hex(int node) const {
  return absl::StrCat(absl::Hex(known_.at(node).shared, absl::kZeroPad16));
}

}  // namespace tf_libra
