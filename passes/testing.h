// What the tests of the passes share: checks that count, and graphs in a few words.
#ifndef TF_LIBRA_PASSES_TESTING_H_
#define TF_LIBRA_PASSES_TESTING_H_

#include <iostream>
#include <string>
#include <vector>

#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

// Each prints where it stands and what it saw; the program goes on and exits with 1.
#define EXPECT_THAT_TRUE(condition) \
  tf_libra::testing::Expect((condition), true, __FILE__, __LINE__, #condition)
#define EXPECT_SAME(left, right) \
  tf_libra::testing::Expect((left), (right), __FILE__, __LINE__, #left " == " #right)

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
