#include "ops/lanes/message_matcher.h"

#include <utility>

namespace tf_libra {

void MessageMatcher::Post(const TransferPtr& transfer) {
  queues_[transfer->key].posted.push_back(transfer);
}

void MessageMatcher::Announce(const std::string& key, Announced announced) {
  const size_t num_bytes = key.size() + announced.content.size();
  queues_[key].announced.push_back(std::move(announced));
  ++num_announced_;
  announced_bytes_ += num_bytes;
}

bool MessageMatcher::MatchNext(const std::string& key, TransferPtr* transfer,
                               Announced* announced) {
  const auto found = queues_.find(key);
  if (found == queues_.end()) return false;
  Queues& channel = found->second;
  if (channel.posted.empty() || channel.announced.empty()) return false;
  *transfer = std::move(channel.posted.front());
  *announced = std::move(channel.announced.front());
  channel.posted.pop_front();
  channel.announced.pop_front();
  --num_announced_;
  announced_bytes_ -= key.size() + announced->content.size();
  if (channel.posted.empty() && channel.announced.empty()) queues_.erase(found);
  return true;
}

std::string MessageMatcher::NameAnnounced(size_t most) const {
  std::string names;
  size_t num_named = 0;
  for (const auto& [key, channel] : queues_) {
    if (channel.announced.empty() || ++num_named > most) continue;
    names += (names.empty() ? "'" : ", '") + key.substr(1) + "' (" +
             channel.announced.front().content + ")";
  }
  return names + (num_named > most ? " and more" : "");
}

}  // namespace tf_libra
