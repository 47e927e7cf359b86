#include "ops/lanes/lane_queue.h"

#include <deque>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "ops/lanes/testing.h"

namespace tf_libra::lane_queue_test {
namespace {

struct Job {
  int number = 0;
  LaneRange lanes;
};

struct Queue : LaneQueue<Job> {
  explicit Queue(int num_lanes) { Add(num_lanes); }

  void Post(int number, LaneRange lanes) { Push(lanes, std::make_shared<Job>(Job{number, lanes})); }
  // The number of the next; -1: none may begin.
  int Next() {
    const std::shared_ptr<Job> job = TakeNext();
    return job == nullptr ? -1 : job->number;
  }
};

TEST_CASE("LanesOfTheirOwnRunAtOnce") {
  Queue queue(3);
  CHECK_EQ(queue.Next(), -1);
  queue.Post(0, {0, 2});
  queue.Post(1, {1, 1});
  queue.Post(2, {2, 1});
  CHECK_EQ(queue.Next(), 0);
  CHECK_EQ(queue.Next(), 2);
  CHECK_EQ(queue.Next(), -1);
  queue.Free({0, 2});
  CHECK_EQ(queue.Next(), 1);
  CHECK(queue.empty());
}

// A wide one waits for one lane, and a narrow one behind it for the other, which is free.
TEST_CASE("NoneIsOvertaken") {
  Queue queue(2);
  queue.Post(0, {0, 1});
  queue.Post(1, {0, 2});
  queue.Post(2, {1, 1});
  CHECK_EQ(queue.Next(), 0);
  CHECK_EQ(queue.Next(), -1);
  queue.Free({0, 1});
  CHECK_EQ(queue.Next(), 1);
  CHECK_EQ(queue.Next(), -1);
  queue.Free({0, 2});
  CHECK_EQ(queue.Next(), 2);
}

TEST_CASE("LanesAreAdded") {
  Queue queue(1);
  queue.Post(0, {0, 1});
  CHECK_EQ(queue.Next(), 0);
  queue.Add(1);
  queue.Post(1, {0, 2});
  CHECK_EQ(queue.Next(), -1);
  queue.Free({0, 1});
  CHECK_EQ(queue.Next(), 1);
}

// Entries that are taken out unrun block no other entry.
TEST_CASE("TheFirstIsTakenWhateverItsLanes") {
  Queue queue(2);
  queue.Post(0, {0, 2});
  queue.Post(1, {0, 2});
  queue.Post(2, {1, 1});
  CHECK_EQ(queue.Next(), 0);
  CHECK_EQ(queue.TakeFirst()->number, 1);
  queue.Free({0, 2});
  CHECK_EQ(queue.Next(), 2);
}

// Compared with a list that is searched for the first entry whose lanes are free and not wanted by
// an earlier one.
TEST_CASE("EqualsTheRule") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int num_lanes = 1 + static_cast<int>(random() % 5);
    Queue queue(num_lanes);
    std::deque<Job> waiting;
    std::vector<Job> running;
    for (int number = 0; number < 60; ++number) {
      if (random() % 2 == 0) {
        LaneRange lanes;
        lanes.first = static_cast<int>(random() % num_lanes);
        lanes.count = 1 + static_cast<int>(random() % (num_lanes - lanes.first));
        queue.Post(number, lanes);
        waiting.push_back({number, lanes});
      } else if (!running.empty()) {
        const size_t ended = random() % running.size();
        queue.Free(running[ended].lanes);
        running.erase(running.begin() + static_cast<ptrdiff_t>(ended));
      }
      std::set<int> taken;
      const auto add = [&taken](LaneRange lanes) {
        bool is_free = true;
        for (int i = 0; i < lanes.count; ++i) is_free &= taken.insert(lanes.first + i).second;
        return is_free;
      };
      for (const Job& job : running) add(job.lanes);
      for (auto job = waiting.begin(); job != waiting.end();) {
        if (!add(job->lanes)) {
          ++job;
          continue;
        }
        CHECK_EQ(queue.Next(), job->number);
        running.push_back(*job);
        job = waiting.erase(job);
      }
      CHECK_EQ(queue.Next(), -1);
    }
  }
}

}  // namespace
}  // namespace tf_libra::lane_queue_test
