#include "ops/lanes/tree.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::tree_test {
namespace {

std::vector<Tree> AllTrees(int world_size, const std::vector<int>& hosts) {
  std::vector<Tree> trees;
  for (int rank = 0; rank < world_size; ++rank) trees.emplace_back(rank, world_size, hosts);
  return trees;
}

// Places in turn, one after the other, and with other numbers than places.
std::vector<std::vector<int>> Hosts(int world_size) {
  std::vector<std::vector<int>> ways(5);
  for (int rank = 0; rank < world_size; ++rank) {
    ways[1].push_back(rank);
    ways[2].push_back(rank / 8);
    ways[3].push_back(rank % 5);
    ways[4].push_back(70 - rank * rank % 7);
  }
  return ways;
}

// Who walks from neighbour to neighbour comes to every rank on one way, the same back.
TEST_CASE("EveryRankIsReached") {
  for (const int world_size : {1, 2, 3, 5, 6, 8, 33, 64}) {
    for (const std::vector<int>& hosts : Hosts(world_size)) {
      const std::vector<Tree> trees = AllTrees(world_size, hosts);
      size_t num_ends = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const Tree& tree = trees[rank];
        num_ends += tree.neighbours().size();
        CHECK_EQ(tree.rank(), rank);
        CHECK_EQ(tree.world_size(), world_size);
        CHECK(!tree.IsNeighbour(rank));
        CHECK(tree.Way(rank).empty());
        for (int other = 0; other < world_size; ++other) {
          if (other == rank) continue;
          std::vector<int> walked;
          for (int at = rank; at != other && walked.size() < trees.size();) {
            const int next = trees[at].Toward(other);
            CHECK((trees[at].IsNeighbour(next) && trees[next].IsNeighbour(at)));
            walked.push_back(at = next);
          }
          CHECK(walked == tree.Way(other));
          CHECK_EQ(tree.Before(other), walked.size() < 2 ? rank : walked[walked.size() - 2]);
          const auto& near = tree.neighbours();
          CHECK_EQ(std::count(near.begin(), near.end(), other) == 1, tree.IsNeighbour(other));
        }
      }
      CHECK_EQ(num_ends, 2 * (trees.size() - 1));  // one way to each, hence a tree
    }
  }
}

TEST_CASE("HostsHaveOneConnection") {
  for (const std::vector<int>& hosts : Hosts(64)) {
    if (hosts.empty()) continue;
    std::set<std::pair<int, int>> joined;
    for (const Tree& tree : AllTrees(64, hosts)) {
      for (const int other : tree.neighbours()) {
        const int from = hosts[tree.rank()], to = hosts[other];
        if (from != to) CHECK(joined.insert({from, to}).second);
      }
    }
  }
}

// Few neighbours, and short ways: for a power of the branches, from one leaf up and down to
// another.
TEST_CASE("NobodyIsFar") {
  for (const int world_size : {5, 21, 85, 341}) {
    size_t levels = 0;
    for (int count = 1; count < world_size; count = count * Tree::kBranches + 1) ++levels;
    for (const Tree& tree : AllTrees(world_size, {})) {
      CHECK(tree.neighbours().size() <= Tree::kBranches + 1);
      CHECK(tree.Way(world_size - 1).size() <= 2 * levels);
    }
  }
  for (const Tree& tree : AllTrees(64, Hosts(64)[2])) {
    CHECK(tree.neighbours().size() <= 2 * Tree::kBranches + 1);
    for (int rank = 0; rank < 64; ++rank) CHECK(tree.Way(rank).size() <= 8);
  }
}

}  // namespace
}  // namespace tf_libra::tree_test
