// Helpers for tests of the passes: short descriptions of graphs.
#ifndef TF_LIBRA_PASSES_TESTING_H_
#define TF_LIBRA_PASSES_TESTING_H_

#include <map>
#include <string>
#include <vector>

#include "ops/testing/tensorflow.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.pb.h"

namespace tf_libra {
namespace testing {

using Inputs = std::vector<std::string>;

constexpr char kGpu[] = "/job:localhost/replica:0/task:0/device:GPU:0";

inline Inputs InputsOf(const tensorflow::NodeDef& node) {
  return {node.input().begin(), node.input().end()};
}

inline std::map<std::string, tensorflow::NodeDef> ByName(const tensorflow::GraphDef& graph) {
  std::map<std::string, tensorflow::NodeDef> by_name;
  for (const auto& node : graph.node()) {
    DOCTEST_CHECK(by_name.emplace(node.name(), node).second);
  }
  return by_name;
}

// A graph, node by node; inputs as GraphDefs write them.
struct Graph {
  tensorflow::GraphDef def;

  tensorflow::NodeDef* Add(const std::string& op, const std::string& name,
                           const std::vector<std::string>& inputs = {}) {
    tensorflow::NodeDef* node = def.add_node();
    node->set_op(op);
    node->set_name(name);
    for (const std::string& input : inputs) node->add_input(input);
    return node;
  }

  // Adds a node of float32, whose attribute depends on whether its op takes a variable.
  tensorflow::NodeDef* AddFloat(const std::string& op, const std::string& name,
                                const std::vector<std::string>& inputs = {}) {
    const bool is_variable = op.find("Variable") != std::string::npos;
    tensorflow::NodeDef* const node = Add(op, name, inputs);
    tensorflow::AddNodeAttr(is_variable ? "dtype" : "T", tensorflow::DT_FLOAT, node);
    return node;
  }

  // Adds a pending all-reduce of `producer`, and `producer` if it is new. `tensor` defaults to
  // `name`.
  tensorflow::NodeDef* Reduce(const std::string& name, const std::string& producer,
                              const std::string& tensor = "",
                              const std::vector<std::string>& control_inputs = {}) {
    bool is_new = true;
    for (const auto& node : def.node()) is_new = is_new && node.name() != producer;
    if (is_new) Add("Const", producer);
    tensorflow::NodeDef* node = Add("LibraAllReduce", name, {producer});
    for (const std::string& input : control_inputs) node->add_input(input);
    tensorflow::AddNodeAttr("N", 1, node);
    tensorflow::AddNodeAttr("T", tensorflow::DT_FLOAT, node);
    const std::vector<std::string> names = {tensor.empty() ? name : tensor};
    tensorflow::AddNodeAttr("tensor_names", names, node);
    return node;
  }

  // Adds a chain of `length` nodes; returns the name of the last one.
  std::string Chain(const std::string& name, int length) {
    std::vector<std::string> input;
    for (int i = 0; i < length; ++i) {
      const std::string next = name + std::to_string(i);
      Add("Identity", next, input);
      input = {next};
    }
    return input[0];
  }

  // Adds a while loop `name` with input `source` and output NAME/exit.
  void AddLoop(const std::string& name, const std::string& source) {
    const std::string prefix = name + "/";
    (*Add("Enter", prefix + "enter", {source})->mutable_attr())["frame_name"].set_s(name);
    Add("Merge", prefix + "merge", {prefix + "enter", prefix + "next"});
    Add("LoopCond", prefix + "while", {prefix + "merge"});
    Add("Switch", prefix + "switch", {prefix + "merge", prefix + "while"});
    Add("Neg", prefix + "body", {prefix + "switch:1"});
    Add("NextIteration", prefix + "next", {prefix + "body"});
    Add("Exit", prefix + "exit", {prefix + "switch"});
  }
};

}  // namespace testing
}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_TESTING_H_
