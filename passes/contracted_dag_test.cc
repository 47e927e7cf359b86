// Against a matrix of paths, on random graphs.

#include "passes/contracted_dag.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "passes/testing.h"

namespace tf_libra {
namespace {

// The same, with no thought of speed.
class Reference {
 public:
  explicit Reference(int size) : representative_(size) {
    std::iota(representative_.begin(), representative_.end(), 0);
  }

  void AddEdge(int from, int to) { edges_.insert({from, to}); }
  void Contract(const std::vector<int>& members) {
    for (const int member : members) representative_[member] = members.front();
  }

  bool IsSame(int a, int b) const { return representative_[a] == representative_[b]; }

  bool Reaches(int from, int to) const {
    std::set<int> seen;
    std::vector<int> pending = {representative_[from]};
    while (!pending.empty()) {
      const int node = pending.back();
      pending.pop_back();
      for (const auto& [a, b] : edges_) {
        if (representative_[a] != node) continue;
        if (representative_[b] == representative_[to]) return true;
        if (seen.insert(representative_[b]).second) pending.push_back(representative_[b]);
      }
    }
    return false;
  }

  int Level(const std::vector<int>& members, int member) const {
    int level = 0;
    for (const int other : members) {
      if (Reaches(other, member)) level = std::max(level, 1 + Level(members, other));
    }
    return level;
  }

 private:
  std::vector<int> representative_;
  std::set<std::pair<int, int>> edges_;
};

DOCTEST_TEST_CASE("RandomGraphs") {
  constexpr int kSize = 14;
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int below) { return static_cast<int>(random() % below); };
    std::vector<int> order(kSize);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    ContractedDag dag(order);
    Reference reference(kSize);
    std::vector<bool> merged(kSize, false);
    for (int step = 0; step < 40; ++step) {
      const int from = draw(kSize), to = draw(kSize);
      if (step % 5 == 4) {
        std::vector<int> free;
        for (int node = 0; node < kSize; ++node) {
          if (!merged[node]) free.push_back(node);
        }
        std::shuffle(free.begin(), free.end(), random);
        std::vector<int> members(free.begin(), free.begin() + std::min<int>(free.size(), 3));
        if (members.empty()) continue;
        const std::vector<int> levels = dag.Levels(members);
        for (size_t i = 0; i < members.size(); ++i) {
          DOCTEST_CHECK_EQ(levels[i], reference.Level(members, members[i]));
        }
        std::vector<int> level;
        for (size_t i = 0; i < members.size(); ++i) {
          if (levels[i] == 0) level.push_back(members[i]);
        }
        for (const int member : level) merged[member] = true;
        dag.Contract(level);
        reference.Contract(level);
      } else {
        if (reference.IsSame(from, to)) continue;
        const bool reaches = reference.Reaches(from, to);
        DOCTEST_CHECK_EQ(dag.Reaches(from, to), reaches);
        DOCTEST_CHECK_EQ(dag.ReachedFrom({from}, {to, from})[0], reaches);
        if (reference.Reaches(to, from)) continue;
        dag.AddEdges({from}, to);
        reference.AddEdge(from, to);
      }
    }
    std::vector<int> wanted;
    for (int node = 0; node < kSize; ++node) {
      if (!merged[node]) wanted.push_back(node);
    }
    std::shuffle(wanted.begin(), wanted.end(), random);
    const std::vector<int> found = dag.OrderOf(wanted);
    DOCTEST_CHECK_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      for (size_t j = i + 1; j < found.size(); ++j) {
        DOCTEST_CHECK(!reference.Reaches(found[j], found[i]));
      }
    }
    const std::vector<int> last = dag.LastLeadingTo(found);
    for (int node = 0; node < kSize; ++node) {
      int expected = -1;
      for (size_t i = 0; i < found.size(); ++i) {
        const bool leads = reference.IsSame(found[i], node) || reference.Reaches(found[i], node);
        if (leads) expected = static_cast<int>(i);
      }
      DOCTEST_CHECK_EQ(last[node], expected);
    }
  }
}

using Ints = std::vector<int>;

DOCTEST_TEST_CASE("PathsLeadThroughWhatWasMerged") {
  ContractedDag dag({0, 1, 2, 3});
  dag.AddEdge(0, 1);
  dag.AddEdge(2, 3);
  DOCTEST_CHECK(dag.Reaches(0, 1));
  DOCTEST_CHECK(!dag.Reaches(0, 3));
  DOCTEST_CHECK(!dag.Reaches(0, 0));
  dag.Contract({1, 2});
  DOCTEST_CHECK(dag.Reaches(0, 3));
  DOCTEST_CHECK(dag.Reaches(0, 2));
  DOCTEST_CHECK_EQ(dag.ReachedFrom({2}, {0, 1, 2, 3}),
                   (std::vector<bool>{false, true, true, true}));
}

DOCTEST_TEST_CASE("LevelsCountTheMembersBefore") {
  ContractedDag dag({0, 1, 3, 2, 4});
  dag.AddEdge(0, 1);
  dag.AddEdge(1, 2);
  dag.AddEdge(3, 2);
  DOCTEST_CHECK_EQ(dag.Levels({0, 2, 3, 4}), (Ints{0, 1, 0, 0}));
  DOCTEST_CHECK_EQ(dag.Levels({2, 1, 0}), (Ints{2, 1, 0}));
}

DOCTEST_TEST_CASE("TheOrderIsThatAskedForAsFarAsEdgesAllow") {
  ContractedDag dag({0, 1, 2, 3, 4});
  dag.AddEdge(3, 1);
  dag.AddEdge(1, 0);
  DOCTEST_CHECK_EQ(dag.OrderOf({0, 2, 3}), (Ints{2, 3, 0}));
  dag.AddEdges({0, 4}, 2);
  DOCTEST_CHECK_EQ(dag.OrderOf({2, 0, 3}), (Ints{3, 0, 2}));
}

}  // namespace
}  // namespace tf_libra
