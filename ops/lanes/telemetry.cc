#include "ops/lanes/telemetry.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "ops/lanes/fnv.h"
#include "ops/lanes/json.h"

namespace tf_libra {
namespace {

constexpr size_t kNamed = 3;  // tensors that a message names

std::string OperationJson(const OperationInfo& operation) {
  std::string out = "{\"plan\":" + QuotedJson(operation.plan) +
                    ",\"group\":" + std::to_string(operation.group) +
                    ",\"num_threads\":" + std::to_string(operation.num_threads) +
                    (operation.is_gather ? ",\"is_gather\":true" : "") + ",\"tensor_names\":[";
  for (size_t i = 0; i < operation.tensor_names.size(); ++i) {
    out += (i == 0 ? "" : ",") + QuotedJson(operation.tensor_names[i]);
  }
  return out + "]}";
}

}  // namespace

void OperationInfo::ComputeDigest() {
  Fnv fnv;
  fnv.Add(plan);
  fnv.Add(function);
  if (is_gather) fnv.Add("gather");
  fnv.Add(group);
  fnv.Add(num_threads);
  fnv.Add(first_lane);
  fnv.Add(static_cast<int64_t>(reduction));
  if (wire_type) fnv.Add(ElementName(*wire_type));
  if (error_feedback) fnv.Add("error_feedback");
  for (const std::string& name : tensor_names) fnv.Add(name);
  for (const int64_t start : part_starts) fnv.Add(start);
  digest = fnv.value();
}

std::string OperationInfo::Describe() const {
  std::string text = is_gather    ? "a gather"
                     : group >= 0 ? "group " + std::to_string(group)
                                  : "an unplanned all-reduce";
  for (size_t i = 0; i < std::min(tensor_names.size(), kNamed); ++i) {
    text += (i == 0 ? " (" : ", ") + tensor_names[i];
  }
  if (tensor_names.size() > kNamed) {
    text += " and " + std::to_string(tensor_names.size() - kNamed) + " more";
  }
  if (!tensor_names.empty()) text += ")";
  if (group >= 0 || (is_gather && !plan.empty())) text += " of plan " + plan;
  if (!function.empty()) text += " in " + function;
  return text;
}

void Telemetry::Add(const AllReduceRecord& record) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    records_.push_back(record);
  } catch (...) {
    ++dropped_;
    return;
  }
  if (records_.size() > kMaxRecords) {
    records_.pop_front();
    ++dropped_;
  }
}

std::vector<AllReduceRecord> Telemetry::Drain(uint64_t* dropped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *dropped = std::exchange(dropped_, 0);
  std::vector<AllReduceRecord> taken(std::make_move_iterator(records_.begin()),
                                     std::make_move_iterator(records_.end()));
  records_.clear();
  return taken;
}

std::string TelemetryJson(const std::vector<AllReduceRecord>& records, uint64_t dropped) {
  std::map<std::string, const OperationInfo*> operations;
  std::string rows;
  for (const AllReduceRecord& record : records) {
    char row[448];
    std::snprintf(
        row, sizeof(row),
        "%s{\"operation\":\"%016llx\",\"step\":%lld,\"sequence\":%llu,"
        "\"num_bytes\":%llu,\"sent_bytes\":%llu,\"omitted_bytes\":%llu,\"cpu_ns\":%lld,"
        "\"enqueued_ns\":%lld,\"started_ns\":%lld,"
        "\"first_byte_ns\":%lld,\"finished_ns\":%lld}",
        rows.empty() ? "" : ",", static_cast<unsigned long long>(record.operation->digest),
        static_cast<long long>(record.step), static_cast<unsigned long long>(record.sequence),
        static_cast<unsigned long long>(record.num_bytes),
        static_cast<unsigned long long>(record.num_sent_bytes),
        static_cast<unsigned long long>(record.num_omitted_bytes),
        static_cast<long long>(record.cpu_nanos), static_cast<long long>(record.enqueued_nanos),
        static_cast<long long>(record.started_nanos),
        static_cast<long long>(record.first_byte_nanos),
        static_cast<long long>(record.finished_nanos));
    rows += row;
    char key[20];
    std::snprintf(key, sizeof(key), "%016llx",
                  static_cast<unsigned long long>(record.operation->digest));
    operations.emplace(key, record.operation.get());
  }
  std::string table;
  for (const auto& [key, operation] : operations) {
    table += (table.empty() ? "\"" : ",\"") + key + "\":" + OperationJson(*operation);
  }
  return "{\"dropped\":" + std::to_string(dropped) + ",\"operations\":{" + table +
         "},\"records\":[" + rows + "]}";
}

}  // namespace tf_libra
