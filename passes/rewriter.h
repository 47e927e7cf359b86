// Registry of the ops that the pass can write: one rewriter each.

#ifndef TF_LIBRA_PASSES_REWRITER_H_
#define TF_LIBRA_PASSES_REWRITER_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "passes/plan_registry.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_libra {

// Members of one fused node: tensors of one plan group that share dtype, device and reduction.
struct FusedGroup {
  const RegisteredPlan& plan;
  int group;                              // index in the plan
  std::vector<std::string> tensor_names;  // one per member, in plan order
  // The op of each tensor as it was traced; all have the same "T" and "reduction".
  std::vector<const tensorflow::NodeDef*> members;
};

// Writes the op and its attributes. Input i and output i of the node belong to tensor i. The pass
// itself sets name, device, inputs and the members' attributes that start with '_'. If the op is
// not LibraAllReduce, it also sets "_tf_libra_tensor_names", "_tf_libra_group",
// "_tf_libra_function" and
// "_tf_libra_num_threads", for readers of the executed graph.
//
// Only tensors with the same Device are fused.
class Rewriter {
 public:
  virtual ~Rewriter() = default;
  virtual void Write(const FusedGroup& fused, tensorflow::NodeDef* node) const = 0;
  // Returns the device on which the op reduces `member`, whose gradient `producer_device` computes.
  virtual std::string Device(const tensorflow::NodeDef& member,
                             const std::string& producer_device) const {
    return member.device();
  }
  // Returns why the op cannot replace `member`, which then stays unchanged; empty if it can.
  virtual std::string Refusal(const tensorflow::NodeDef& member) const { return ""; }
  // Returns whether it writes "part_starts" of members, and the op all-reduces parts of a tensor in
  // place.
  virtual bool TakesParts() const { return false; }
  // Returns whether the pass splits each node, a LibraAllReduce, into start and wait.
  virtual bool SplitsStartDone() const { return false; }
  // Returns whether the pass adds a LibraAllReduceDone between each node and its readers.
  virtual bool NeedsDone() const { return false; }
};

// Rewriters by op. Thread-safe.
class Rewriters {
 public:
  // The registry of this process, including libraries that are loaded later.
  static Rewriters& Global();

  // Registers the rewriter of an op. `to_load` tells users how to load the op; empty if the library
  // of the rewriter has it. The first registration of an op wins; returns false for others.
  bool Register(const std::string& op, const std::string& to_load,
                std::function<std::unique_ptr<Rewriter>()> make);
  // Returns the rewriter for an op as the configuration names it; null, with the reason, if there
  // is none or the op is not loaded.
  std::unique_ptr<Rewriter> Make(const std::string& op, std::string* reason) const;

 private:
  struct Entry {
    std::string to_load;
    std::function<std::unique_ptr<Rewriter>()> make;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Entry> rewriters_;
};

// Calls Make of this process's registry.
inline std::unique_ptr<Rewriter> MakeRewriter(const std::string& op, std::string* reason) {
  return Rewriters::Global().Make(op, reason);
}

// Registers class `rewriter` for `op` when its library is loaded; at namespace scope, in one unit.
#define TF_LIBRA_REGISTER_REWRITER(op, to_load, rewriter)    \
  [[maybe_unused]] static const bool registered_##rewriter = \
      ::tf_libra::Rewriters::Global().Register(              \
          op, to_load,                                       \
          []() -> std::unique_ptr<::tf_libra::Rewriter> { return std::make_unique<rewriter>(); })

}  // namespace tf_libra

#endif  // TF_LIBRA_PASSES_REWRITER_H_
