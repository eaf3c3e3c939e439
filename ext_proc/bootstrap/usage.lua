-- Copies what an engine says of tokens into metadata, from JSON answers and event streams alike.
-- It looks for the field "usage" in a sliding window. Inside a JSON string the quotes of "usage" would be escaped,
-- so generated text cannot be mistaken for it. The last count of a kind is kept, since an answer may repeat parts of
-- its request before its own usage; but a 0 replaces nothing, since some streams end with one.
-- All of it becomes one text of "key=value" words: an access log entry is read faster with one field than with six.
local NAMESPACE = "kvpicker.usage"
local KEY = "words"
local WINDOW = 4096      -- longer than any usage object
local ID_WITHIN = 16384  -- an answer gives its id at its beginning
local MAX_DIGITS = 9
local TAIL = 64          -- of a JSON answer, which ends as it begins unless somebody promised too few bytes

local NAMES = {
  prompt_tokens = "prompt", completion_tokens = "completion", cached_tokens = "cached",
  cache_read_input_tokens = "anthropic_cached",
}
-- Two APIs share these names; only OpenAI's Responses adds details.
local RESPONSES = { input_tokens = "prompt", output_tokens = "completion" }
local ANTHROPIC = { input_tokens = "anthropic_input", output_tokens = "anthropic_output" }

local function note(handle, seen, key, value)
  seen[key] = value
  local words = {}
  for name, noted in pairs(seen) do words[#words + 1] = name .. "=" .. noted end
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, KEY, table.concat(words, " "))
end

local function read_usage(handle, usage, seen)
  local shared = string.find(usage, '_tokens_details"', 1, true) and RESPONSES or ANTHROPIC
  for field, digits in string.gmatch(usage, '"([%w_]+)"%s*:%s*(%d+)%s*[,}]') do
    local key = NAMES[field] or shared[field]
    local count = key and #digits <= MAX_DIGITS and tonumber(digits)
    if count and count ~= seen[key] and (count > 0 or not seen[key]) then note(handle, seen, key, count) end
  end
end

local function read_all_usage(handle, text, seen)
  local after = 1
  while string.find(text, '"usage"', after, true) do
    local from, to, usage = string.find(text, '"usage"%s*:%s*(%b{})', after)
    if not from then break end
    read_usage(handle, usage, seen)
    after = to + 1
  end
  return after
end

local function fails(text)
  return string.find(text, '"error"', 1, true)
    and (string.find(text, 'data:%s*{%s*"error"%s*:%s*[^n%s]')
      or string.find(text, 'data:%s*{%s*"type"%s*:%s*"error"'))
end

local function is_cut(first, tail)
  local last = string.match(tail, "(%S)%s*$")
  return last ~= nil and (first == "{" and last ~= "}" or first == "[" and last ~= "]")
end

function envoy_on_response(handle)
  local kind = handle:headers():get("content-type") or ""
  local events = string.find(kind, "text/event-stream", 1, true) == 1
  if not events and string.find(kind, "application/json", 1, true) ~= 1 then return end
  local plain = (handle:headers():get("content-encoding") or "identity") == "identity"
  local rest, length, id, failed, seen = "", 0, nil, false, {}
  local first, tail = nil, ""
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    local text = rest .. chunk:getBytes(0, size)
    if not id and length < ID_WITHIN then
      id = string.match(text, '"id"%s*:%s*"(resp_[%w_-]+)"')
      if id then note(handle, seen, "response_id", id) end
    end
    if events and not failed and fails(text) then
      failed = true
      note(handle, seen, "failed", 1)
    end
    local after = read_all_usage(handle, text, seen)
    length = length + size
    if not events and size > 0 then
      first = first or string.match(text, "^%s*(%S)")
      tail = string.sub(text, -TAIL)
    end
    rest = string.sub(text, math.max(after, #text - WINDOW + 1))
  end
  if not events and plain and is_cut(first, tail) then note(handle, seen, "cut", 1) end
end
