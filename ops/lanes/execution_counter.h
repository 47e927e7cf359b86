// How often each tensor was handed to all-reduces, per training function: whether a step has done
// what it had to is asked after every step, so it has to be cheap. A tensor that is handed over in
// parts counts with the first of them: nothing of it can be read before all are reduced.
#ifndef TF_LIBRA_OPS_LANES_EXECUTION_COUNTER_H_
#define TF_LIBRA_OPS_LANES_EXECUTION_COUNTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ops/lanes/telemetry.h"

namespace tf_libra {

class Executions {
 public:
  // Those of this process.
  static Executions& Global();

  void Note(std::shared_ptr<const OperationInfo> operation);
  // Tensors since the last Take.
  int64_t Count(const std::string& function) const;
  // How often each tensor, by name; counts anew from here on.
  std::map<std::string, int64_t> Take(const std::string& function);

 private:
  struct Noted {
    int64_t num_tensors = 0;
    std::map<std::shared_ptr<const OperationInfo>, int64_t> times;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Noted> functions_;
};

// {"name": times, ...}
std::string ExecutionsJson(const std::map<std::string, int64_t>& times);

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_EXECUTION_COUNTER_H_
