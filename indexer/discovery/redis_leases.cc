// The three scripts, and the reading of what they return. A script runs in Redis as one step, so
// that announcing, withdrawing and expiring never interleave. All keys of a kind are in one slot
// (the braces), as a Redis Cluster demands of a script.

#include "indexer/discovery/redis_leases.h"

#include <cstdio>
#include <map>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

// KEYS: records, loads, leases, version, born. A record's value starts with its incarnation: the
// epoch as 20 digits and the instance as 16. Texts of one length are ordered as their numbers,
// which Lua's doubles could not hold.
// 1. An id whose lease runs under a younger incarnation is not replaced: 0.
// 2. The record is written, and the version counted up, only if it is new or differs: renewals
//    change no version.
// 3. `born` is set once and is gone with the data, by which readers see that Redis lost it.
// 4. The load is stored apart, so that it changes no version either. Then the lease is renewed, by
//    Redis' clock.
constexpr const char* kAnnounceScript = R"(
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id, value, load, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local old = redis.call('HGET', KEYS[1], id)
local ends = redis.call('ZSCORE', KEYS[3], id)
local alive = old and ends and tonumber(ends) > now
if alive and string.sub(old, 1, 36) > string.sub(value, 1, 36) then return 0 end
redis.call('SETNX', KEYS[5], time[1] .. '.' .. time[2])
if not alive or old ~= value then
  redis.call('HSET', KEYS[1], id, value)
  redis.call('INCR', KEYS[4])
end
if load == '' then redis.call('HDEL', KEYS[2], id) else redis.call('HSET', KEYS[2], id, load) end
redis.call('ZADD', KEYS[3], now + ttl, id)
return 1
)";

// Removes the record only if it still is this incarnation's.
constexpr const char* kWithdrawScript = R"(
local old = redis.call('HGET', KEYS[1], ARGV[1])
if not old or string.sub(old, 1, 36) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('INCR', KEYS[4])
return 1
)";

// 1. Removes what has run out, at most 1,000 per call so that a call stays short; the next one goes
//    on.
// 2. Returns the version and `born` alone if both are what the caller knows, else all records and
//    loads too. An empty version (no data) always returns all: nothing.
constexpr const char* kReadScript = R"(
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1000)
for _, id in ipairs(gone) do
  redis.call('HDEL', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
end
if #gone > 0 then redis.call('INCR', KEYS[4]) end
local version = redis.call('GET', KEYS[4]) or ''
local born = redis.call('GET', KEYS[5]) or ''
if version ~= '' and version .. '/' .. born == ARGV[1] then return {version, born} end
return {version, born, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
)";

// EVAL with the five keys of a kind, then the arguments.
RedisArgs Script(const char* script, const std::string& prefix, ServiceKind kind,
                 RedisArgs arguments) {
  const std::string stem = prefix + ":{" + std::string(ToString(kind)) + "}:";
  RedisArgs command = {"EVAL", script, "5"};
  for (const char* key : {"records", "loads", "leases", "version", "born"})
    command.push_back(stem + key);
  for (std::string& argument : arguments) command.push_back(std::move(argument));
  return command;
}

constexpr size_t kIncarnationBytes = 36;

// Fixed width, so that incarnations compare as texts in the scripts.
std::string Incarnation(const ServiceRecord& record) {
  char text[kIncarnationBytes + 1];
  std::snprintf(text, sizeof(text), "%020llu%016llx", static_cast<unsigned long long>(record.epoch),
                static_cast<unsigned long long>(record.instance_id));
  return text;
}

absl::Status Unexpected() {
  return absl::InternalError("Redis answered a script with something else than it returns");
}

// The record in a value of the hash, with `load` put into its JSON as a last member; nothing if
// either is malformed. `ServiceRecordFromJson` checks all of it: anything may stand in Redis.
std::optional<ServiceRecord> RecordOf(std::string_view value, std::string_view load) {
  if (value.size() < kIncarnationBytes) return std::nullopt;
  value.remove_prefix(kIncarnationBytes);
  if (value.empty() || value.back() != '}') return std::nullopt;
  std::string json(value);
  if (!load.empty()) {
    json.pop_back();
    json.append(",\"load\":").append(load).append("}");
  }
  absl::StatusOr<ServiceRecord> record = ServiceRecordFromJson(json);
  if (!record.ok()) return std::nullopt;
  return *std::move(record);
}

}  // namespace

RedisArgs AnnounceCommand(const std::string& prefix, const ServiceRecord& record,
                          Duration lease_ttl) {
  ServiceRecord without = record;
  without.load.reset();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(lease_ttl).count();
  return Script(kAnnounceScript, prefix, record.kind,
                {IdOf(record), Incarnation(record) + ToJson(without),
                 record.load.has_value() ? LoadToJson(*record.load) : "", std::to_string(ms)});
}

absl::Status ReadAnnounceReply(const RedisReply& reply) {
  if (reply.kind != RedisReply::Kind::kInteger) return Unexpected();
  if (reply.integer == 1) return absl::OkStatus();
  return absl::FailedPreconditionError("replaced by a younger process of the same name");
}

RedisArgs WithdrawCommand(const std::string& prefix, const ServiceRecord& record) {
  return Script(kWithdrawScript, prefix, record.kind, {IdOf(record), Incarnation(record)});
}

RedisArgs ReadCommand(const std::string& prefix, ServiceKind kind,
                      const std::string& known_version) {
  return Script(kReadScript, prefix, kind, {known_version});
}

absl::StatusOr<LeasesAnswer> ReadReadReply(const RedisReply& reply) {
  const std::vector<RedisReply>& parts = reply.elements;
  if (!reply.is_array() || (parts.size() != 2 && parts.size() != 4) || !parts[0].is_string() ||
      !parts[1].is_string()) {
    return Unexpected();
  }
  LeasesAnswer answer;
  answer.version = parts[0].text + "/" + parts[1].text;
  answer.born = parts[1].text;
  if (parts.size() == 2) return answer;
  const std::vector<RedisReply>& values = parts[2].elements;
  const std::vector<RedisReply>& loads = parts[3].elements;
  if (values.size() % 2 != 0 || loads.size() % 2 != 0) return Unexpected();
  std::map<std::string_view, std::string_view> load_of;
  for (size_t i = 0; i < loads.size(); i += 2) load_of[loads[i].text] = loads[i + 1].text;
  answer.records.emplace();
  for (size_t i = 0; i < values.size(); i += 2) {
    const auto load = load_of.find(values[i].text);
    auto record = RecordOf(values[i + 1].text, load == load_of.end() ? "" : load->second);
    // A malformed load costs the load, not the record.
    if (!record.has_value()) record = RecordOf(values[i + 1].text, "");
    // A record under another id than its own could shadow a service.
    if (record.has_value() && IdOf(*record) == values[i].text) {
      answer.records->push_back(*std::move(record));
    } else {
      ++answer.malformed;
    }
  }
  return answer;
}

}  // namespace kvatlas
