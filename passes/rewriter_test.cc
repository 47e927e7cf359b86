#include "passes/rewriter.h"

#include <memory>
#include <string>
#include <vector>

#include "passes/libra_rewrite.h"
#include "passes/testing.h"
#include "tensorflow/core/framework/node_def_util.h"

namespace tf_libra {
namespace {

// An op that takes whatever it is given, except for one tensor.
class ToyRewriter : public Rewriter {
 public:
  void Write(const FusedGroup& fused, tensorflow::NodeDef* node) const override {
    node->set_op("Toy");
    tensorflow::AddNodeAttr("N", static_cast<int>(fused.members.size()), node);
  }
  std::string Refusal(const tensorflow::NodeDef& member) const override {
    return member.name() == "d" ? "a toy does not take it" : "";
  }
};

TF_LIBRA_REGISTER_REWRITER("Toy", "", ToyRewriter);

class OtherRewriter : public ToyRewriter {};

std::unique_ptr<Rewriter> MakeOther() { return std::make_unique<OtherRewriter>(); }

DOCTEST_TEST_CASE("OneIsKnownByItsOp") {
  std::string reason;
  DOCTEST_CHECK(dynamic_cast<const ToyRewriter*>(MakeRewriter("Toy", &reason).get()) != nullptr);
  DOCTEST_CHECK(MakeRewriter("Toi", &reason) == nullptr);
  DOCTEST_CHECK_EQ(
      reason, testing::Contains(
                  "no rewriter writes op 'Toi', only HorovodGroupedAllreduce and LibraAllReduce"
                  " and Toy"));
}

DOCTEST_TEST_CASE("TheFirstOfAnOpStays") {
  Rewriters rewriters;
  DOCTEST_CHECK(rewriters.Register("Toy", "", [] { return std::make_unique<ToyRewriter>(); }));
  DOCTEST_CHECK(!rewriters.Register("Toy", "", MakeOther));
  std::string reason;
  DOCTEST_CHECK(dynamic_cast<const OtherRewriter*>(rewriters.Make("Toy", &reason).get()) ==
                nullptr);
}

DOCTEST_TEST_CASE("AnOpThatIsNotLoadedIsNamed") {
  Rewriters rewriters;
  rewriters.Register("NobodysOp", "call load_nobody()", MakeOther);
  std::string reason;
  DOCTEST_CHECK(rewriters.Make("NobodysOp", &reason) == nullptr);
  DOCTEST_CHECK_EQ(reason, testing::Contains("op 'NobodysOp' is not loaded: call load_nobody()"));
}

// What the pass itself says of an op that knows nothing of plans, and the plan's order.
DOCTEST_TEST_CASE("AnyOpIsWrittenInThePlansOrder") {
  testing::Graph builder;
  RegisteredPlan plan{"plan", "digest", {{{"b", "c"}, 2, 0}, {{"a", "d"}, 3, 0}}, false};
  for (const char* name : {"a", "b", "c", "d"}) builder.Reduce(name, std::string("grad_") + name);
  std::string reason;
  const auto rewriter = MakeRewriter("Toy", &reason);
  tensorflow::GraphDef rewritten;
  GraphReport report;
  DOCTEST_CHECK(FuseGroups(plan, *rewriter, {}, builder.def, &rewritten, &report));
  std::vector<std::string> toys;
  for (const auto& node : rewritten.node()) {
    if (node.name() == "d") DOCTEST_CHECK_EQ(node.op(), "LibraAllReduce");
    if (node.op() != "Toy") continue;
    const int group = static_cast<int>(toys.size());
    DOCTEST_CHECK(IsWritten(node));
    DOCTEST_CHECK_EQ(node.attr().at("_tf_libra_group").i(), group);
    DOCTEST_CHECK_EQ(node.attr().at("_tf_libra_num_threads").i(), group + 2);
    DOCTEST_CHECK_EQ(node.attr().at("_tf_libra_tensor_names").list().s(0), group == 0 ? "b" : "a");
    if (group > 0) DOCTEST_CHECK_EQ(node.input(node.input_size() - 1), "^" + toys.back());
    toys.push_back(node.name());
  }
  DOCTEST_CHECK_EQ(toys.size(), 2);
  DOCTEST_CHECK_EQ(report.skipped.front().reason, "a toy does not take it");
}

}  // namespace
}  // namespace tf_libra
