#include "passes/rewriter.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/core/framework/op.h"

namespace tf_libra {

Rewriters& Rewriters::Global() {
  static Rewriters* const rewriters = new Rewriters;
  return *rewriters;
}

bool Rewriters::Register(const std::string& op, const std::string& to_load,
                         std::function<std::unique_ptr<Rewriter>()> make) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return rewriters_.emplace(op, Entry{to_load, std::move(make)}).second;
}

std::unique_ptr<Rewriter> Rewriters::Make(const std::string& op, std::string* reason) const {
  Entry entry;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = rewriters_.find(op);
    if (found == rewriters_.end()) {
      const auto name = [](std::string* out, const auto& one) { out->append(one.first); };
      *reason = absl::StrCat("no rewriter writes op '", op, "', only ",
                             absl::StrJoin(rewriters_, " and ", name));
      return nullptr;
    }
    entry = found->second;
  }
  const tensorflow::OpRegistrationData* unused = nullptr;
  if (!entry.to_load.empty() && !tensorflow::OpRegistry::Global()->LookUp(op, &unused).ok()) {
    *reason = absl::StrCat("op '", op, "' is not loaded: ", entry.to_load);
    return nullptr;
  }
  return entry.make();
}

}  // namespace tf_libra
