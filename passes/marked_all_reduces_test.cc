#include "passes/marked_all_reduces.h"

#include <optional>
#include <string>
#include <vector>

#include "passes/indexed_graph.h"
#include "passes/rewriter.h"
#include "passes/testing.h"

namespace tf_libra {
namespace {

using testing::Graph;

struct Found {
  std::optional<IndexedGraph> graph;
  std::vector<bool> between;
  std::vector<Marked> marked;
  std::vector<Skipped> skipped;
};

// What is marked in a graph, under a plan of one group.
Found FindIn(const Graph& builder, std::vector<std::string> tensors) {
  Found found;
  std::string reason;
  found.graph = IndexGraph(builder.def, &reason);
  EXPECT_THAT_TRUE(found.graph.has_value());
  const RegisteredPlan plan{"plan", "digest", {{std::move(tensors), 1, 0}}, false};
  const auto rewriter = MakeRewriter("LibraAllReduce", &reason);
  found.marked = FindMarked(*found.graph, plan, *rewriter, {}, &found.skipped);
  found.between = NodesBetween(*found.graph, FindAllReduces(*found.graph));
  return found;
}

// A branch of a conditional, with `size` all-reduces that depend on `input`, and its end.
void AddBranch(const std::string& input, const std::string& tensor, int size, Graph* builder) {
  builder->Add("Const", "predicate");
  builder->Add("Switch", "switch", {input, "predicate"});
  for (int i = 0; i < size; ++i) {
    const std::string name = tensor + std::to_string(i);
    builder->Add("Identity", "grad_" + name, {"switch:1"});
    builder->Reduce("inside_" + name, "grad_" + name, name);
  }
}

void CopiesLieOneBehindTheOther() {
  Graph builder;
  builder.Reduce("a", "grad");
  builder.Add("Identity", "next", {"a"});
  builder.Reduce("a_1", "next", "a");
  Found found = FindIn(builder, {"a"});
  std::string reason;
  EXPECT_THAT_TRUE(FindCopies(*found.graph, found.between, &found.marked, &reason));
  EXPECT_SAME(found.marked[0].copy, 0);
  EXPECT_SAME(found.marked[1].copy, 1);
}

void CopiesWithoutAnOrderAreADoubt() {
  Graph builder;
  builder.Reduce("a", "grad");
  builder.Reduce("a_1", "grad", "a");
  Found found = FindIn(builder, {"a"});
  std::string reason;
  EXPECT_THAT_TRUE(!FindCopies(*found.graph, found.between, &found.marked, &reason));
  EXPECT_CONTAINS(reason, "neither before nor after");
}

// More tensors than are looked at in one go, each in three copies.
void ManyTensorsInManyCopies() {
  for (const int size : {31, 32, 33, 100}) {
    Graph builder;
    std::vector<std::string> tensors, before;
    for (int i = 0; i < size; ++i) tensors.push_back("t" + std::to_string(i));
    for (int copy = 0; copy < 3; ++copy) {
      std::vector<std::string> reduced;
      for (const std::string& tensor : tensors) {
        const std::string name = tensor + "_" + std::to_string(copy);
        builder.Add("Identity", "grad_" + name, before);
        builder.Reduce(name, "grad_" + name, tensor);
        reduced.push_back("^" + name);
      }
      const std::string end = "end" + std::to_string(copy);
      builder.Add("NoOp", end, reduced);
      before = {"^" + end};
    }
    Found found = FindIn(builder, tensors);
    std::string reason;
    EXPECT_THAT_TRUE(FindCopies(*found.graph, found.between, &found.marked, &reason));
    for (const Marked& m : found.marked) {
      const std::string& name = builder.def.node(m.node).name();
      EXPECT_SAME(name, m.tensor + "_" + std::to_string(m.copy));
    }
  }
}

void TwoFunctionsAreNoCopiesOfOneStep() {
  Graph builder;
  tensorflow::AddNodeAttr("function", "one", builder.Reduce("a", "grad"));
  tensorflow::AddNodeAttr("function", "two", builder.Reduce("a_1", "grad", "a"));
  Found found = FindIn(builder, {"a"});
  std::string reason;
  EXPECT_THAT_TRUE(FindCopies(*found.graph, found.between, &found.marked, &reason));
  EXPECT_THAT_TRUE(found.marked[0].copy != found.marked[1].copy);
  EXPECT_THAT_TRUE(found.marked[0].kind < found.marked[1].kind ||
                   found.marked[1].kind < found.marked[0].kind);
}

std::vector<std::string> PlannedWith(int inside, int outside) {
  Graph builder;
  std::vector<std::string> tensors;
  for (int i = 0; i < outside; ++i) {
    const std::string name = "out" + std::to_string(i);
    builder.Reduce("outside_" + name, "grad_" + name, name);
    tensors.push_back(name);
  }
  AddBranch("outside_out0", "in", inside, &builder);
  for (int i = 0; i < inside; ++i) tensors.push_back("in" + std::to_string(i));
  Found found = FindIn(builder, tensors);
  LeaveOtherContexts(*found.graph, found.between, &found.marked, &found.skipped);
  std::vector<std::string> planned;
  for (const Marked& m : found.marked) planned.push_back(m.tensor);
  EXPECT_SAME(planned.size() + found.skipped.size(), tensors.size());
  return planned;
}

void TheSmallerPartOfAStepStaysOut() {
  for (const std::string& tensor : PlannedWith(2, 3)) EXPECT_CONTAINS(tensor, "out");
  for (const std::string& tensor : PlannedWith(3, 3)) EXPECT_CONTAINS(tensor, "out");
  for (const std::string& tensor : PlannedWith(4, 3)) EXPECT_CONTAINS(tensor, "in");
  EXPECT_SAME(PlannedWith(3, 3).size(), 3u);
  EXPECT_SAME(PlannedWith(4, 3).size(), 4u);
}

void CopiesInABranchStay() {
  Graph builder;
  builder.Reduce("outside", "grad", "in0");
  AddBranch("outside", "in", 1, &builder);
  Found found = FindIn(builder, {"in0"});
  LeaveOtherContexts(*found.graph, found.between, &found.marked, &found.skipped);
  EXPECT_SAME(found.marked.size(), 2u);
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests({{"CopiesLieOneBehindTheOther", CopiesLieOneBehindTheOther},
                            {"CopiesWithoutAnOrderAreADoubt", CopiesWithoutAnOrderAreADoubt},
                            {"ManyTensorsInManyCopies", ManyTensorsInManyCopies},
                            {"TwoFunctionsAreNoCopiesOfOneStep", TwoFunctionsAreNoCopiesOfOneStep},
                            {"TheSmallerPartOfAStepStaysOut", TheSmallerPartOfAStepStaysOut},
                            {"CopiesInABranchStay", CopiesInABranchStay}});
}
