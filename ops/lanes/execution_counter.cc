#include "ops/lanes/execution_counter.h"

#include <utility>

#include "ops/lanes/json.h"

namespace tf_libra {

Executions& Executions::Global() {
  static Executions* const executions = new Executions;
  return *executions;
}

void Executions::RecordExecution(std::shared_ptr<const OperationInfo> operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Noted& noted = functions_[operation->function];
  for (size_t i = 0; i < operation->tensor_names.size(); ++i) {
    noted.num_tensors += operation->HasBeginning(i);
  }
  ++noted.times[std::move(operation)];
}

int64_t Executions::Count(const std::string& function) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = functions_.find(function);
  return found == functions_.end() ? 0 : found->second.num_tensors;
}

std::map<std::string, int64_t> Executions::Take(const std::string& function) {
  Noted noted;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = functions_.find(function);
    if (found == functions_.end()) return {};
    noted = std::move(found->second);
    functions_.erase(found);
  }
  std::map<std::string, int64_t> times;
  for (const auto& [operation, count] : noted.times) {
    for (size_t i = 0; i < operation->tensor_names.size(); ++i) {
      if (operation->HasBeginning(i)) times[operation->tensor_names[i]] += count;
    }
  }
  return times;
}

std::string ExecutionsJson(const std::map<std::string, int64_t>& times) {
  std::string json = "{";
  for (const auto& [name, count] : times) {
    json += (json.size() == 1 ? "" : ",") + QuotedJson(name) + ":" + std::to_string(count);
  }
  return json + "}";
}

}  // namespace tf_libra
