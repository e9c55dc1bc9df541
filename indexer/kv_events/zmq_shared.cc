// Messages of a shared socket, sorted by topic. `topics_` has an entry for each topic that has a
// stream, or messages that wait for one; entries without a stream go when their connection ends.
//
// *Lock order*: `mutex_`, then a stream's (`Feed`, `Depart`). `on_topic` runs under it and must not
// come back here.

#include "indexer/kv_events/zmq_shared.h"

#include <algorithm>

#include "indexer/kv_events/zmq_stream.h"

namespace kvatlas {

// A topic that has sent something before counts as a new connection, of which the stream was not
// told.
void ZmqShared::Add(const std::string& topic, std::shared_ptr<ZmqStream> stream) {
  MutexLock lock(&mutex_);
  Topic& of = topics_[topic];
  of.stream = std::move(stream);
  of.arrived = of.origin.known();
}

void ZmqShared::Remove(const std::string& topic) {
  MutexLock lock(&mutex_);
  const auto found = topics_.find(topic);
  if (found == topics_.end()) return;
  for (const auto& [number, payload] : found->second.waiting) waiting_bytes_ -= payload.size();
  topics_.erase(found);
}

bool ZmqShared::IsKnown(std::string_view topic, const ZmqFrames& frames) const {
  MutexLock lock(&mutex_);
  const auto found = topics_.find(topic);
  return found != topics_.end() && found->second.origin.IsOf(frames);
}

// A message of a topic, in the lane's thread:
//
// 1. Over another connection than the last one: note it, and its descriptor, by which its end will
//    be known.
// 2. Without a stream: keep it, and say that there is such a topic (`Keep`).
// 3. Else feed what waits, then this message.
void ZmqShared::Take(ZmqLaneState* lane, const std::string& topic, uint64_t number,
                     const ZmqHeld& held, Time now) {
  MutexLock lock(&mutex_);
  if (topics_.size() >= kTopicsMax && !topics_.contains(topic)) return;
  Topic& of = topics_[topic];
  if (!of.origin.IsOf(lane->frames)) {
    of.origin.Take(lane->frames);
    // Messages of a connection that has ended are still read.
    of.descriptor = held.Has(lane->frames.descriptor()) ? lane->frames.descriptor() : -1;
    of.arrived = true;
  }
  if (of.stream == nullptr) return Keep(topic, &of, number, lane->frames.payload(), now);
  FeedWaiting(lane, &of, now);
  Feed(lane, &of, number, lane->frames.payload(), now);
}

// A message that an ended connection left behind is followed by the end at once, so that the stream
// does not count as connected.
void ZmqShared::Feed(ZmqLaneState* lane, Topic* topic, uint64_t number, std::string_view payload,
                     Time now) {
  topic->stream->Feed(lane, number, payload, std::exchange(topic->arrived, false), now);
  if (topic->descriptor < 0) topic->stream->Depart(lane, now);
}

void ZmqShared::FeedWaiting(ZmqLaneState* lane, Topic* topic, Time now) {
  for (const auto& [number, payload] : std::exchange(topic->waiting, {})) {
    waiting_bytes_ -= payload.size();
    Feed(lane, topic, number, payload, now);
  }
}

// Called at each turn of the socket: a stream that was added since takes what waited.
void ZmqShared::FeedWaiting(ZmqLaneState* lane, Time now) {
  MutexLock lock(&mutex_);
  if (waiting_bytes_ == 0) return;
  for (auto& [name, topic] : topics_)
    if (topic.stream != nullptr) FeedWaiting(lane, &topic, now);
}

// Keeps a message for a stream to come; of more than the bound the oldest of this topic go.
// `on_topic` is called with the first one, and again after `kTellAgainAfter`: a registration may
// have failed.
void ZmqShared::Keep(const std::string& name, Topic* topic, uint64_t number,
                     std::string_view payload, Time now) {
  topic->waiting.emplace_back(number, payload);
  waiting_bytes_ += payload.size();
  while (waiting_bytes_ > kWaitingBytesMax && !topic->waiting.empty()) {
    waiting_bytes_ -= topic->waiting.front().second.size();
    topic->waiting.pop_front();
  }
  if (topic->told != Time(0) && now - topic->told < kTellAgainAfter) return;
  topic->told = now;
  socket_.on_topic(socket_.endpoint, name);
}

// Topics whose last connection has ended. Without a stream they are forgotten: the engine that
// comes back begins anew.
void ZmqShared::Departed(ZmqLaneState* lane, std::span<const int> descriptors, Time now) {
  if (descriptors.empty()) return;
  MutexLock lock(&mutex_);
  for (auto at = topics_.begin(); at != topics_.end();) {
    Topic& topic = at->second;
    const bool departed = topic.descriptor >= 0 && std::find(descriptors.begin(), descriptors.end(),
                                                             topic.descriptor) != descriptors.end();
    if (departed) topic.descriptor = -1;
    if (departed && topic.stream != nullptr) topic.stream->Depart(lane, now);
    // Also of a connection that had ended before its message was read: no end will name that one.
    if (topic.stream == nullptr && topic.descriptor < 0) {
      for (const auto& [number, payload] : topic.waiting) waiting_bytes_ -= payload.size();
      at = topics_.erase(at);
    } else {
      ++at;
    }
  }
}

}  // namespace kvatlas
