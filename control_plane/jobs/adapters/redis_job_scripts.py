"""Lua scripts of the job store in Redis: each is one change of it, hence atomic, or one look at it; used by `redis_jobs`."""

from __future__ import annotations

# A plan: sorted sets to leave, sorted sets to enter with a score, hashes to add to.
_COMMON = """
local function carry_out(plan, id)
  for _, key in ipairs(plan.leave) do redis.call('ZREM', key, id) end
  for _, each in ipairs(plan.enter) do redis.call('ZADD', each[1], each[2], id) end
  for _, each in ipairs(plan.add) do
    if redis.call('HINCRBY', each[1], each[2], each[3]) == 0 then redis.call('HDEL', each[1], each[2]) end
  end
  for _, each in ipairs(plan.set) do redis.call('HSET', each[1], each[2], each[3]) end
end
"""

# KEYS: records, revisions, idempotency keys, open, bytes, ended. ARGV: id, revision, record, plan, the field of the
# idempotency key or '', size, then field, jobs and bytes of each bound. Returns the record that the idempotency key
# has made before, or which bound is full with its load, or nothing.
ADD = (
    _COMMON
    + """
if ARGV[5] ~= '' then
  local known = redis.call('HGET', KEYS[3], ARGV[5])
  local record = known and redis.call('HGET', KEYS[1], known)
  if record then return {'known', record} end
end
for i = 7, #ARGV, 3 do
  local jobs = tonumber(redis.call('HGET', KEYS[4], ARGV[i]) or '0')
  local bytes = tonumber(redis.call('HGET', KEYS[5], ARGV[i]) or '0')
  if jobs + 1 > tonumber(ARGV[i + 1]) or bytes + tonumber(ARGV[6]) > tonumber(ARGV[i + 2]) then
    return {'full', ARGV[i], jobs, bytes, tonumber(redis.call('HGET', KEYS[6], ARGV[i]) or '0')}
  end
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], ARGV[5], ARGV[1]) end
carry_out(cjson.decode(ARGV[4]), ARGV[1])
return {'added'}
"""
)

# KEYS: records, revisions, idempotency keys. ARGV: id, expected revision, new revision, record ('': remove it), plan,
# the field of its idempotency key or ''. Returns 1, or 0 where the revision is another.
CHANGE = (
    _COMMON
    + """
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  if ARGV[6] ~= '' then redis.call('HDEL', KEYS[3], ARGV[6]) end
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[4])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
end
carry_out(cjson.decode(ARGV[5]), ARGV[1])
return 1
"""
)

# KEYS: records, ready, open, running, claimed. ARGV: prefix of the tenants' sets, now, jobs per tenant. Returns for each
# tenant with jobs that may be claimed now: its field, how many run, when it last claimed, and the first records.
WAITING = """
local answer = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[3])) do
  local found, at, set = {}, 0, ARGV[1] .. field
  while #found < tonumber(ARGV[3]) do
    local page = redis.call('ZRANGE', set, at, at + 31)
    if #page == 0 then break end
    for _, id in ipairs(page) do
      local ready = redis.call('ZSCORE', KEYS[2], id)
      if ready and tonumber(ready) <= tonumber(ARGV[2]) and #found < tonumber(ARGV[3]) then
        found[#found + 1] = redis.call('HGET', KEYS[1], id)
      end
    end
    at = at + 32
  end
  if #found > 0 then
    answer[#answer + 1] = {field, redis.call('HGET', KEYS[4], field) or '0', redis.call('HGET', KEYS[5], field) or '0', found}
  end
end
return answer
"""
