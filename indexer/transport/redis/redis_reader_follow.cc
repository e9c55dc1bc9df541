// Following logs: rounds of reading, and what heals a gap.
//
// A shard has one blocking read under way, a *round*, over its news, its wake key and all logs that
// are followed. The wake key ends a round early when a stream begins to be followed.
// `Stream::position` is the last id that a round returned; `fed` the last number that the receiver
// was given without a gap. A stream leaves kFollowing to look for a batch (`OnNeed`) or a snapshot,
// and comes back by `Follow`.

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "indexer/base/event.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/redis/redis_reader_impl.h"

namespace kvatlas {
namespace {

// How long a round waits for entries; a round in turns (`Read`) hardly waits.
constexpr Duration kBlock = std::chrono::seconds(1);
constexpr Duration kWantFor = std::chrono::seconds(5);  // a need is repeated every second
constexpr Duration kBlockInTurns = std::chrono::milliseconds(1);
constexpr size_t kRoundsUntilMore = 64;
constexpr char kPartsPerPage[] = "8";  // each of at most `kBatchBytesMax`
static_assert(10 * kBatchBytesMax <= kRedisReplyBytesMax);

// The one field of an entry of ours; null: it is none.
const std::string* MessageOf(const RedisReply& entry) {
  if (entry.elements.size() != 2) return nullptr;
  const std::vector<RedisReply>& flat = entry.elements[1].elements;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    if (flat[i].text == kRedisEntryField) return &flat[i + 1].text;
  }
  return nullptr;
}

// A field of an entry of the news; empty if it has none.
std::string FieldOf(const RedisReply& entry, std::string_view name) {
  if (entry.elements.size() != 2) return {};
  const std::vector<RedisReply>& flat = entry.elements[1].elements;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    if (flat[i].text == name) return flat[i + 1].text;
  }
  return {};
}

}  // namespace

// ---- 3. Follow ----

// The stream joins the next round. A round that is under way does not have it, or has it at another
// position: its entries are not taken (`follows_from`), and the wake key ends it, once.
void RedisReader::Impl::Follow(Stream* stream, const RedisEntryId& position) {
  stream->mode = Mode::kFollowing;
  stream->position = position;
  Shard& shard = shards_[stream->shard];
  stream->follows_from = shard.round + (shard.reading ? 1 : 0);
  if (shard.reading && !std::exchange(shard.woken, true)) {
    Tell({"XADD", shard.wake_key, "MAXLEN", "1", "*", "w", "1"});
  }
}

// 1. All streams of the shard that are followed, each from its position.
// 2. Where a reply was too large, fewer entries a stream; where even one of each is too large, some
//    streams in turns, the others being `left_out`.
// 3. One XREAD. A round in turns hardly waits, so that the others come soon.
void RedisReader::Impl::Read(uint32_t index) {
  Shard& shard = shards_[index];
  const uint64_t round = ++shard.round;
  std::vector<const Stream*> followed;
  for (const auto& [name, stream] : streams_) {
    if (stream->shard == index && stream->mode == Mode::kFollowing)
      followed.push_back(stream.get());
  }
  shard.left_out.clear();
  if (shard.entries_max < kRedisRoundEntries && shard.entries_max < followed.size()) {
    // Even one entry of each is too large: so many streams at a time, in turns.
    const size_t first = round * shard.entries_max % followed.size();
    std::rotate(followed.begin(), followed.begin() + static_cast<int64_t>(first), followed.end());
    for (size_t i = shard.entries_max; i < followed.size(); ++i) {
      shard.left_out.insert(followed[i]->name);
    }
    followed.resize(shard.entries_max);
  }
  const size_t streams = std::max<size_t>(followed.size(), 1);
  shard.count = std::clamp<size_t>(shard.entries_max / streams, 1, kRedisEntriesPerStreamMax);
  shard.entries_asked = shard.count * streams;
  const Duration block = shard.left_out.empty() ? kBlock : kBlockInTurns;
  RedisArgs args = {"XREAD",
                    "COUNT",
                    std::to_string(shard.count),
                    "BLOCK",
                    std::to_string(block / std::chrono::milliseconds(1)),
                    "STREAMS"};
  args.push_back(shard.news_key);
  args.push_back(shard.wake_key);
  for (const Stream* stream : followed) args.push_back(stream->keys.log);
  args.push_back(shard.news_from);
  args.push_back(shard.wake_from);
  for (const Stream* stream : followed) args.push_back(stream->position.ToString());
  shard.woken = false;
  shard.reading = true;
  const absl::Status sent =
      client_->SendBlocking(std::move(args), block, [this, index, round](Reply reply) {
        Post([this, index, round, reply = std::move(reply)] { OnRead(index, round, reply); });
      });
  if (!sent.ok()) Post([this, index, round, sent] { OnRead(index, round, sent); });
}

// A round may have more entries again once `kRoundsUntilMore` were read: each reply that is too
// large costs a connection.
void RedisReader::Impl::GrowRound(Shard* shard) {
  if (shard->entries_max == kRedisRoundEntries || --shard->rounds_until_more > 0) return;
  shard->entries_max = std::min(kRedisRoundEntries, 2 * shard->entries_max);
  shard->rounds_until_more = kRoundsUntilMore;
}

// 1. A reply that was too large is asked for again with half of the entries. An entry that is too
//    large alone blocks the shard: the log says how to remove it.
// 2. Errors count as silence of Redis; the next round is tried after a pause.
// 3. Positions are taken from the reply first, so that the next round is on its way (`Read`) before
//    anything is applied.
// 4. Entries are applied stream by stream, then the news, then heartbeats whose batches were read.
// A stream that left kFollowing, or joined after this round began, takes nothing of it. A full page
// of entries means that there may be more (`unfinished`).
void RedisReader::Impl::OnRead(uint32_t index, uint64_t round, const Reply& reply) {
  Shard& shard = shards_[index];
  shard.reading = false;
  if (absl::IsOutOfRange(reply.status()) && shard.entries_asked > 1) {
    shard.entries_max = std::min(shard.entries_asked / 2, kRedisRoundEntries - 1);
    shard.rounds_until_more = kRoundsUntilMore;
    Count([](RedisReaderStats& stats) { ++stats.rounds_too_large; });
    // The reply ended its connection. Where that was heard first, reading begins once the shard is
    // found again.
    if (shard.found) Read(index);
    return;
  }
  if (absl::IsOutOfRange(reply.status())) {
    LogEvery(RedisReaderLog(), shard.news_key, LogLevel::kWarning,
             "an entry in redis is too large to be read, and keeps all streams of its shard from "
             "being read; "
             "delete it, or all news by XTRIM NEWS MAXLEN 0",
             {{"news", shard.news_key}, {"reason", reply.status()}});
  }
  if (!reply.ok()) Silence();
  if (!reply.ok() || !shard.found) {
    shard.read_at = clock_->Now() + kRedisReadRetry;
    return;
  }
  if (std::exchange(silent_, false)) back_since_ = clock_->Now();
  Count([](RedisReaderStats& stats) { ++stats.rounds; });
  const RedisReply* news = nullptr;
  std::vector<std::pair<uint64_t, const RedisReply*>> logs;
  std::unordered_set<std::string> unfinished = std::exchange(shard.left_out, {});
  GrowRound(&shard);
  for (const RedisReply& of_key : reply->elements) {
    if (of_key.elements.size() != 2 || of_key.elements[1].elements.empty()) continue;
    const std::string& key = of_key.elements[0].text;
    const RedisReply& entries = of_key.elements[1];
    const std::string& last =
        entries.elements.back().elements.empty() ? key : entries.elements.back().elements[0].text;
    if (key == shard.wake_key) {
      shard.wake_from = last;
    } else if (key == shard.news_key) {
      shard.news_from = last;
      news = &entries;
    } else if (const auto it = by_log_.find(key); it != by_log_.end()) {
      Stream* stream = it->second;
      if (stream->mode != Mode::kFollowing || stream->follows_from > round) continue;
      const auto id = RedisEntryId::Parse(last);
      if (id.has_value()) stream->position = *id;
      logs.emplace_back(stream->life, &entries);
      if (entries.elements.size() >= shard.count) unfinished.insert(stream->name);
    }
  }
  Read(index);
  for (const auto& [life, entries] : logs) {
    if (Stream* stream = OfLife(life)) TakeEntries(stream, *entries);
    DrainReplies();
  }
  if (news != nullptr) {
    for (const RedisReply& entry : news->elements) TakeNews(index, entry);
  }
  GiveHeartbeats(&shard, round, unfinished);
}

// Reads an entry for its place. A signature that is not ours is counted and audited, the latter
// once in ten seconds a stream.
absl::StatusOr<SenderMessage> RedisReader::Impl::Decode(std::string_view bytes,
                                                        const RedisEntryId& id,
                                                        std::string_view stream, bool snapshot) {
  absl::StatusOr<SenderMessage> message =
      DecodeRedisEntry(bytes, id,
                       {.keys = options_.redis.record_keys.get(),
                        .cell = options_.cell,
                        .stream = stream,
                        .snapshot = snapshot});
  if (!absl::IsUnauthenticated(message.status())) return message;
  Count([](RedisReaderStats& stats) { ++stats.entries_forged; });
  // A forger writes many records: one line in ten seconds is enough.
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  if (!limiter.Admit(std::string(stream), Clock::Real().Now()).has_value()) return message;
  const std::string target = "stream=" + std::string(stream);
  const std::string reason(message.status().message());
  security_->Audit({.event = "refusal",
                    .allowed = false,
                    .identity = "",
                    .peer = "redis",
                    .verb = VerbName(Verb::kPublish),
                    .target = target,
                    .reason = reason});
  return message;
}

// Feeds the entries of one log, in order. Entries that cannot be read, or stand under another
// number, are skipped and counted; the receiver sees a gap. It ends early if the session ends, or
// if the stream is to look elsewhere: `position` then is the last entry looked at, and the rest is
// read again.
void RedisReader::Impl::TakeEntries(Stream* stream, const RedisReply& entries) {
  const uint64_t life = stream->life;
  stream->heard = clock_->Now();
  uint64_t bytes = 0, damaged = 0;
  for (const RedisReply& entry : entries.elements) {
    const std::optional<RedisEntryId> id = RedisIdOf(entry);
    const std::string* text = MessageOf(entry);
    absl::StatusOr<SenderMessage> message = absl::DataLossError("not an entry of ours");
    if (id.has_value() && text != nullptr) message = Decode(*text, *id, stream->name);
    if (text != nullptr) bytes += text->size();
    if (!message.ok()) {
      ++damaged;
      LogEvery(RedisReaderLog(), stream->name, LogLevel::kWarning,
               "an entry in redis cannot be read",
               {{"stream", stream->name}, {"reason", message.status()}});
    } else if (id->epoch != stream->hello.epoch) {
      // Another epoch: the news to come have its hello.
    } else if (Batch* batch = std::get_if<Batch>(&*message)) {
      const BatchNumber number = batch->number;
      if (number != id->number()) {
        ++damaged;
      } else if (Feed(stream, *std::move(message), text->size())) {
        if (number == stream->fed + 1) stream->fed = number;
      }
    } else if (const auto* marker = std::get_if<SnapshotPart>(&*message)) {
      if (marker->as_of == id->number()) TakeMarker(stream, *marker, text->size());
    }
    if (OfLife(life) == nullptr) break;
    if (stream->mode != Mode::kFollowing) {
      if (id.has_value()) stream->position = *id;  // the rest is read again
      break;
    }
  }
  Count([&](RedisReaderStats& stats) {
    stats.entries_read += entries.elements.size();
    stats.bytes_read += bytes;
    stats.entries_damaged += damaged;
  });
}

// A marker: a snapshot of what was held after batch `as_of` is in Redis. It is read if the receiver
// wants one, or has missed batches before it. Else the receiver is whole, and the marker is an
// empty batch with a digest under that number.
void RedisReader::Impl::TakeMarker(Stream* stream, const SnapshotPart& marker, size_t bytes) {
  if (marker.as_of <= stream->fed) return;
  const bool wanted = clock_->Now() < stream->wants_snapshot_until;
  if (wanted || marker.as_of > stream->fed + 1) return LookForSnapshot(stream);
  // The sender captured the snapshot directly after the batch before, so it changes nothing.
  Batch batch{.number = marker.as_of,
              .events = {},
              .load = marker.load,
              .digest = marker.digest,
              .degraded = marker.degraded};
  if (Feed(stream, std::move(batch), bytes)) stream->fed = marker.as_of;
}

// `bytes` 0: nothing of it was read as an entry.
bool RedisReader::Impl::Feed(Stream* stream, SenderMessage message, size_t bytes) {
  if (stream->session == nullptr) return false;
  if (bytes > 0) stream->session->OnWireBytes(bytes);
  const absl::Status status = stream->session->OnMessage(std::move(message));
  if (!status.ok()) Refused(stream, std::string(status.message()));
  return status.ok();
}

// g: a goodbye, believed only with a signature where there are keys. b: a heartbeat of the epoch
// that we know; it waits for its batches (`GiveHeartbeats`). h, or a heartbeat of another epoch:
// the registration is read, and the stream is followed from behind `fed`, since its log may have
// been made anew with smaller ids.
void RedisReader::Impl::TakeNews(uint32_t index, const RedisReply& entry) {
  const std::string kind = FieldOf(entry, "k"), name = FieldOf(entry, "s");
  const auto it = streams_.find(name);
  Stream* stream = it == streams_.end() ? nullptr : it->second.get();
  const auto epoch = ParseUint64(FieldOf(entry, "e"));
  const bool same = stream != nullptr && epoch == stream->hello.epoch;
  if (kind == "g") {
    const bool signed_by_us =
        options_.redis.record_keys == nullptr ||
        (same && Decode(FieldOf(entry, kRedisEntryField), RedisEntryId::Last(*epoch), name).ok());
    if (!signed_by_us) return;
    if (same && stream->session != nullptr) stream->session->OnMessage(Goodbye{}).IgnoreError();
    if (same) Forget(name);
    return;
  }
  if (kind == "b" && same) {
    const auto number = ParseUint64(FieldOf(entry, "n"));
    if (!number.has_value() || stream->session == nullptr) return;
    stream->missing_since.reset();
    stream->heartbeat = std::min<BatchNumber>(*number, kBatchNumberMax);
    stream->heartbeat_round = shards_[index].round;
    shards_[index].heartbeats.insert(name);
    return;
  }
  if (kind != "b" && kind != "h") return;
  Ask({"HGET", shards_[index].streams_key, name}, [this, index, name](const Reply& reply) {
    if (!reply.ok() || !reply->is_string()) return;
    Register(index, name, reply->text);
    const auto same = streams_.find(name);
    if (same == streams_.end() || same->second->mode != Mode::kFollowing) return;
    Stream* stream = same->second.get();
    Follow(stream, RedisEntryId::Before(stream->hello.epoch, stream->fed + 1));
  });
}

// A heartbeat names the last batch of its time. It is given to the receiver once that batch was
// read, or could have been: given earlier, it would report a gap that is only a reader's delay. It
// could have been read when a round that began after the heartbeat has returned all that the log
// had.
void RedisReader::Impl::GiveHeartbeats(Shard* shard, uint64_t round,
                                       const std::unordered_set<std::string>& unfinished) {
  std::vector<std::string> given;
  for (const std::string& name : shard->heartbeats) {
    const auto it = streams_.find(name);
    Stream* stream = it == streams_.end() ? nullptr : it->second.get();
    if (stream == nullptr || !stream->heartbeat.has_value()) {
      given.push_back(name);
      continue;
    }
    const bool read = *stream->heartbeat <= stream->fed;
    const bool could = stream->mode == Mode::kFollowing && stream->heartbeat_round <= round &&
                       stream->follows_from <= round && !unfinished.contains(name);
    if (read || could) given.push_back(name);
  }
  for (const std::string& name : given) {
    shard->heartbeats.erase(name);
    const auto it = streams_.find(name);
    if (it == streams_.end() || !it->second->heartbeat.has_value()) continue;
    const BatchNumber last = *std::exchange(it->second->heartbeat, std::nullopt);
    Feed(it->second.get(), Heartbeat{.last_sent = last}, 0);
  }
}

// ---- 4. and 5. Replay, snapshots ----

// A missing batch is looked up in the log first: if it is there and readable, reading goes back to
// it. If not, only a snapshot helps. While the stream looks for either, further needs are ignored;
// the receiver repeats them.
void RedisReader::Impl::OnNeed(Stream* stream, const Need& need) {
  if (stream->mode != Mode::kFollowing) return;  // it is being looked for; the receiver asks again
  if (need.snapshot) return LookForSnapshot(stream);
  stream->mode = Mode::kSeeking;
  const RedisEntryId wanted = RedisEntryId::Of(stream->hello.epoch, need.next);
  AskOf(*stream, {"XRANGE", stream->keys.log, wanted.ToString(), "+", "COUNT", "1"},
        [this, wanted](Stream* same, const Reply& reply) {
          const std::optional<RedisEntryId> found =
              reply.ok() && !reply->elements.empty() ? RedisIdOf(reply->elements[0]) : std::nullopt;
          if (!found.has_value() || *found != wanted || !MessageOf(reply->elements[0]) ||
              !Decode(*MessageOf(reply->elements[0]), wanted, same->name).ok()) {
            return LookForSnapshot(same);
          }
          Count([](RedisReaderStats& stats) { ++stats.replays; });
          same->fed = wanted.number() - 1;
          Follow(same, RedisEntryId::Before(wanted.epoch, wanted.number()));
        });
}

// The last entry of the key tells whether a snapshot is complete: its last part is written last.
void RedisReader::Impl::LookForSnapshot(Stream* stream) {
  stream->mode = Mode::kSnapshot;
  AskOf(*stream, {"XREVRANGE", stream->keys.snap, "+", "-", "COUNT", "1"},
        [this](Stream* same, const Reply& reply) { OnLastPart(same, reply); });
}

// A snapshot is used if it is complete, of this epoch, newer than the last used one, and no older
// than what was fed. Else the sender is asked for another.
void RedisReader::Impl::OnLastPart(Stream* stream, const Reply& reply) {
  const std::optional<RedisEntryId> id =
      reply.ok() && !reply->elements.empty() ? RedisIdOf(reply->elements[0]) : std::nullopt;
  const std::string* text = id.has_value() ? MessageOf(reply->elements[0]) : nullptr;
  if (text != nullptr && id->epoch == stream->hello.epoch) {
    const absl::StatusOr<SenderMessage> message =
        Decode(*text, *id, stream->name, /*snapshot=*/true);
    const SnapshotPart* part = message.ok() ? std::get_if<SnapshotPart>(&*message) : nullptr;
    if (part != nullptr && part->last && part->as_of == id->number() &&
        part->as_of > stream->snapshot_used && part->as_of >= stream->fed) {
      return ReadParts(stream, part->as_of, RedisEntryId::Of(id->epoch, part->as_of).ToString());
    }
  }
  AskForSnapshot(stream);
}

void RedisReader::Impl::ReadParts(Stream* stream, BatchNumber as_of, const std::string& from) {
  AskOf(*stream, {"XRANGE", stream->keys.snap, from, "+", "COUNT", kPartsPerPage},
        [this, as_of](Stream* same, const Reply& reply) { OnParts(same, as_of, reply); });
}

// One page of parts, fed in order. The log goes on behind the last one. A page without a usable
// part means that the snapshot was replaced or damaged while it was being read: another one is
// asked for. Between two pages other streams have their turn.
void RedisReader::Impl::OnParts(Stream* stream, BatchNumber as_of, const Reply& reply) {
  if (!reply.ok()) return AskForSnapshot(stream);
  const uint64_t life = stream->life;
  uint64_t bytes = 0;
  std::optional<RedisEntryId> last_id;
  bool last = false;
  for (const RedisReply& entry : reply->elements) {
    const std::optional<RedisEntryId> id = RedisIdOf(entry);
    const std::string* text = MessageOf(entry);
    if (!id.has_value() || text == nullptr || id->number() != as_of) break;
    absl::StatusOr<SenderMessage> message = Decode(*text, *id, stream->name, /*snapshot=*/true);
    const SnapshotPart* part = message.ok() ? std::get_if<SnapshotPart>(&*message) : nullptr;
    if (part == nullptr || part->as_of != as_of || part->part != id->part()) break;
    last_id = id;
    last = part->last;
    bytes += text->size();
    if (!Feed(stream, *std::move(message), text->size()) || last) break;
  }
  Count([&](RedisReaderStats& stats) {
    stats.bytes_read += bytes;
    if (last) ++stats.snapshots_read;
  });
  if (OfLife(life) == nullptr) return;
  if (last) {
    stream->snapshot_used = as_of;
    stream->fed = as_of;
    stream->wants_snapshot_until = Time(0);
    return Follow(stream, RedisEntryId::Before(stream->hello.epoch, as_of + 1));
  }
  if (!last_id.has_value()) return AskForSnapshot(stream);
  ReadParts(stream, as_of, RedisEntryId::Of(last_id->epoch, as_of, last_id->part() + 1).ToString());
}

// Asks the sender, naming the last snapshot used, and follows the log meanwhile: a marker within
// `kWantFor` says that the snapshot is there.
void RedisReader::Impl::AskForSnapshot(Stream* stream) {
  stream->wants_snapshot_until = clock_->Now() + kWantFor;
  Count([](RedisReaderStats& stats) { ++stats.snapshots_asked; });
  Tell({"XADD", stream->keys.back, "MAXLEN", "~", kRedisBackMax, "*", "k", "n", "r", reader_, "e",
        std::to_string(stream->hello.epoch), "n", std::to_string(stream->snapshot_used)});
  Follow(stream, stream->position);
}

}  // namespace kvatlas
