#include "ops/branch_votes.h"

#include <string>

#include "ops/testing/tensorflow.h"

namespace tf_libra {
namespace {

BranchOfRanks Check() {
  BranchOfRanks check;
  check.condition = "the condition 'cond' (by 'IsFinite')";
  check.tensor = "dense/kernel";
  check.function = "train_step";
  return check;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

DOCTEST_TEST_CASE("EqualVotesNeedNoMessage") {
  DOCTEST_CHECK_EQ(DescribeVotes(Check(), {1, 1, 1}, 2, 30, 0), "");
  DOCTEST_CHECK_EQ(DescribeVotes(Check(), {0}, 0, 30, 0), "");
}

DOCTEST_TEST_CASE("TheMessageNamesStepConditionVariableAndBothRanks") {
  const std::string text = DescribeVotes(Check(), {1, 1, 0}, 1, 30, 0);
  for (const char* part :
       {"rank 1, step 30 of train_step", "the condition 'cond' (by 'IsFinite')", "'dense/kernel'",
        "is true on rank 1 and is false on rank 2", "step 30 was not completed"}) {
    DOCTEST_CHECK(Has(text, part));
  }
  DOCTEST_CHECK(!Has(text, "turn"));
  DOCTEST_CHECK(
      Has(DescribeVotes(Check(), {1, 1, 0}, 2, 30, 0), "is false on rank 2 and is true on rank 0"));
}

DOCTEST_TEST_CASE("LoopsEndOrGoOnAndBranchesHaveIndices") {
  BranchOfRanks loop = Check();
  loop.is_loop = true;
  DOCTEST_CHECK(Has(DescribeVotes(loop, {1, 0}, 0, 30, 3),
                    "continues on rank 0 and ends on rank 1, after 3 turn(s)"));
  BranchOfRanks branch = Check();
  branch.is_index = true;
  DOCTEST_CHECK(Has(DescribeVotes(branch, {2, 0}, 0, 30, 0), "is 2 on rank 0 and is 0 on rank 1"));
}

}  // namespace
}  // namespace tf_libra
