#include "ops/lanes/all_reduce_job.h"

#include <string>
#include <utility>
#include <vector>

namespace tf_libra {
namespace {

// Tensors of the same names and the same sum of bytes may still be cut differently.
uint64_t WithSizes(uint64_t digest, const AllReduceRequest& request) {
  const auto add = [&digest](uint64_t size) { digest = (digest ^ size) * 0x100000001b3u; };
  for (const TensorView& tensor : request.tensors) add(tensor.num_bytes);
  for (const ByteRange& part : request.parts) add(part.size());
  return digest;
}

// Zero stands for never, on both sides.
void KeepEarliest(std::atomic<int64_t>* earliest, int64_t nanos) {
  int64_t known = *earliest;
  while (nanos != 0 && (known == 0 || nanos < known)) {
    if (earliest->compare_exchange_weak(known, nanos)) return;
  }
}

}  // namespace

Status CheckLanes(const OperationInfo& operation, int num_lanes) {
  if (operation.num_threads < 1 || operation.num_threads > num_lanes) {
    return Status(StatusCode::kInvalidArgument, "num_threads must be between 1 and the engine's " +
                                                    std::to_string(num_lanes) + " lane(s), got " +
                                                    std::to_string(operation.num_threads) +
                                                    " for " + operation.Describe());
  }
  if (operation.first_lane < 0 || operation.first_lane > num_lanes - operation.num_threads) {
    return Status(StatusCode::kInvalidArgument,
                  "first_lane must be between 0 and " +
                      std::to_string(num_lanes - operation.num_threads) + " for " +
                      std::to_string(operation.num_threads) + " of " + std::to_string(num_lanes) +
                      " lane(s), got " + std::to_string(operation.first_lane) + " for " +
                      operation.Describe());
  }
  return Status();
}

AllReduceJob::AllReduceJob(const AllReduceRequest& request, int64_t step, const WallClock& wall,
                           bool in_two_levels)
    : buffers(request.tensors), steps(request.steps), wall(wall) {
  const OperationInfo& operation = *request.operation;
  if (in_two_levels) {
    std::vector<TensorView> outputs = request.tensors;
    for (TensorView& tensor : outputs) tensor.input = tensor.output;
    in_place = Buffers(std::move(outputs));
  }
  std::vector<TensorView> of_tensors;
  for (const RoundingErrors& one : request.errors) {
    of_tensors.push_back({one->data(), one->data(), one->size() * sizeof(float)});
  }
  errors = Buffers(std::move(of_tensors));
  record.operation = request.operation;
  record.step = step;
  record.num_bytes = buffers.num_bytes();
  record.enqueued_nanos = wall.Nanos();
  header.digest = WithSizes(operation.digest ^ static_cast<uint64_t>(request.steps), request);
  header.num_bytes = buffers.num_bytes();
  header.group = operation.group;
  header.num_threads = static_cast<uint16_t>(operation.num_threads);
  header.element_type = static_cast<uint8_t>(operation.WireType(request.element_type));
  header.reduction = static_cast<uint8_t>(operation.reduction);
  header.step = step;
}

void AllReduceJob::Began(int64_t nanos) { KeepEarliest(&started_nanos_, nanos); }

void AllReduceJob::HeardAll(int64_t nanos) { KeepEarliest(&first_byte_nanos_, nanos); }

void AllReduceJob::Ended() {
  record.num_sent_bytes = num_sent_;
  record.num_omitted_bytes = num_omitted_;
  record.cpu_nanos = cpu_nanos_;
  record.finished_nanos = wall.Nanos();
  record.started_nanos = wall.At(started_nanos_);
  record.first_byte_nanos = wall.At(first_byte_nanos_);
}

}  // namespace tf_libra
