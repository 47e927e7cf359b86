#include "passes/contracted_dag.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <unordered_set>

namespace tf_libra {
namespace {

constexpr int kNoNode = -1;

}  // namespace

ContractedDag::ContractedDag(const std::vector<int>& order)
    : successors_(order.size()),
      representative_(order.size()),
      position_(order.size()),
      node_at_(order) {
  std::iota(representative_.begin(), representative_.end(), 0);
  for (size_t i = 0; i < order.size(); ++i) position_[order[i]] = static_cast<int>(i);
}

void ContractedDag::AddEdge(int from, int to) {
  from = representative_[from];
  to = representative_[to];
  if (position_[from] > position_[to]) MoveBack({to}, position_[to], position_[from]);
  successors_[from].push_back(to);
}

void ContractedDag::AddEdges(const std::vector<int>& from, int to) {
  // Behind the last of them, `to` is behind all.
  const auto last = std::max_element(from.begin(), from.end(), [this](int a, int b) {
    return position_[representative_[a]] < position_[representative_[b]];
  });
  if (last != from.end()) AddEdge(*last, to);
  for (auto node = from.begin(); node != from.end(); ++node) {
    if (node != last) AddEdge(*node, to);
  }
}

bool ContractedDag::Reaches(int from, int to) const {
  std::vector<int> next;
  for (const int successor : successors_[representative_[from]]) next.push_back(successor);
  return ReachedFrom(next, {to})[0];
}

std::vector<bool> ContractedDag::ReachedFrom(const std::vector<int>& from,
                                             const std::vector<int>& targets) const {
  int last = 0;
  for (const int target : targets) last = std::max(last, position_[representative_[target]]);
  const std::vector<int> positions = PositionsFrom(from, last);
  std::vector<bool> reached;
  for (const int target : targets) {
    reached.push_back(
        std::binary_search(positions.begin(), positions.end(), position_[representative_[target]]));
  }
  return reached;
}

std::vector<int> ContractedDag::Levels(const std::vector<int>& members) const {
  int last = 0;
  std::unordered_set<int> is_member;
  for (const int member : members) {
    last = std::max(last, position_[representative_[member]]);
    is_member.insert(representative_[member]);
  }
  std::unordered_map<int, int> depth;
  for (const int position : PositionsFrom(members, last)) {
    const int node = node_at_[position];
    const int next_depth = depth[node] + static_cast<int>(is_member.count(node));
    for (const int successor : successors_[node]) {
      const int next = representative_[successor];
      if (position_[next] > last) continue;
      int& successor_depth = depth[next];
      successor_depth = std::max(successor_depth, next_depth);
    }
  }
  std::vector<int> levels;
  levels.reserve(members.size());
  for (const int member : members) levels.push_back(depth[representative_[member]]);
  return levels;
}

void ContractedDag::Contract(const std::vector<int>& members) {
  int first = position_[members.front()], last = first;
  for (const int member : members) {
    first = std::min(first, position_[member]);
    last = std::max(last, position_[member]);
  }
  MoveBack(members, first, last);
  const int whole = members.front();
  for (const int member : members) {
    if (member == whole) continue;
    representative_[member] = whole;
    node_at_[position_[member]] = kNoNode;
    std::vector<int>& moved = successors_[member];
    successors_[whole].insert(successors_[whole].end(), moved.begin(), moved.end());
    std::vector<int>().swap(moved);
  }
}

std::vector<int> ContractedDag::OrderOf(const std::vector<int>& nodes) const {
  std::vector<int> rank(representative_.size(), kNoNode);
  for (size_t i = 0; i < nodes.size(); ++i) rank[representative_[nodes[i]]] = static_cast<int>(i);
  const std::vector<int> region = PositionsFrom(nodes, static_cast<int>(node_at_.size()) - 1);
  std::vector<int> waits_for(representative_.size(), 0);
  for (const int position : region) {
    for (const int successor : successors_[node_at_[position]])
      ++waits_for[representative_[successor]];
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  std::vector<int> others;  // ready, and not in `nodes`
  const auto add = [&](int node) {
    if (rank[node] >= 0) {
      ready.push(rank[node]);
    } else {
      others.push_back(node);
    }
  };
  for (const int position : region) {
    if (waits_for[node_at_[position]] == 0) add(node_at_[position]);
  }
  std::vector<int> order;
  while (!others.empty() || !ready.empty()) {
    int node;
    if (!others.empty()) {
      node = others.back();
      others.pop_back();
    } else {
      order.push_back(nodes[ready.top()]);
      node = representative_[order.back()];
      ready.pop();
    }
    for (const int successor : successors_[node]) {
      if (--waits_for[representative_[successor]] == 0) add(representative_[successor]);
    }
  }
  return order;
}

std::vector<int> ContractedDag::LastLeadingTo(const std::vector<int>& nodes) const {
  std::vector<int> last(representative_.size(), kNoNode);
  for (size_t i = 0; i < nodes.size(); ++i) last[representative_[nodes[i]]] = static_cast<int>(i);
  for (const int node : node_at_) {
    if (node == kNoNode || last[node] == kNoNode) continue;
    for (const int successor : successors_[node]) {
      int& next = last[representative_[successor]];
      next = std::max(next, last[node]);
    }
  }
  for (size_t node = 0; node < last.size(); ++node) last[node] = last[representative_[node]];
  return last;
}

std::vector<int> ContractedDag::PositionsFrom(const std::vector<int>& from, int last) const {
  std::vector<int> positions;
  std::unordered_set<int> seen;
  const auto visit = [&](int node) {
    const int position = position_[representative_[node]];
    if (position <= last && seen.insert(position).second) positions.push_back(position);
  };
  for (const int node : from) visit(node);
  for (size_t i = 0; i < positions.size(); ++i) {
    for (const int successor : successors_[node_at_[positions[i]]]) visit(successor);
  }
  std::sort(positions.begin(), positions.end());
  return positions;
}

void ContractedDag::MoveBack(const std::vector<int>& from, int first, int last) {
  // The nodes of `from` come first among what is moved: no edge leads to one of them from the rest.
  std::vector<int> moved;
  std::unordered_set<int> is_source;
  for (const int node : from) {
    moved.push_back(representative_[node]);
    is_source.insert(representative_[node]);
  }
  const std::vector<int> positions = PositionsFrom(from, last);
  for (const int position : positions) {
    if (is_source.count(node_at_[position]) == 0) moved.push_back(node_at_[position]);
  }
  size_t next_moved = 0;
  int free = first;
  for (int position = first; position <= last; ++position) {
    if (next_moved < positions.size() && positions[next_moved] == position) {
      ++next_moved;
      continue;
    }
    const int node = node_at_[position];
    node_at_[free] = node;
    if (node != kNoNode) position_[node] = free;
    ++free;
  }
  for (const int node : moved) {
    node_at_[free] = node;
    position_[node] = free++;
  }
}

}  // namespace tf_libra
