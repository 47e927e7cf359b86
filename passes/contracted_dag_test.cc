#include "passes/contracted_dag.h"

#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

using Ints = std::vector<int>;

void PathsLeadThroughWhatWasMerged() {
  ContractedDag dag(4);
  dag.AddEdge(0, 1);
  dag.AddEdge(2, 3);
  EXPECT_THAT_TRUE(dag.Reaches(0, 1));
  EXPECT_THAT_TRUE(!dag.Reaches(0, 3));
  EXPECT_THAT_TRUE(!dag.Reaches(0, 0));
  dag.Contract({1, 2});
  EXPECT_THAT_TRUE(dag.Reaches(0, 3));
  EXPECT_THAT_TRUE(dag.Reaches(0, 2));
  EXPECT_SAME(dag.ReachableFrom({2}), (std::vector<bool>{false, true, true, true}));
}

void LevelsCountTheMembersBefore() {
  ContractedDag dag(5);
  dag.AddEdge(0, 1);
  dag.AddEdge(1, 2);
  dag.AddEdge(3, 2);
  EXPECT_SAME(dag.Levels({0, 2, 3, 4}), (Ints{0, 1, 0, 0}));
  EXPECT_SAME(dag.Levels({2, 1, 0}), (Ints{2, 1, 0}));
}

void TheOrderIsThatAskedForAsFarAsEdgesAllow() {
  ContractedDag dag(4);
  dag.AddEdge(3, 1);
  dag.AddEdge(1, 0);
  EXPECT_SAME(dag.OrderOf({0, 2, 3}), (Ints{2, 3, 0}));
  const int joined = dag.AddNode();
  dag.AddEdge(0, joined);
  dag.AddEdge(joined, 2);
  EXPECT_SAME(dag.OrderOf({2, 0, 3}), (Ints{3, 0, 2}));
}

}  // namespace
}  // namespace tf_libra

int main() {
  using namespace tf_libra;
  return testing::RunTests({
      {"PathsLeadThroughWhatWasMerged", PathsLeadThroughWhatWasMerged},
      {"LevelsCountTheMembersBefore", LevelsCountTheMembersBefore},
      {"TheOrderIsThatAskedForAsFarAsEdgesAllow", TheOrderIsThatAskedForAsFarAsEdgesAllow},
  });
}
