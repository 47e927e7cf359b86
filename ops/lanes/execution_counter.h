// Number of submissions of each tensor to all-reduces, per training function. A check after every
// step reads it to find all-reduces that the step lacks, so it has to be cheap. A tensor that is
// submitted in parts counts with its first part: it cannot be read before all parts are reduced.
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
  // Returns the counter of this process.
  static Executions& Global();

  void RecordExecution(std::shared_ptr<const OperationInfo> operation);
  // Tensors since the last Take.
  int64_t Count(const std::string& function) const;
  // Returns how often each tensor was submitted, by name, and restarts the counts from 0.
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
