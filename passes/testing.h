// What the tests of the passes share: checks that count, and graphs in a few words.
#ifndef TF_LIBRA_PASSES_TESTING_H_
#define TF_LIBRA_PASSES_TESTING_H_

#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.pb.h"

// Each prints where it stands and what it saw; the program goes on and exits with 1.
#define EXPECT_THAT_TRUE(condition) \
  tf_libra::testing::Expect((condition), true, __FILE__, __LINE__, #condition)
#define EXPECT_SAME(left, right) \
  tf_libra::testing::Expect((left), (right), __FILE__, __LINE__, #left " == " #right)
#define EXPECT_CONTAINS(text, part) \
  tf_libra::testing::ExpectContains((text), (part), __FILE__, __LINE__)

namespace tf_libra {
namespace testing {

inline int& Failures() {
  static int failures = 0;
  return failures;
}

template <typename T>
void Print(const T& value) {
  std::cerr << value;
}
template <typename T>
void Print(const std::vector<T>& values) {
  std::cerr << "{";
  for (const auto& value : values) {
    Print(value);
    std::cerr << " ";
  }
  std::cerr << "}";
}

template <typename Left, typename Right>
void Expect(const Left& left, const Right& right, const char* file, int line, const char* what) {
  if (left == right) return;
  ++Failures();
  std::cerr << file << ":" << line << ": failed: " << what << "\n  left:  ";
  Print(left);
  std::cerr << "\n  right: ";
  Print(right);
  std::cerr << std::endl;
}

inline void ExpectContains(const std::string& text, const std::string& part, const char* file,
                           int line) {
  Expect(text.find(part) != std::string::npos, true, file, line,
         ("'" + text + "' contains '" + part + "'").c_str());
}

struct Test {
  const char* name;
  void (*run)();
};

// Runs all of `tests`; what the program is to exit with.
inline int RunTests(const std::vector<Test>& tests) {
  for (const Test& test : tests) {
    const int before = Failures();
    test.run();
    std::cout << (Failures() == before ? "ok     " : "FAILED ") << test.name << std::endl;
  }
  return Failures() == 0 ? 0 : 1;
}

using Inputs = std::vector<std::string>;

inline Inputs InputsOf(const tensorflow::NodeDef& node) {
  return {node.input().begin(), node.input().end()};
}

inline std::map<std::string, tensorflow::NodeDef> ByName(const tensorflow::GraphDef& graph) {
  std::map<std::string, tensorflow::NodeDef> by_name;
  for (const auto& node : graph.node()) {
    EXPECT_THAT_TRUE(by_name.emplace(node.name(), node).second);
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

  // A marked all-reduce of `producer`, which is added if it is new. `tensor` is that of the name
  // unless it is given.
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

  // `length` nodes one behind the other; returns the last one's name.
  std::string Chain(const std::string& name, int length) {
    std::vector<std::string> input;
    for (int i = 0; i < length; ++i) {
      const std::string next = name + std::to_string(i);
      Add("Identity", next, input);
      input = {next};
    }
    return input[0];
  }

  // A while loop named `name` that takes `source` and puts out NAME/exit.
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
