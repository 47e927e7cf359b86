#include "ops/profiler_events.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace tf_libra {
namespace {

using tsl::profiler::TraceMeEncode;
using tsl::profiler::TraceMeOp;
using tsl::profiler::TraceMeRecorder;

// The profiler's own syntax knows no escapes.
void AppendEncoded(const std::string& text, std::string* out) {
  constexpr char kHex[] = "0123456789ABCDEF";
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || c == '/' || c == '_' || c == '-' || c == '.' || c == ':') {
      *out += c;
    } else {
      const auto byte = static_cast<uint8_t>(c);
      *out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
}

// Quoted: the profiler would take an id such as 12e3 for a number.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  AppendEncoded(text, &quoted);
  return quoted + "'";
}

}  // namespace

std::string OpEvent(const tensorflow::OpKernelContext& context, const OperationInfo& operation) {
  const tensorflow::OpKernel& kernel = context.op_kernel();
  std::string names, bytes, producers, starts;
  for (int i = 0; i < static_cast<int>(operation.tensor_names.size()); ++i) {
    const char* const separator = i == 0 ? "" : ";";
    names += separator;
    AppendEncoded(operation.tensor_names[i], &names);
    absl::StrAppend(&bytes, separator, context.input(i).TotalBytes());
    absl::StrAppend(&starts, separator, operation.IsPart(i) ? operation.part_starts[i] : -1);
    producers += separator;
    if (i < kernel.def().input_size()) AppendEncoded(kernel.def().input(i), &producers);
  }
  return TraceMeEncode(TraceMeOp(kernel.name_view(), "LibraAllReduce"),
                       {{"plan", Quoted(operation.plan)},
                        {"group", operation.group},
                        {"threads", operation.num_threads},
                        {"names", names},
                        {"bytes", bytes},
                        {"starts", starts},
                        {"producers", producers}});
}

void ShowInProfiler(const LaneSpan& span) {
  if (!TraceMeRecorder::Active(tsl::profiler::kCritical)) return;
  const AllReduceRecord& record = *span.record;
  const OperationInfo& operation = *record.operation;
  // If there was no rank to wait for, or the first bytes of some came with the last.
  const int64_t waited_nanos =
      std::clamp(span.first_byte_nanos, span.started_nanos, span.finished_nanos);
  TraceMeRecorder::Record(
      {TraceMeEncode(operation.group < 0 ? std::string("LibraAllReduce unplanned")
                                         : absl::StrCat("LibraAllReduce group ", operation.group),
                     {{"plan", Quoted(operation.plan)},
                      {"group", operation.group},
                      {"threads", operation.num_threads},
                      {"lane", span.lane},
                      {"lane_bytes", span.num_bytes},
                      {"bytes", record.num_bytes},
                      {"step", record.step},
                      {"sequence", record.sequence},
                      {"queued_ns", span.started_nanos - record.enqueued_nanos}}),
       span.started_nanos, span.finished_nanos});
  const auto phase = [&](const char* name, int64_t begin, int64_t end) {
    TraceMeRecorder::Record(
        {TraceMeEncode(name, {{"group", operation.group}, {"sequence", record.sequence}}), begin,
         end});
  };
  phase("LibraAllReduce wait", span.started_nanos, waited_nanos);
  phase("LibraAllReduce exchange", waited_nanos, span.finished_nanos);
}

}  // namespace tf_libra
