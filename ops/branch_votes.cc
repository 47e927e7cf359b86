#include "ops/branch_votes.h"

namespace tf_libra {
namespace {

std::string Text(const BranchOfRanks& check, int32_t vote) {
  if (check.is_loop) return vote != 0 ? "continues" : "ends";
  if (check.is_index) return "is " + std::to_string(vote);
  return vote != 0 ? "is true" : "is false";
}

}  // namespace

std::string DescribeVotes(const BranchOfRanks& check, const std::vector<int32_t>& votes, int rank,
                          int64_t step, int64_t turn) {
  size_t other = 0;
  while (other < votes.size() && votes[other] == votes[rank]) ++other;
  if (other == votes.size()) return "";
  std::string text = "rank " + std::to_string(rank) + ", step " + std::to_string(step) + " of " +
                     check.function + ": " + check.condition + " around the all-reduce of '" +
                     check.tensor + "' " + Text(check, votes[rank]) + " on rank " +
                     std::to_string(rank) + " and " + Text(check, votes[other]) + " on rank " +
                     std::to_string(other);
  if (turn > 0) text += ", after " + std::to_string(turn) + " turn(s)";
  return text +
         ": gradients of different steps would be summed. Compute the condition from what all ranks"
         " have in common, such as averages over the ranks; step " +
         std::to_string(step) + " was not completed";
}

}  // namespace tf_libra
