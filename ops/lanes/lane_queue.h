// Queue of all-reduces that wait for their lanes. An all-reduce starts when all its lanes are
// free, and never overtakes one with which it shares a lane. So ranks with the same order of
// requests run all-reduces that share lanes in the same order, and the others concurrently.
#ifndef TF_LIBRA_OPS_LANES_LANE_QUEUE_H_
#define TF_LIBRA_OPS_LANES_LANE_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace tf_libra {

struct LaneRange {
  int first = 0;
  int count = 1;
};

// For one thread at a time. Only Add and Push allocate memory; where there is none, nothing has
// changed.
template <typename Job>
class LaneQueue {
 public:
  // Further lanes.
  void Add(int count) { lanes_.resize(lanes_.size() + count); }

  bool empty() const { return queue_.empty(); }

  // Behind all others that want one of these lanes, of those that there are.
  void Push(LaneRange lanes, std::shared_ptr<Job> job) {
    queue_.push_back({lanes, std::move(job)});
    ForEach(lanes, [](Lane* lane) { ++lane->num_waiting; });
  }

  // The next whose lanes are all free; they are its own until Free. Null: there is none.
  std::shared_ptr<Job> TakeNext() {
    ++looks_;
    int num_open = 0;  // lanes that a job may still get
    for (const Lane& lane : lanes_) num_open += !lane.is_busy && lane.num_waiting > 0;
    for (auto queued = queue_.begin(); num_open > 0; ++queued) {
      bool is_free = true;
      ForEach(queued->lanes, [&](Lane* lane) {
        is_free = is_free && !lane->is_busy && lane->wanted_in != looks_;
      });
      if (is_free) {
        ForEach(queued->lanes, [](Lane* lane) { lane->is_busy = true; });
        return Take(queued);
      }
      ForEach(queued->lanes, [&](Lane* lane) {
        num_open -= !lane->is_busy && lane->wanted_in != looks_;
        lane->wanted_in = looks_;
      });
    }
    return nullptr;
  }

  // The first that waits, which gets no lanes. Not where the queue is empty.
  std::shared_ptr<Job> TakeFirst() { return Take(queue_.begin()); }

  void Free(LaneRange lanes) {
    ForEach(lanes, [](Lane* lane) { lane->is_busy = false; });
  }

 private:
  struct Lane {
    bool is_busy = false;
    int num_waiting = 0;     // jobs of the queue that want it
    uint64_t wanted_in = 0;  // the last look through the queue in which one waited for it
  };
  struct Queued {
    LaneRange lanes;
    std::shared_ptr<Job> job;
  };

  template <typename Visit>
  void ForEach(LaneRange lanes, Visit visit) {
    for (int i = lanes.first; i < lanes.first + lanes.count; ++i) visit(&lanes_[i]);
  }

  std::shared_ptr<Job> Take(typename std::deque<Queued>::iterator queued) {
    ForEach(queued->lanes, [](Lane* lane) { --lane->num_waiting; });
    std::shared_ptr<Job> job = std::move(queued->job);
    queue_.erase(queued);
    return job;
  }

  std::vector<Lane> lanes_;
  std::deque<Queued> queue_;
  uint64_t looks_ = 0;  // through the queue
};

}  // namespace tf_libra

#endif  // TF_LIBRA_OPS_LANES_LANE_QUEUE_H_
