#include "ops/lanes/tree.h"

#include <algorithm>
#include <map>

namespace tf_libra {
namespace {

// [rank]: the parent; -1: the root.
std::vector<int> Parents(int world_size, const std::vector<int>& hosts) {
  std::vector<std::vector<int>> groups;  // by the first rank of each host
  std::map<int, size_t> group_of;
  for (int rank = 0; rank < world_size; ++rank) {
    const int host = hosts.empty() ? 0 : hosts[rank];
    const auto [found, is_new] = group_of.emplace(host, groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(rank);
  }
  std::vector<int> parents(world_size, -1);
  for (size_t host = 0; host < groups.size(); ++host) {
    const std::vector<int>& ranks = groups[host];
    if (host > 0) parents[ranks[0]] = groups[(host - 1) / Tree::kBranches][0];
    for (size_t i = 1; i < ranks.size(); ++i) {
      parents[ranks[i]] = ranks[(i - 1) / Tree::kBranches];
    }
  }
  return parents;
}

}  // namespace

Tree::Tree(int rank, int world_size, const std::vector<int>& hosts)
    : rank_(rank), toward_(world_size, rank), before_(world_size, rank) {
  const std::vector<int> parents = Parents(world_size, hosts);
  std::vector<std::vector<int>> adjacent(world_size);
  for (int child = 0; child < world_size; ++child) {
    if (parents[child] < 0) continue;
    adjacent[child].push_back(parents[child]);
    adjacent[parents[child]].push_back(child);
  }
  neighbours_ = adjacent[rank];
  std::sort(neighbours_.begin(), neighbours_.end());
  std::vector<int> reached = {rank};
  for (size_t i = 0; i < reached.size(); ++i) {
    const int from = reached[i];
    for (const int to : adjacent[from]) {
      if (to == before_[from]) continue;
      before_[to] = from;
      toward_[to] = from == rank ? to : toward_[from];
      reached.push_back(to);
    }
  }
}

std::vector<int> Tree::Way(int rank) const {
  std::vector<int> way;
  for (; rank != rank_; rank = before_[rank]) way.push_back(rank);
  std::reverse(way.begin(), way.end());
  return way;
}

}  // namespace tf_libra
