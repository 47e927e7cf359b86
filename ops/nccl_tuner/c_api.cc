#include "ops/nccl_tuner/c_api.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/nccl_tuner/channel_plan.h"
#include "ops/nccl_tuner/guarded.h"
#include "ops/nccl_tuner/tuner.h"

namespace {

using tf_libra::nccl::ChannelPlan;
using tf_libra::nccl::Counters;
using tf_libra::nccl::PlannedAllReduce;
using tf_libra::nccl::Tuner;

// More than any NCCL has; NCCL uses its own limit if more is requested.
constexpr int kMaxChannels = 1024;

constexpr int kInvalid = 1, kFailed = 2;

// Last error of this thread; a fixed text if there is no memory for the reason.
struct LastError {
  std::string text;
  bool is_lost = false;
};

LastError& TheLastError() {
  thread_local LastError error;
  return error;
}

int Fail(std::string error) {
  TheLastError() = {std::move(error), false};
  return kInvalid;
}

int Caught(const char* why) noexcept {
  LastError& error = TheLastError();
  try {
    error.is_lost = false;
    error.text = why;
  } catch (...) {
    error.is_lost = true;
  }
  return kFailed;
}

template <typename Body>
int Guarded(Body body) noexcept {
  return tf_libra::nccl::Guarded(body, Caught);
}

int SetPlan(int num_ranks, int prefer_ring, int num_all_reduces, const uint64_t* num_bytes,
            const uint64_t* padded_bytes, const int* num_channels) {
  if (num_ranks < 1) {
    return Fail("num_ranks must be at least 1, got " + std::to_string(num_ranks));
  }
  if (num_all_reduces < 1) {
    return Fail("num_all_reduces must be at least 1, got " + std::to_string(num_all_reduces));
  }
  std::vector<PlannedAllReduce> all_reduces(num_all_reduces);
  for (int i = 0; i < num_all_reduces; ++i) {
    const std::string index = "[" + std::to_string(i) + "]";
    if (num_bytes[i] == 0) return Fail("num_bytes" + index + " must be at least 1, got 0");
    if (padded_bytes[i] < num_bytes[i]) {
      return Fail("padded_bytes" + index + " must be at least num_bytes" + index + ", " +
                  std::to_string(num_bytes[i]) + ", got " + std::to_string(padded_bytes[i]));
    }
    if (num_channels[i] < 1 || num_channels[i] > kMaxChannels) {
      return Fail("num_channels" + index + " must be from 1 to " + std::to_string(kMaxChannels) +
                  ", got " + std::to_string(num_channels[i]));
    }
    all_reduces[i] = {num_bytes[i], padded_bytes[i], num_channels[i]};
  }
  Tuner::Instance().SetPlan(
      std::make_shared<const ChannelPlan>(num_ranks, prefer_ring != 0, std::move(all_reduces)));
  return 0;
}

}  // namespace

int TfLibraTunerSetPlan(int num_ranks, int prefer_ring, int num_all_reduces,
                        const uint64_t* num_bytes, const uint64_t* padded_bytes,
                        const int* num_channels) {
  return Guarded([&] {
    return SetPlan(num_ranks, prefer_ring, num_all_reduces, num_bytes, padded_bytes, num_channels);
  });
}

int TfLibraTunerClearPlan() {
  return Guarded([] {
    Tuner::Instance().SetPlan(nullptr);
    return 0;
  });
}

int TfLibraTunerBeginStep() {
  return Guarded([] {
    Tuner::Instance().BeginStep();
    return 0;
  });
}

int TfLibraTunerReadCounts(TfLibraTunerCounts* counts) {
  return Guarded([counts] {
    const Counters now = Tuner::Instance().counters();
    *counts = {now.interface_version, now.communicators,      now.asked,
               now.applied,           now.passed_over,        now.no_plan,
               now.other_collective,  now.other_communicator, now.unknown_size,
               now.forwarded,         now.out_of_order,       now.without_ring};
    return 0;
  });
}

int TfLibraTunerReadApplied(int64_t* applied, int capacity) {
  int size = -1;
  Guarded([&] {
    const std::vector<int64_t> now = Tuner::Instance().applied();
    std::copy_n(now.begin(), std::min<size_t>(now.size(), std::max(capacity, 0)), applied);
    size = static_cast<int>(now.size());
    return 0;
  });
  return size;
}

const char* TfLibraTunerLastError() {
  const LastError& error = TheLastError();
  return error.is_lost ? "out of memory" : error.text.c_str();
}
