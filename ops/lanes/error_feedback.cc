#include "ops/lanes/error_feedback.h"

#include <algorithm>
#include <utility>

namespace tf_libra {
namespace {

RoundingErrors Range(const std::vector<float>& errors, size_t begin, size_t end) {
  return std::make_shared<std::vector<float>>(errors.begin() + begin, errors.begin() + end);
}

}  // namespace

ErrorFeedback& ErrorFeedback::Global() {
  static ErrorFeedback* const feedback = new ErrorFeedback;
  return *feedback;
}

RoundingErrors ErrorFeedback::Of(const std::string& function, const std::string& tensor,
                                 size_t first, size_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pieces& pieces = functions_[function][tensor];
  const auto same = pieces.find(first);
  if (same != pieces.end() && same->second->size() == count) return same->second;
  const size_t end = first + count;
  auto errors = std::make_shared<std::vector<float>>(count);
  Pieces others;
  for (const auto& [begin, piece] : pieces) {
    const size_t stop = begin + piece->size();
    if (stop <= first || begin >= end) {
      others.emplace(begin, piece);
      continue;
    }
    const size_t from = std::max(begin, first);
    const size_t to = std::min(stop, end);
    std::copy(piece->begin() + (from - begin), piece->begin() + (to - begin),
              errors->begin() + (from - first));
    if (begin < first) others.emplace(begin, Range(*piece, 0, first - begin));
    if (stop > end) others.emplace(end, Range(*piece, end - begin, piece->size()));
  }
  if (count > 0) others.emplace(first, errors);
  pieces = std::move(others);
  return errors;
}

std::vector<RoundingErrors> ErrorFeedback::Of(const OperationInfo& operation,
                                              const std::vector<TensorView>& tensors) {
  std::vector<RoundingErrors> errors;
  if (!operation.error_feedback || !operation.wire_type) return errors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t first = operation.IsPart(i) ? operation.part_starts[i] / sizeof(float) : 0;
    errors.push_back(Of(operation.function, operation.tensor_names[i], first,
                        tensors[i].num_bytes / sizeof(float)));
  }
  return errors;
}

std::map<std::string, std::vector<float>> ErrorFeedback::Copy(const std::string& function) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, std::vector<float>> copied;
  const auto found = functions_.find(function);
  if (found == functions_.end()) return copied;
  for (const auto& [tensor, pieces] : found->second) {
    std::vector<float>& errors = copied[tensor];
    for (const auto& [first, piece] : pieces) {
      errors.resize(first + piece->size());
      std::copy(piece->begin(), piece->end(), errors.begin() + first);
    }
  }
  return copied;
}

void ErrorFeedback::Set(const std::string& function, const std::string& tensor,
                        std::vector<float> errors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Pieces pieces;
  if (!errors.empty()) pieces[0] = std::make_shared<std::vector<float>>(std::move(errors));
  functions_[function][tensor] = std::move(pieces);
}

void ErrorFeedback::Clear(const std::string& function) {
  const std::lock_guard<std::mutex> lock(mutex_);
  functions_.erase(function);
}

}  // namespace tf_libra
