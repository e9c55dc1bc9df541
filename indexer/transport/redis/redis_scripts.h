// The steps of the protocol that have to be atomic in Redis, as scripts; README.md says when each
// one runs.
//
// Their keys lie in one slot. Epochs are compared as text of 20 digits, since Lua's numbers have 53
// bits.

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_SCRIPTS_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_SCRIPTS_H_

namespace kvatlas {

// KEYS: streams, news, log, snap, back. ARGV: name, padded epoch, instance, hello entry, epoch, ttl
// in ms, news bound, padded second half of the largest id that this sender can have written, padded
// largest epoch by the sender's clock, lease in ms, the registration that is not to be believed
// since no key of ours signed it ("-": there was none, and neither is the log's epoch). A log with
// a larger id is no sender's, and goes; so do registration and log of an epoch more than a day
// ahead of Redis' clock. That clock and what is left of the log's life are only known to a user
// with +time and +pttl. Returns {"ahead"}, {"refused", epoch, instance, "1" when its sender was
// silent for a lease, the registration or "-"} or {"welcome", last id of the log, "new" | "old",
// last id of back}.
inline constexpr char kRedisHelloScript[] = R"lua(
local function padded(digits) return string.rep('0', 20 - #digits) .. digits end
local latest = ARGV[9]
local clock = redis.pcall('TIME')
if not clock.err then latest = padded(string.format('%.0f', clock[1] + 86400) .. '000000000') end
if ARGV[2] > latest then return {'ahead'} end
local function lapsed()
  local left = redis.pcall('PTTL', KEYS[3])
  if left == -2 then return '1' end
  if type(left) ~= 'number' or left < 0 or ARGV[6] - left < tonumber(ARGV[10]) then return '0' end
  return '1'
end
local function last_id(key)
  if redis.call('EXISTS', key) == 0 then return false end
  local info = redis.call('XINFO', 'STREAM', key)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known and (string.sub(known, 1, 20) > latest or known == ARGV[11]) then known = false end
if known then
  local epoch = string.sub(known, 1, 20)
  local instance = string.sub(known, 21, 36)
  if epoch > ARGV[2] or (epoch == ARGV[2] and instance ~= ARGV[3]) then
    return {'refused', epoch, instance, lapsed(), known}
  end
end
local last = last_id(KEYS[3])
local age = 'old'
if last then
  local epoch = padded(string.match(last, '^%d+'))
  if epoch > ARGV[2] and epoch <= latest and not known and ARGV[11] == '' then
    return {'refused', epoch, '0000000000000000', lapsed(), '-'}
  end
  if epoch ~= ARGV[2] or padded(string.match(last, '%d+$')) > ARGV[8] then last = false end
end
if not last then
  redis.call('DEL', KEYS[3], KEYS[4])
  last = redis.call('XADD', KEYS[3], ARGV[5] .. '-0', 'm', ARGV[4])
  age = 'new'
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[3] .. ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('PEXPIRE', KEYS[4], ARGV[6])
redis.call('PEXPIRE', KEYS[5], ARGV[6])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[7], '*', 'k', 'h', 's', ARGV[1])
return {'welcome', last, age, last_id(KEYS[5]) or '0-0'}
)lua";

// KEYS: streams, news, log, snap, back. ARGV: name, padded epoch and instance, epoch, last number,
// ttl in ms, news bound, hello entry that takes the place of the one before, or empty.
// Returns the last id of back, or 0 when log or registration are not ours any more.
inline constexpr char kRedisHeartbeatScript[] = R"lua(
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or string.sub(known, 1, 36) ~= ARGV[2] then return 0 end
if redis.call('PEXPIRE', KEYS[3], ARGV[5]) == 0 then return 0 end
if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ARGV[7]) end
redis.call('PEXPIRE', KEYS[4], ARGV[5])
redis.call('PEXPIRE', KEYS[5], ARGV[5])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[6], '*', 'k', 'b', 's', ARGV[1], 'e', ARGV[3], 'n', ARGV[4])
if redis.call('EXISTS', KEYS[5]) == 0 then return '0-0' end
local info = redis.call('XINFO', 'STREAM', KEYS[5])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then return info[i + 1] end
end
)lua";

// KEYS: streams, news, log, snap, back. ARGV: name, padded epoch and instance, epoch, news bound,
// the goodbye as an entry.
inline constexpr char kRedisGoodbyeScript[] = R"lua(
local known = redis.call('HGET', KEYS[1], ARGV[1])
if not known or string.sub(known, 1, 36) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'k', 'g', 's', ARGV[1], 'e', ARGV[3], 'm', ARGV[5])
return 1
)lua";

// KEYS: log, streams. ARGV: name. Returns {first id or "", last id}; nil: there is no log, and the
// registration goes.
inline constexpr char kRedisOpenScript[] = R"lua(
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return false
end
local first, last = '', '0-0'
local info = redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then last = info[i + 1] end
  if info[i] == 'first-entry' and info[i + 1] then first = info[i + 1][1] end
end
return {first, last}
)lua";

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_SCRIPTS_H_
