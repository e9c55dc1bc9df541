#include "tools/testing/simulated_redis/simulated_redis.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include "absl/status/status.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_scripts.h"

namespace kvatlas {
namespace {

using Id = SimulatedRedis::Id;

RedisReply Nil() { return {}; }
RedisReply Text(std::string text) {
  return {.kind = RedisReply::Kind::kString, .text = std::move(text), .elements = {}};
}
RedisReply Integer(int64_t integer) {
  return {.kind = RedisReply::Kind::kInteger, .integer = integer, .text = {}, .elements = {}};
}
RedisReply Array(std::vector<RedisReply> elements) {
  return {.kind = RedisReply::Kind::kArray, .text = {}, .elements = std::move(elements)};
}

std::string ToText(const Id& id) {
  return std::to_string(id.first) + "-" + std::to_string(id.second);
}

// "12-3", or "12", whose second half is then `rest`.
std::optional<Id> ToId(const std::string& text, uint64_t rest = 0) {
  if (text == "-") return Id{0, 0};
  if (text == "+") return Id{~uint64_t{0}, ~uint64_t{0}};
  const size_t dash = text.find('-');
  const auto first = ParseUint64(text.substr(0, dash));
  const auto second =
      dash == std::string::npos ? std::optional(rest) : ParseUint64(text.substr(dash + 1));
  if (!first.has_value() || !second.has_value()) return std::nullopt;
  return Id{*first, *second};
}

RedisReply Entry(const Id& id, const SimulatedRedis::Fields& fields) {
  std::vector<RedisReply> flat;
  for (const std::string& field : fields) flat.push_back(Text(field));
  return Array({Text(ToText(id)), Array(std::move(flat))});
}

absl::Status OutOfMemory() {
  return absl::ResourceExhaustedError("OOM command not allowed when used memory > 'maxmemory'.");
}

std::string Owner(const std::string& registration) { return registration.substr(0, 36); }

}  // namespace

SimulatedRedis::Value* SimulatedRedis::Find(const std::string& key) {
  const auto it = database_.find(key);
  if (it == database_.end()) return nullptr;
  if (!it->second.expires.has_value() || Now() < *it->second.expires) return &it->second;
  database_.erase(it);
  return nullptr;
}

std::vector<std::string> SimulatedRedis::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : database_) keys.push_back(key);
  return keys;
}

size_t SimulatedRedis::Bytes() const {
  size_t bytes = 0;
  for (const auto& [key, value] : database_) {
    bytes += key.size() + value.text.value_or("").size();
    if (value.hash.has_value()) {
      for (const auto& [field, text] : *value.hash) bytes += field.size() + text.size();
    }
    for (const auto& [id, fields] : value.entries) {
      for (const std::string& field : fields) bytes += field.size();
    }
  }
  return bytes;
}

absl::StatusOr<RedisReply> SimulatedRedis::Execute(const RedisArgs& args) {
  const std::string& name = args[0];
  if (name == "XADD") return Full() ? Reply(OutOfMemory()) : Xadd(args);
  if (name == "XREAD") return Xread(args);
  if (name == "EVAL") return Eval(args);
  if (name == "XTRIM") return Xtrim(args);
  if (name == "XRANGE") return Range(args, false);
  if (name == "XREVRANGE") return Range(args, true);
  if (name == "UNLINK" || name == "DEL") return Delete(args);
  if (name == "PEXPIRE") return Integer(Expire(args[1], args[2]) ? 1 : 0);
  const Value* value = Find(args[1]);
  if (name == "SETNX") {
    if (value != nullptr) return Integer(0);
    if (Full()) return OutOfMemory();
    database_[args[1]].text = args[2];
    return Integer(1);
  }
  if (name == "GET") return value == nullptr ? Nil() : Text(value->text.value());
  if (name == "HGET") {
    if (value == nullptr || !value->hash->contains(args[2])) return Nil();
    return Text(value->hash->at(args[2]));
  }
  if (name != "HGETALL") return absl::UnimplementedError(name);
  RedisReply all = Array({});
  if (value == nullptr) return all;
  for (const auto& [field, text] : *value->hash) {
    all.elements.push_back(Text(field));
    all.elements.push_back(Text(text));
  }
  return all;
}

RedisReply SimulatedRedis::Delete(const RedisArgs& args) {
  int64_t deleted = 0;
  for (size_t i = 1; i < args.size(); ++i) {
    if (Find(args[i]) != nullptr) deleted += static_cast<int64_t>(database_.erase(args[i]));
  }
  return Integer(deleted);
}

bool SimulatedRedis::Expire(const std::string& key, const std::string& ms) {
  Value* value = Find(key);
  if (value == nullptr) return false;
  value->expires = Now() + std::chrono::milliseconds(ParseUint64(ms).value());
  return true;
}

// ---- Streams ----

// XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] bound] id field value …
absl::StatusOr<RedisReply> SimulatedRedis::Xadd(const RedisArgs& args) {
  size_t at = 2;
  Value* stream = Find(args[1]);
  if (args[at] == "NOMKSTREAM") {
    if (stream == nullptr) return Nil();
    ++at;
  }
  std::string how, bound;
  bool about = false;
  if (args[at] == "MAXLEN" || args[at] == "MINID") {
    how = args[at++];
    about = args[at] == "~";
    if (about || args[at] == "=") ++at;
    bound = args[at++];
  }
  if (stream == nullptr) {
    Value fresh;
    const Reply reply =
        Append(&fresh, args[at], {args.begin() + static_cast<int64_t>(at) + 1, args.end()});
    if (reply.ok()) {
      Trim(&fresh, how, about, bound);
      database_[args[1]] = std::move(fresh);
    }
    return reply;
  }
  const Reply reply =
      Append(stream, args[at], {args.begin() + static_cast<int64_t>(at) + 1, args.end()});
  if (reply.ok()) Trim(stream, how, about, bound);
  return reply;
}

absl::StatusOr<RedisReply> SimulatedRedis::Append(Value* stream, const std::string& id,
                                                  Fields fields) {
  Id next{static_cast<uint64_t>(Now() / std::chrono::milliseconds(1)), 0};
  if (id != "*") {
    next = ToId(id).value();
  } else if (next <= stream->last) {
    next = {stream->last.first, stream->last.second + 1};
  }
  if (next <= stream->last) {
    return absl::InvalidArgumentError(
        "ERR The ID specified in XADD is equal or smaller than the target stream top item");
  }
  stream->last = next;
  stream->entries[next] = std::move(fields);
  return Text(ToText(next));
}

void SimulatedRedis::Trim(Value* stream, const std::string& how, bool about,
                          const std::string& bound) {
  if (how.empty()) return;
  size_t gone = 0;
  if (how == "MAXLEN") {
    const size_t max = ParseUint64(bound).value();
    gone = stream->entries.size() > max ? stream->entries.size() - max : 0;
  } else {
    const auto first = stream->entries.lower_bound(ToId(bound).value());
    gone = static_cast<size_t>(std::distance(stream->entries.begin(), first));
  }
  if (about) gone -= gone % node_entries_;
  stream->entries.erase(stream->entries.begin(),
                        std::next(stream->entries.begin(), static_cast<int64_t>(gone)));
}

// XTRIM key MINID bound
absl::StatusOr<RedisReply> SimulatedRedis::Xtrim(const RedisArgs& args) {
  Value* stream = Find(args[1]);
  if (stream == nullptr) return Integer(0);
  const size_t before = stream->entries.size();
  Trim(stream, args[2], false, args[3]);
  return Integer(static_cast<int64_t>(before - stream->entries.size()));
}

// XRANGE key from to [COUNT n], XREVRANGE key to from [COUNT n]
absl::StatusOr<RedisReply> SimulatedRedis::Range(const RedisArgs& args, bool reverse) {
  RedisReply all = Array({});
  const Value* stream = Find(args[1]);
  if (stream == nullptr) return all;
  const Id from = ToId(args[reverse ? 3 : 2]).value();
  const Id to = ToId(args[reverse ? 2 : 3], ~uint64_t{0}).value();
  const size_t count = args.size() > 5 ? ParseUint64(args[5]).value() : stream->entries.size();
  for (auto it = stream->entries.lower_bound(from); it != stream->entries.end() && it->first <= to;
       ++it) {
    if (!reverse && all.elements.size() >= count) break;
    all.elements.push_back(Entry(it->first, it->second));
  }
  if (reverse) {
    std::reverse(all.elements.begin(), all.elements.end());
    if (all.elements.size() > count) all.elements.resize(count);
  }
  return all;
}

// XREAD COUNT n BLOCK ms STREAMS keys… ids…
absl::StatusOr<RedisReply> SimulatedRedis::Xread(const RedisArgs& args) {
  const size_t count = ParseUint64(args[2]).value();
  const auto streams = std::find(args.begin(), args.end(), "STREAMS") + 1;
  const auto keys = static_cast<size_t>(args.end() - streams) / 2;
  RedisReply all = Array({});
  for (size_t i = 0; i < keys; ++i) {
    const std::string& key = streams[static_cast<int64_t>(i)];
    const std::string& after = streams[static_cast<int64_t>(keys + i)];
    const Value* stream = Find(key);
    if (stream == nullptr || after == "$") continue;
    RedisReply entries = Array({});
    for (auto it = stream->entries.upper_bound(ToId(after).value());
         it != stream->entries.end() && entries.elements.size() < count; ++it) {
      entries.elements.push_back(Entry(it->first, it->second));
    }
    if (!entries.elements.empty()) all.elements.push_back(Array({Text(key), std::move(entries)}));
  }
  return all.elements.empty() ? Nil() : all;
}

// ---- Scripts ----

absl::StatusOr<RedisReply> SimulatedRedis::Eval(const RedisArgs& args) {
  const auto keys_end = args.begin() + 3 + static_cast<int64_t>(ParseUint64(args[2]).value());
  const RedisArgs keys(args.begin() + 3, keys_end), rest(keys_end, args.end());
  if (args[1] == kRedisHelloScript) return Hello(keys, rest);
  if (args[1] == kRedisHeartbeatScript) return Heartbeat(keys, rest);
  if (args[1] == kRedisGoodbyeScript) return Goodbye(keys, rest);
  if (args[1] == kRedisOpenScript) return Open(keys, rest);
  return absl::UnimplementedError(args[1]);
}

void SimulatedRedis::News(const std::string& key, const std::string& max, Fields fields) {
  RedisArgs args = {"XADD", key, "MAXLEN", "~", max, "*"};
  args.insert(args.end(), fields.begin(), fields.end());
  Xadd(args).status().IgnoreError();  // its id is always the next one
}

// The names are those of the script: `redis_scripts.h`.
absl::StatusOr<RedisReply> SimulatedRedis::Hello(const RedisArgs& keys, const RedisArgs& args) {
  const std::string& epoch = args[1];
  const auto wall_ns = clock_->WallNs() + static_cast<uint64_t>(offset_.count());
  const std::string latest = RedisPadded(wall_ns + kEpochAheadMax / Duration(1));
  if (epoch > latest) return Array({Text("ahead")});
  const auto lapsed = [&] {
    const Value* log = Find(keys[2]);
    if (log == nullptr) return Text("1");
    if (!log->expires.has_value()) return Text("0");
    const Duration ttl = std::chrono::milliseconds(ParseUint64(args[5]).value());
    const Duration lease = std::chrono::milliseconds(ParseUint64(args[9]).value());
    return Text(ttl - (*log->expires - Now()) >= lease ? "1" : "0");
  };
  const Value* streams = Find(keys[0]);
  const bool known = streams != nullptr && streams->hash->contains(args[0]) &&
                     streams->hash->at(args[0]).substr(0, 20) <= latest &&
                     streams->hash->at(args[0]) != args[10];
  if (known) {
    const std::string& registration = streams->hash->at(args[0]);
    const std::string theirs = registration.substr(0, 20), instance = registration.substr(20, 16);
    if (theirs > epoch || (theirs == epoch && instance != args[2])) {
      return Array({Text("refused"), Text(theirs), Text(instance), lapsed(), Text(registration)});
    }
  }
  const Value* log = Find(keys[2]);
  std::optional<Id> last;
  if (log != nullptr) {
    last = log->last;
    const std::string theirs = RedisPadded(last->first);
    if (theirs > epoch && theirs <= latest && !known && args[10].empty()) {
      return Array({Text("refused"), Text(theirs), Text("0000000000000000"), lapsed(), Text("-")});
    }
    if (theirs != epoch || RedisPadded(last->second) > args[7]) last.reset();
  }
  const bool fresh = !last.has_value();
  // A script that has changed something is not stopped.
  const bool changes = fresh && (Find(keys[2]) != nullptr || Find(keys[3]) != nullptr);
  if (Full() && !changes) return OutOfMemory();
  if (fresh) {
    Delete({"DEL", keys[2], keys[3]});
    const Reply added = Xadd({"XADD", keys[2], args[4] + "-0", "m", args[3]});
    if (!added.ok()) return added;
    last = ToId(added->text);
  }
  Value& registrations = database_[keys[0]];
  if (!registrations.hash.has_value()) registrations.hash.emplace();
  (*registrations.hash)[args[0]] = epoch + args[2] + args[3];
  for (size_t i = 2; i < 5; ++i) Expire(keys[i], args[5]);
  News(keys[1], args[6], {"k", "h", "s", args[0]});
  const Value* back = Find(keys[4]);
  return Array({Text("welcome"), Text(ToText(*last)), Text(fresh ? "new" : "old"),
                Text(back == nullptr ? "0-0" : ToText(back->last))});
}

absl::StatusOr<RedisReply> SimulatedRedis::Heartbeat(const RedisArgs& keys, const RedisArgs& args) {
  Value* streams = Find(keys[0]);
  if (streams == nullptr || !streams->hash->contains(args[0])) return Integer(0);
  if (Owner(streams->hash->at(args[0])) != args[1]) return Integer(0);
  if (!Expire(keys[2], args[4])) return Integer(0);
  if (!args[6].empty()) streams->hash->at(args[0]) = args[1] + args[6];
  for (size_t i = 3; i < 5; ++i) Expire(keys[i], args[4]);
  News(keys[1], args[5], {"k", "b", "s", args[0], "e", args[2], "n", args[3]});
  const Value* back = Find(keys[4]);
  return Text(back == nullptr ? "0-0" : ToText(back->last));
}

absl::StatusOr<RedisReply> SimulatedRedis::Goodbye(const RedisArgs& keys, const RedisArgs& args) {
  Value* streams = Find(keys[0]);
  if (streams == nullptr || !streams->hash->contains(args[0])) return Integer(0);
  if (Owner(streams->hash->at(args[0])) != args[1]) return Integer(0);
  streams->hash->erase(args[0]);
  if (streams->hash->empty()) database_.erase(keys[0]);
  Delete({"DEL", keys[2], keys[3], keys[4]});
  News(keys[1], args[3], {"k", "g", "s", args[0], "e", args[2], "m", args[4]});
  return Integer(1);
}

absl::StatusOr<RedisReply> SimulatedRedis::Open(const RedisArgs& keys, const RedisArgs& args) {
  const Value* log = Find(keys[0]);
  if (log == nullptr) {
    if (Value* streams = Find(keys[1]); streams != nullptr) {
      streams->hash->erase(args[0]);
      if (streams->hash->empty()) database_.erase(keys[1]);
    }
    return Nil();
  }
  const std::string first = log->entries.empty() ? "" : ToText(log->entries.begin()->first);
  return Array({Text(first), Text(ToText(log->last))});
}

}  // namespace kvatlas
