#include "tools/trace/trace.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "tools/trace/csv_trace.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

absl::Status Bad(const std::string& reason) { return absl::InvalidArgumentError(reason); }

const Json* Field(const Json& line, const char* name) {
  auto it = line.find(name);
  return it == line.end() ? nullptr : &*it;
}

// Absent: nothing.
absl::Status ReadMs(const Json& line, const std::string& name, std::optional<double>* out) {
  const Json* value = Field(line, name.c_str());
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  if (!value->is_number()) return Bad(name + " is not a number");
  *out = value->get<double>();
  if (!std::isfinite(**out) || **out < 0) return Bad(name + " is negative or not finite");
  return absl::OkStatus();
}

absl::Status ReadTokens(const Json& line, const char* name, uint32_t* out) {
  const Json* value = Field(line, name);
  if (value == nullptr) return Bad(std::string(name) + " is missing");
  if (!value->is_number_unsigned())
    return Bad(std::string(name) + " is not a non-negative integer");
  const uint64_t tokens = value->get<uint64_t>();
  if (tokens > std::numeric_limits<uint32_t>::max())
    return Bad(std::string(name) + " is too large");
  *out = static_cast<uint32_t>(tokens);
  return absl::OkStatus();
}

absl::Status ReadIds(const Json& line, std::vector<uint64_t>* out) {
  const Json* value = Field(line, "hash_ids");
  if (value == nullptr) return Bad("hash_ids is missing");
  if (!value->is_array()) return Bad("hash_ids is not a list");
  if (value->empty()) return Bad("hash_ids is empty");
  if (value->size() > kTraceIdsMax) {
    return Bad("hash_ids has more than " + std::to_string(kTraceIdsMax) + " ids");
  }
  out->reserve(value->size());
  for (const Json& id : *value) {
    if (!id.is_number_unsigned())
      return Bad("hash_ids holds something that is not a non-negative integer");
    out->push_back(id.get<uint64_t>());
  }
  return absl::OkStatus();
}

// Absent or null: empty. Numbers and texts are both met.
absl::Status ReadSession(const Json& line, std::string* out) {
  const Json* value = Field(line, "session_id");
  if (value == nullptr || value->is_null()) return absl::OkStatus();
  if (value->is_string()) {
    *out = value->get<std::string>();
  } else if (value->is_number_integer()) {
    *out = value->dump();
  } else {
    return Bad("session_id is neither text nor integer");
  }
  return absl::OkStatus();
}

// The parser's message without its own prefix: "[json.exception.parse_error.101] parse error at …".
std::string Reason(const Json::exception& error) {
  const std::string_view what = error.what();
  const size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

constexpr char kForms[] =
    "expected JSON lines of Mooncake ({\"timestamp\": ms, \"input_length\": tokens, "
    "\"output_length\": "
    "tokens, \"hash_ids\": [one per 512 tokens]}), of Bailian (the same with \"chat_id\" and "
    "\"parent_chat_id\": seconds, ids of 16 tokens) or of aiperf (\"session_id\" and \"delay\"), "
    "or CSV of "
    "BurstGPT (Timestamp,Model,Request tokens,Response tokens,…) or Azure "
    "(TIMESTAMP,ContextTokens,GeneratedTokens), in gzip or not";

constexpr uint32_t kBailianIdTokens = 16;

// The whole file in memory where it is gzip.
absl::StatusOr<std::string> Gunzip(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(path + ": " + std::strerror(errno));
  std::string text;
  char piece[1 << 16];
  int got;
  while ((got = gzread(file, piece, sizeof(piece))) > 0)
    text.append(piece, static_cast<size_t>(got));
  const bool whole = gzclose(file) == Z_OK && got == 0;
  if (!whole) return Bad(path + ": its gzip is broken or ends early");
  return text;
}

// What is known by its first bytes, and not read.
std::string OtherFormat(std::string_view start) {
  constexpr std::pair<std::string_view, const char*> kKinds[] = {
      {"PAR1", "a Parquet file"},
      {"\x28\xb5\x2f\xfd", "compressed by zstd (zstd -d)"},
      {"\xfd"
       "7zXZ",
       "compressed by xz (xz -d)"},
      {"BZh", "compressed by bzip2 (bunzip2)"},
      {"PK\x03\x04", "a zip archive (unzip)"},
  };
  for (const auto& [magic, kind] : kKinds)
    if (start.starts_with(magic)) return kind;
  return "";
}

// Bailian: "chat_id" of a turn, and of the turn before it, or -1. A conversation is one session.
absl::Status ReadChat(const Json& line, std::map<int64_t, std::string>* chats,
                      std::string* session) {
  const Json* id = Field(line, "chat_id");
  const Json* parent = Field(line, "parent_chat_id");
  if (id == nullptr || !id->is_number_integer() || !parent->is_number_integer())
    return Bad("chat_id or parent_chat_id is not an integer");
  const auto known = chats->find(parent->get<int64_t>());
  *session = known != chats->end() ? known->second : id->dump();
  (*chats)[id->get<int64_t>()] = *session;
  return absl::OkStatus();
}

// A line of JSON, before times of sessions are known.
struct Line {
  TraceRequest request;
  std::optional<double> at_ms;
  std::optional<double> delay_ms;
  bool is_bailian = false;
};

// Reads the lines of JSON of one file.
class JsonLines {
 public:
  absl::Status Add(const std::string& text);
  // Those with a `delay` came among the others.
  std::vector<TraceRequest> Take();
  size_t size() const { return trace_.size(); }

 private:
  absl::StatusOr<Line> Parse(const std::string& text);
  absl::Status ReadPrompt(const Json& line, Line* to);
  absl::Status TakeIdTokens(const TraceRequest& request);
  absl::Status Place(Line* line);
  uint32_t id_tokens() const { return id_tokens_ == 0 ? kTokensPerHashId : id_tokens_; }

  std::vector<TraceRequest> trace_;
  std::map<std::string, double> session_at_;  // of the last turn
  uint32_t id_tokens_ = 0;                    // 0: no line said it yet
  uint32_t one_id_most_ = 0;                  // tokens of a prompt of one id
  uint64_t own_ids_ = 0;
  std::map<int64_t, std::string> chats_;  // their sessions
  bool has_delays_ = false;
};

// Of a prompt of two ids and more its length tells what an id stands for: no two powers of two fit.
absl::Status JsonLines::TakeIdTokens(const TraceRequest& request) {
  const uint64_t ids = request.hash_ids.size();
  const auto needs = [&](uint32_t tokens) {
    return (uint64_t{request.input_tokens} + tokens - 1) / tokens;
  };
  if (id_tokens_ == 0 && ids > 1) {
    for (uint32_t tokens = kTokensPerHashId; tokens >= kBailianIdTokens; tokens /= 2)
      if (needs(tokens) == ids && one_id_most_ <= tokens) id_tokens_ = tokens;
  }
  if (ids == 1) one_id_most_ = std::max(one_id_most_, request.input_tokens);
  if (needs(id_tokens()) == ids) return absl::OkStatus();
  return Bad("input_length needs " + std::to_string(needs(id_tokens())) + " hash_ids of " +
             std::to_string(id_tokens()) + " tokens, and there are " + std::to_string(ids));
}

absl::Status JsonLines::ReadPrompt(const Json& line, Line* to) {
  TraceRequest& request = to->request;
  for (const char* text : {"text_input", "messages", "payload"}) {
    if (Field(line, text) != nullptr && Field(line, "input_length") == nullptr)
      return Bad(std::string(text) +
                 " without input_length: texts are not tokenized here; expected "
                 "input_length, and hash_ids where prompts begin alike");
  }
  if (absl::Status bad = ReadTokens(line, "input_length", &request.input_tokens); !bad.ok())
    return bad;
  if (Field(line, "output_length") == nullptr) {
    request.output_tokens = 1;
  } else if (absl::Status bad = ReadTokens(line, "output_length", &request.output_tokens);
             !bad.ok()) {
    return bad;
  }
  if (Field(line, "hash_ids") == nullptr) {
    GiveOwnIds(&request, &own_ids_);
    return absl::OkStatus();
  }
  if (absl::Status bad = ReadIds(line, &request.hash_ids); !bad.ok()) return bad;
  if (to->is_bailian) id_tokens_ = kBailianIdTokens;
  if (absl::Status bad = TakeIdTokens(request); !bad.ok()) return bad;
  return absl::OkStatus();
}

absl::StatusOr<Line> JsonLines::Parse(const std::string& text) {
  if (text.size() > kTraceLineBytesMax) return Bad("line is too long");
  Json line;
  try {
    line = Json::parse(text);
  } catch (const Json::exception& error) {
    return Bad(Reason(error));
  }
  if (!line.is_object()) return Bad("not a JSON object");
  Line read;
  read.is_bailian = Field(line, "parent_chat_id") != nullptr;
  if (absl::Status bad = ReadMs(line, "timestamp", &read.at_ms); !bad.ok()) return bad;
  if (absl::Status bad = ReadMs(line, "delay", &read.delay_ms); !bad.ok()) return bad;
  if (read.is_bailian && read.at_ms.has_value()) *read.at_ms *= 1000;
  if (absl::Status bad = ReadPrompt(line, &read); !bad.ok()) return bad;
  if (absl::Status bad = ReadSession(line, &read.request.session_id); !bad.ok()) return bad;
  if (read.is_bailian) {
    if (absl::Status bad = ReadChat(line, &chats_, &read.request.session_id); !bad.ok()) return bad;
  }
  return read;
}

// A turn of a session may come without a time: it then comes `delay` after the one before, the
// first one at the start.
absl::Status JsonLines::Place(Line* line) {
  TraceRequest& request = line->request;
  const auto before = session_at_.find(request.session_id);
  const bool in_session = !request.session_id.empty();
  if (line->at_ms.has_value()) {
    request.timestamp_ms = *line->at_ms;
    if (!has_delays_ && !trace_.empty() && request.timestamp_ms < trace_.back().timestamp_ms)
      return Bad("timestamp is before the last request's");
  } else if (in_session) {
    has_delays_ = true;
    request.timestamp_ms =
        (before == session_at_.end() ? 0 : before->second) + line->delay_ms.value_or(0);
  } else {
    return Bad("timestamp is missing");
  }
  if (in_session) session_at_[request.session_id] = request.timestamp_ms;
  return absl::OkStatus();
}

absl::Status JsonLines::Add(const std::string& text) {
  absl::StatusOr<Line> line = Parse(text);
  if (!line.ok()) return line.status();
  if (absl::Status bad = Place(&*line); !bad.ok()) return bad;
  trace_.push_back(std::move(line->request));
  return absl::OkStatus();
}

std::vector<TraceRequest> JsonLines::Take() {
  for (TraceRequest& request : trace_)
    if (request.has_prefixes) request.id_tokens = id_tokens();
  if (has_delays_) SortByTime(&trace_);
  return std::move(trace_);
}

void AppendU64(uint64_t value, char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> (8 * i));
}

bool IsBlank(const std::string& text) {
  return text.find_first_not_of(" \t\r") == std::string::npos;
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::istream& in, const std::string& name,
                                                    size_t requests_max) {
  JsonLines lines;
  CsvTrace csv;
  std::string text;
  for (size_t number = 1; std::getline(in, text); ++number) {
    if (IsBlank(text)) continue;
    const bool first = lines.size() == 0 && !csv.has_header();
    absl::Status bad;
    if (first && !OtherFormat(text).empty()) {
      bad = Bad("this is " + OtherFormat(text));
    } else if (csv.has_header()) {
      bad = csv.Add(text);
    } else if (!first || !csv.TakeHeader(text)) {
      bad = lines.Add(text);
    }
    if (!bad.ok()) {
      return Bad(name + ":" + std::to_string(number) + ": " + std::string(bad.message()) +
                 (first ? std::string("; ") + kForms : ""));
    }
    if (requests_max > 0 && std::max(lines.size(), csv.size()) == requests_max) break;
  }
  if (in.bad()) return absl::UnavailableError(name + ": reading failed");
  if (lines.size() == 0 && csv.size() == 0) return Bad(name + ": the trace is empty; " + kForms);
  return csv.has_header() ? csv.Take() : lines.Take();
}

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path, size_t requests_max) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(path + ": " + std::strerror(errno));
  if (in.get() == 0x1f && in.get() == 0x8b) {
    absl::StatusOr<std::string> text = Gunzip(path);
    if (!text.ok()) return text.status();
    std::istringstream lines(*std::move(text));
    return ReadTrace(lines, path, requests_max);
  }
  in.clear();
  in.seekg(0);
  return ReadTrace(in, path, requests_max);
}

std::string TraceNote(const std::vector<TraceRequest>& trace) {
  const auto alone = std::count_if(trace.begin(), trace.end(), [](const TraceRequest& request) {
    return !request.has_prefixes;
  });
  if (alone == 0) return "";
  return std::to_string(alone) + " of " + std::to_string(trace.size()) +
         " requests have lengths alone: no prompt of them begins like another, so they show load "
         "and "
         "time, and nothing of what a cache is reused for";
}

LocalHash LocalOfHashId(uint64_t hash_id, uint64_t part) {
  char bytes[16];
  AppendU64(hash_id, bytes);
  AppendU64(part, bytes + 8);
  return LocalHash{Xxh3(std::string_view(bytes, sizeof(bytes)), kDefaultHashSeed)};
}

std::vector<LocalHash> PromptLocals(const TraceRequest& request, uint32_t split) {
  const uint32_t block_tokens = kTokensPerHashId / split;
  std::vector<LocalHash> locals;
  locals.reserve(request.hash_ids.size() * request.id_tokens / block_tokens + 1);
  if (block_tokens <= request.id_tokens) {
    for (const uint64_t id : request.hash_ids) {
      for (uint32_t part = 0; part < request.id_tokens / block_tokens; ++part)
        locals.push_back(LocalOfHashId(id, part));
    }
    return locals;
  }
  const size_t ids_max = block_tokens / request.id_tokens;
  for (size_t i = 0; i < request.hash_ids.size(); i += ids_max) {
    std::string bytes;
    for (size_t k = i; k < std::min(i + ids_max, request.hash_ids.size()); ++k) {
      char id[8];
      AppendU64(request.hash_ids[k], id);
      bytes.append(id, sizeof(id));
    }
    locals.push_back(LocalHash{Xxh3(bytes, kDefaultHashSeed)});
  }
  return locals;
}

std::vector<SequenceHash> PromptBlocks(const TraceRequest& request, uint32_t split) {
  return SequenceHashes(PromptLocals(request, split));
}

}  // namespace kvatlas
