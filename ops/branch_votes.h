// Error text for a condition around all-reduces that differs between ranks.
#ifndef TF_LIBRA_OPS_BRANCH_VOTES_H_
#define TF_LIBRA_OPS_BRANCH_VOTES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tf_libra {

struct BranchOfRanks {
  std::string condition;  // "the condition 'cond' (by 'IsFinite')"
  std::string tensor;     // whose all-reduce depends on it
  std::string function;
  bool is_loop = false;   // the condition lets a loop go on
  bool is_index = false;  // votes are indices of branches, else 0 and 1
};

// "" if all ranks have the same vote, else the first rank that differs from `rank`, and the remedy.
// `turn`: of the innermost loop around the condition, from 0.
std::string DescribeVotes(const BranchOfRanks& check, const std::vector<int32_t>& votes, int rank,
                          int64_t step, int64_t turn);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_BRANCH_VOTES_H_
