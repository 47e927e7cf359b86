#include "passes/contracted_dag.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace tf_libra {

ContractedDag::ContractedDag(int num_nodes) : successors_(num_nodes), whole_(num_nodes) {
  std::iota(whole_.begin(), whole_.end(), 0);
}

int ContractedDag::AddNode() {
  const int node = static_cast<int>(whole_.size());
  successors_.emplace_back();
  whole_.push_back(node);
  return node;
}

void ContractedDag::AddEdge(int from, int to) { successors_[whole_[from]].push_back(to); }

bool ContractedDag::Reaches(int from, int to) {
  std::vector<bool> seen(whole_.size(), false);
  std::vector<int> stack = {whole_[from]};
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    for (const int successor : successors_[node]) {
      const int next = whole_[successor];
      if (next == whole_[to]) return true;
      if (seen[next]) continue;
      seen[next] = true;
      stack.push_back(next);
    }
  }
  return false;
}

std::vector<bool> ContractedDag::ReachableFrom(const std::vector<int>& from) {
  std::vector<bool> reached(whole_.size(), false);
  for (const int node : TopologicalOrderFrom(from)) reached[node] = true;
  for (size_t node = 0; node < whole_.size(); ++node) reached[node] = reached[whole_[node]];
  return reached;
}

std::vector<int> ContractedDag::Levels(const std::vector<int>& members) {
  std::vector<int> depth(whole_.size(), 0);
  std::vector<bool> is_member(whole_.size(), false);
  for (const int member : members) is_member[whole_[member]] = true;
  for (const int node : TopologicalOrderFrom(members)) {
    const int next_depth = depth[node] + (is_member[node] ? 1 : 0);
    for (const int successor : successors_[node]) {
      int& successor_depth = depth[whole_[successor]];
      successor_depth = std::max(successor_depth, next_depth);
    }
  }
  std::vector<int> levels;
  levels.reserve(members.size());
  for (const int member : members) levels.push_back(depth[whole_[member]]);
  return levels;
}

void ContractedDag::Contract(const std::vector<int>& members) {
  const int whole = members.front();
  for (const int member : members) {
    if (member == whole) continue;
    whole_[member] = whole;
    std::vector<int>& moved = successors_[member];
    successors_[whole].insert(successors_[whole].end(), moved.begin(), moved.end());
    std::vector<int>().swap(moved);
  }
}

std::vector<int> ContractedDag::OrderOf(const std::vector<int>& nodes) {
  std::vector<int> rank(whole_.size(), -1);
  for (size_t i = 0; i < nodes.size(); ++i) rank[whole_[nodes[i]]] = static_cast<int>(i);
  const std::vector<int> region = TopologicalOrderFrom(nodes);
  std::vector<int> waits_for(whole_.size(), 0);
  for (const int node : region) {
    for (const int successor : successors_[node]) ++waits_for[whole_[successor]];
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  std::vector<int> others;  // ready, and not asked for
  const auto add = [&](int node) {
    if (rank[node] >= 0) {
      ready.push(rank[node]);
    } else {
      others.push_back(node);
    }
  };
  for (const int node : region) {
    if (waits_for[node] == 0) add(node);
  }
  std::vector<int> order;
  while (!others.empty() || !ready.empty()) {
    int node;
    if (!others.empty()) {
      node = others.back();
      others.pop_back();
    } else {
      order.push_back(nodes[ready.top()]);
      node = whole_[order.back()];
      ready.pop();
    }
    for (const int successor : successors_[node]) {
      if (--waits_for[whole_[successor]] == 0) add(whole_[successor]);
    }
  }
  return order;
}

std::vector<int> ContractedDag::TopologicalOrderFrom(const std::vector<int>& from) {
  std::vector<int> finished;
  std::vector<bool> seen(whole_.size(), false);
  std::vector<std::pair<int, size_t>> stack;  // node, next successor to visit
  for (const int start : from) {
    if (seen[whole_[start]]) continue;
    seen[whole_[start]] = true;
    stack.emplace_back(whole_[start], 0);
    while (!stack.empty()) {
      const int node = stack.back().first;
      if (stack.back().second == successors_[node].size()) {
        finished.push_back(node);
        stack.pop_back();
        continue;
      }
      const int next = whole_[successors_[node][stack.back().second++]];
      if (seen[next]) continue;
      seen[next] = true;
      stack.emplace_back(next, 0);
    }
  }
  std::reverse(finished.begin(), finished.end());
  return finished;
}

}  // namespace tf_libra
