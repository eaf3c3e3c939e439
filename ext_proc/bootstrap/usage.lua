-- Copies what an engine says of tokens into metadata, from JSON answers and event streams alike.
-- It looks for the field "usage" (SGLang: "meta_info") in a sliding window. Inside a JSON string the quotes of "usage"
-- would be escaped, so generated text cannot be mistaken for it. The last count of a kind is kept, since an answer may
-- repeat parts of its request before its own usage; but a 0 replaces nothing, since some streams end with one.
-- All of it becomes one text of "key=value" words: an access log entry is read faster with one field than with six.
local NAMESPACE = "kvpicker.usage"
local KEY = "words"
local WINDOW = 4096      -- longer than any usage object
local ID_WITHIN = 16384  -- an answer gives its id at its beginning
local LONGEST_ID = 133
local MAX_DIGITS = 9
local MOST_TOKENS = 10000000  -- a count above this is nonsense of the engine
local TAIL = 64          -- of a JSON answer, which ends as it begins unless somebody promised too few bytes
local ERROR_WITHIN = 1024  -- of an error, for what it says of itself

local NAMES = {
  prompt_tokens = "prompt", completion_tokens = "completion", cached_tokens = "cached",
  cache_read_input_tokens = "anthropic_cached", cache_creation_input_tokens = "anthropic_created",
}
-- Two APIs share these names; only OpenAI's Responses adds details.
local RESPONSES = { input_tokens = "prompt", output_tokens = "completion" }
local ANTHROPIC = { input_tokens = "anthropic_input", output_tokens = "anthropic_output" }

local ERROR_VALUES = { '"error"%s*:%s*{%s*"', '"error"%s*:%s*"[^"]', '"error"%s*:%s*[t1-9%[]' }
local ERROR_KINDS = { '{%s*"type"%s*:%s*"error"', '{%s*"object"%s*:%s*"error"' }
local CLIENTS_FAULT = { "invalid_request_error", "BadRequestError", "not_found_error", "context_length_exceeded" }
local OVERLOAD = { "overloaded_error", "rate_limit_error", "rate_limit_exceeded" }

local function note(handle, seen, key, value)
  seen[key] = value
  local words = {}
  for name, noted in pairs(seen) do words[#words + 1] = name .. "=" .. noted end
  handle:streamInfo():dynamicMetadata():set(NAMESPACE, KEY, table.concat(words, " "))
end

local function read_usage(handle, usage, seen)
  local shared = string.find(usage, '_tokens_details"', 1, true) and RESPONSES or ANTHROPIC
  -- What came before was a client's own object of that name, in its metadata.
  if shared == RESPONSES then seen.anthropic_input = nil end
  for field, digits in string.gmatch(usage, '"([%w_]+)"%s*:%s*(%d+)%s*[,}]') do
    local key = NAMES[field] or shared[field]
    local count = key and #digits <= MAX_DIGITS and tonumber(digits)
    if count and count <= MOST_TOKENS and count ~= seen[key] and (count > 0 or not seen[key]) then
      note(handle, seen, key, count)
    end
  end
end

local function read_all_usage(handle, text, seen)
  local beyond = 1
  for _, name in ipairs({ '"usage"', '"meta_info"' }) do
    local after, read = 1, 1
    while true do
      local from, to = string.find(text, name, after, true)
      if not from then break end
      after = to + 1
      local _, before = string.find(text, '^%s*:%s*', after)
      -- Only a window of it: in an answer full of braces each look would go on to the end.
      local usage = before and string.byte(text, before + 1) == 123
        and string.match(string.sub(text, before + 1, before + WINDOW), '^%b{}')
      if usage then
        read_usage(handle, usage, seen)
        after = before + #usage + 1
        read = after
      end
    end
    beyond = math.max(beyond, read)
  end
  return beyond
end

local function first_of(text, before, patterns)
  for _, pattern in ipairs(patterns) do
    local from = string.find(text, before .. pattern)
    if from then return from end
  end
end

local function names_any(text, kinds)
  for _, kind in ipairs(kinds) do
    if string.find(text, '"' .. kind .. '"', 1, true) then return true end
  end
end

-- Whose fault an error is: the status that it names, or that of its kind, or 1.
local function status_of(text, from)
  local complaint = string.sub(text, from, from + ERROR_WITHIN)
  for _, field in ipairs({ "code", "status", "status_code" }) do
    local status = string.match(complaint, '"' .. field .. '"%s*:%s*"?([45]%d%d)"?%s*[,}]')
    if status then return tonumber(status) end
  end
  return names_any(complaint, CLIENTS_FAULT) and 400 or names_any(complaint, OVERLOAD) and 429 or 1
end

-- Plain searches go first, since they are fast and nearly always enough; text may be full of errors that are none.
-- A response object repeats the metadata and the tools of its request, and has no choices.
local function failure_in_events(text, echoes)
  local from
  if string.find(text, "response.failed", 1, true) then from = string.find(text, '[\r\n]event: ?response%.failed') end
  if not from and string.find(text, "error", 1, true) then
    if string.find(text, '"error"', 1, true) then
      from = first_of(text, '[\r\n]data:%s*{[^{}\r\n]*', ERROR_VALUES)
        or first_of(text, '[\r\n]data:%s*', ERROR_KINDS)
        or not echoes and string.find(text, '"finish_reason"%s*:%s*"error"')
    end
    if not from and string.find(text, "event:", 1, true) then from = string.find(text, '[\r\n]event: ?error') end
    if not from and string.find(text, "error:", 1, true) then from = string.find(text, '[\r\n]error: ?{') end
  end
  return from and status_of(text, from)
end

-- The text from the beginning of the line in which a piece begins, so that each event is looked at once.
local function unread(text, held)
  local start = held
  while start > 1 do
    local byte = string.byte(text, start)
    if byte == 10 or byte == 13 then break end
    start = start - 1
  end
  return string.sub(text, start)
end

-- Whether the event is there behind which a client need not read on: many leave then, and before Envoy has seen the end.
local ENDS = { "[DONE]", "message_stop", "response.completed", "response.incomplete" }
local END_LINES = { '[\r\n]data: ?%[DONE%]', '[\r\n]event: ?message_stop', '[\r\n]event: ?response%.completed',
  '[\r\n]event: ?response%.incomplete' }

local function has_ended(text)
  for at, word in ipairs(ENDS) do
    if string.find(text, word, 1, true) and string.find(text, END_LINES[at]) then return true end
  end
end

local function failure_in_json(text)
  local from = first_of(text, '^%s*{%s*', ERROR_VALUES) or first_of(text, '^%s*', ERROR_KINDS)
  return from and status_of(text, from)
end

local function is_cut(first, tail)
  local last = string.match(tail, "(%S)%s*$")
  return last ~= nil and (first == "{" and last ~= "}" or first == "[" and last ~= "]")
end

function envoy_on_response(handle)
  local kind = string.lower(handle:headers():get("content-type") or "")
  local events = string.find(kind, "text/event-stream", 1, true) == 1
  if not events and not string.find(kind, "^application/[%w.+-]*json") then return end
  local encoding = string.lower(handle:headers():get("content-encoding") or "")
  local plain = encoding == "" or encoding == "identity"
  local good = (tonumber(handle:headers():get(":status") or "") or 0) < 400
  local rest, length, id, failed, seen = "\n", 0, nil, nil, {}
  local said = 0
  local first, head, tail = nil, "", ""
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    local text = rest .. chunk:getBytes(0, size)
    if not id and length < ID_WITHIN then
      id = string.match(text, '"id"%s*:%s*"(resp_[%w_-]+)"')
      if id then note(handle, seen, "response_id", string.sub(id, 1, LONGEST_ID)) end
    end
    if good and events then
      local news = unread(text, #rest)
      if not seen.done and has_ended(news) then note(handle, seen, "done", 1) end
      if not failed or failed == 1 and said < ERROR_WITHIN then
        local status = failure_in_events(failed and text or news, id)
        if failed then said = said + size end
        if status and status ~= failed then
          failed = status
          note(handle, seen, "failed", failed)
        end
      end
    end
    local after = read_all_usage(handle, text, seen)
    length = length + size
    if not events and size > 0 then
      first = first or string.match(text, "^%s*(%S)")
      if #head < ERROR_WITHIN then head = head .. string.sub(text, #rest + 1, #rest + ERROR_WITHIN) end
      tail = string.sub(text, -TAIL)
    end
    rest = string.sub(text, math.max(after, #text - WINDOW + 1))
  end
  if events or not plain then return end
  local status = good and failure_in_json(head)
  if status then note(handle, seen, "failed", status) end
  if is_cut(first, tail) then note(handle, seen, "cut", 1) end
end
