#include "ops/update_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tf_libra {
namespace {

// The values of two dozen instructions fit into a first-level cache. Adam on 2.7 M elements, on one
// core of an Intel Xeon with 48 KiB of it: 3.3 ms with 256, 3.7 with 512, 4.9 with 1024.
constexpr size_t kBlock = 256;

// `out` is no operand, but of assignments the variable.
inline __attribute__((always_inline)) void ApplyLoops(UpdateOp op, const float* __restrict first,
                                                      const float* __restrict second,
                                                      float* __restrict out, size_t count) {
  switch (op) {
    case UpdateOp::kRead:
    case UpdateOp::kAssign:
      std::memcpy(out, first, count * sizeof(float));
      break;
    case UpdateOp::kAssignAdd:
      for (size_t i = 0; i < count; ++i) out[i] = out[i] + first[i];
      break;
    case UpdateOp::kAssignSubtract:
      for (size_t i = 0; i < count; ++i) out[i] = out[i] - first[i];
      break;
    case UpdateOp::kAdd:
      for (size_t i = 0; i < count; ++i) out[i] = first[i] + second[i];
      break;
    case UpdateOp::kSubtract:
      for (size_t i = 0; i < count; ++i) out[i] = first[i] - second[i];
      break;
    case UpdateOp::kMultiply:
      for (size_t i = 0; i < count; ++i) out[i] = first[i] * second[i];
      break;
    case UpdateOp::kDivide:
      for (size_t i = 0; i < count; ++i) out[i] = first[i] / second[i];
      break;
    case UpdateOp::kNegate:
      for (size_t i = 0; i < count; ++i) out[i] = -first[i];
      break;
    case UpdateOp::kSquare:
      for (size_t i = 0; i < count; ++i) out[i] = first[i] * first[i];
      break;
    case UpdateOp::kSqrt:
      for (size_t i = 0; i < count; ++i) out[i] = std::sqrt(first[i]);
      break;
  }
}

using ApplyFunction = void (*)(UpdateOp, const float*, const float*, float*, size_t);

void ApplyAnywhere(UpdateOp op, const float* first, const float* second, float* out, size_t count) {
  ApplyLoops(op, first, second, out, count);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void ApplyByAvx2(UpdateOp op, const float* first,
                                                 const float* second, float* out, size_t count) {
  ApplyLoops(op, first, second, out, count);
}
#endif

ApplyFunction FindApply() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return ApplyByAvx2;
#endif
  return ApplyAnywhere;
}

}  // namespace

absl::Status UpdateProgram::Parse(const std::vector<int>& triples, int num_variables,
                                  int num_values, UpdateProgram* program) {
  const auto invalid = [&](size_t at, const char* what) {
    return absl::InvalidArgumentError(absl::StrCat("program: ", triples[at], " at ", at, " is ",
                                                   what, ", with ", num_variables,
                                                   " variable(s) and ", num_values, " value(s)"));
  };
  if (triples.size() % 3 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("program: must have triples of integers, got ", triples.size()));
  }
  program->instructions_.clear();
  for (size_t at = 0; at < triples.size(); at += 3) {
    if (triples[at] < 0 || triples[at] >= kNumUpdateOps) return invalid(at, "no operation");
    const UpdateInstruction next = {static_cast<UpdateOp>(triples[at]), triples[at + 1],
                                    triples[at + 2]};
    const int known = num_values + static_cast<int>(at / 3);
    const auto is_value = [&](int operand) {
      if (operand < 0 || operand >= known) return false;
      return operand < num_values ||
             !ChangesVariable(program->instructions_[operand - num_values].op);
    };
    const bool takes_variable = next.op == UpdateOp::kRead || ChangesVariable(next.op);
    if (takes_variable && (next.first < 0 || next.first >= num_variables)) {
      return invalid(at + 1, "no variable");
    }
    if (!takes_variable && !is_value(next.first)) return invalid(at + 1, "no value");
    const bool is_binary = next.op != UpdateOp::kRead && !IsUnary(next.op);
    if (is_binary && !is_value(next.second)) return invalid(at + 2, "no value");
    program->instructions_.push_back(next);
  }
  return absl::OkStatus();
}

void UpdateProgram::Run(const std::vector<float*>& variables,
                        const std::vector<UpdateValue>& values, size_t begin, size_t end,
                        const std::vector<UpdateCopy>& copies) const {
  static const ApplyFunction apply = FindApply();
  const size_t num_values = values.size();
  std::vector<float> blocks((num_values + instructions_.size()) * kBlock);
  std::vector<const float*> operands(num_values + instructions_.size());
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = &blocks[i * kBlock];
  for (size_t i = 0; i < num_values; ++i) {
    if (values[i].is_scalar) std::fill_n(&blocks[i * kBlock], kBlock, *values[i].data);
  }
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t count = std::min(kBlock, end - at);
    for (const UpdateCopy& copy : copies) {
      std::memcpy(copy.to + at, copy.from + at, count * sizeof(float));
    }
    for (size_t i = 0; i < num_values; ++i) {
      if (!values[i].is_scalar) operands[i] = values[i].data + at;
    }
    for (size_t k = 0; k < instructions_.size(); ++k) {
      const UpdateInstruction& next = instructions_[k];
      float* const out = &blocks[(num_values + k) * kBlock];
      if (next.op == UpdateOp::kRead) {
        apply(next.op, variables[next.first] + at, nullptr, out, count);
      } else if (ChangesVariable(next.op)) {
        apply(next.op, operands[next.second], nullptr, variables[next.first] + at, count);
      } else {
        const float* const second = IsUnary(next.op) ? nullptr : operands[next.second];
        apply(next.op, operands[next.first], second, out, count);
      }
    }
  }
}

}  // namespace tf_libra
