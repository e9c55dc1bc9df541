// `ForEachField` walks the fields of a body once, with simdjson's on-demand parser, which skips
// values that are not asked for. `Reader` takes what a route needs of each field; decisions that
// need several fields wait for `Reader::Finish`, since fields come in any order. `WithSalt` and
// `WithModel` use the same walk to find the places of values in the text, and leave all other bytes
// alone.

#include "frontend/prompt/request/prompt_request.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

namespace ondemand = simdjson::ondemand;
using ondemand::json_type;

struct ApiPath {
  std::string_view suffix;
  RequestPath path;
};

// The paths that have a prompt of one text, by their ends. The first match counts: "/generate" is
// the end of another path, so it comes last. Other paths of these engines have no such prompt:
// embeddings, scores, audio, images, counts.
constexpr std::array<ApiPath, 6> kPaths = {{{"/v1/chat/completions", RequestPath::kChat},
                                            {"/v1/completions", RequestPath::kCompletions},
                                            {"/v1/responses", RequestPath::kResponses},
                                            {"/v1/messages", RequestPath::kMessages},
                                            {"/inference/v1/generate", RequestPath::kVllmGenerate},
                                            {"/generate", RequestPath::kSglangGenerate}}};

// Ends of paths that run no model: tokenizers, templates, parsers, and calls about earlier
// requests.
constexpr std::array<std::string_view, 9> kWithoutBlocks = {
    "/tokenize",           "/detokenize",   "/render",
    "/derender",           "/count_tokens", "/parse_function_call",
    "/separate_reasoning", "/cancel",       "/ping"};

// Fields that change what an engine reads of the same messages (`PromptRequest::traits`).
constexpr std::array<std::string_view, 14> kTraits = {"add_generation_prompt",
                                                      "add_special_tokens",
                                                      "chat_template",
                                                      "chat_template_kwargs",
                                                      "continue_final_message",
                                                      "documents",
                                                      "instructions",
                                                      "reasoning",
                                                      "reasoning_effort",
                                                      "response_format",
                                                      "thinking",
                                                      "tool_choice",
                                                      "tools",
                                                      "truncate_prompt_tokens"};

// The bound of `RequestWishes::stored`.
constexpr size_t kStoredMax = 64;

constexpr std::string_view kMark = "\xef\xbb\xbf";  // byte order mark of UTF-8; Python skips it

// A thread keeps its parser for the next body, unless its buffer has grown beyond this: a few long
// bodies would hold their size in each thread for good.
constexpr size_t kKeptBytes = 256 << 10;

// The error begins with the field's name, which the APIs report to the client.
absl::Status Wrong(std::string_view field, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), " is ", what));
}

absl::Status NotJson() { return absl::InvalidArgumentError("the body is not JSON"); }

// The kind of a field's value; nothing: NaN or Infinity, which Python's json takes and which no
// field that is read here may have. INVALID_ARGUMENT: it is no JSON; `text` is where the body
// begins.
absl::StatusOr<std::optional<json_type>> TypeOf(ondemand::value value, const char* text) {
  json_type type;
  if (value.type().get(type) == simdjson::SUCCESS) return std::optional<json_type>(type);
  const std::string_view token = value.raw_json_token();
  if (token.starts_with("NaN") || token.starts_with("Infinity")) return std::optional<json_type>();
  return absl::InvalidArgumentError(
      absl::StrCat("the body is not JSON: wrong at byte ", token.data() - text + 1));
}

// A parser and the text with the padding that it reads beyond the end.
struct Parser {
  ondemand::parser parser;
  std::string text;
};

// Calls `field` with each key, its value and where the body begins. The body is copied once, as
// simdjson reads some bytes beyond the end. Values that `field` does not touch are skipped by the
// parser. INVALID_ARGUMENT: the body is no JSON object, or something follows it.
template <typename Field>
absl::Status ForEachField(std::string_view body, Field field) {
  if (body.starts_with(kMark)) body.remove_prefix(kMark.size());
  if (body.empty()) return absl::InvalidArgumentError("the body is empty; expected a JSON object");
  thread_local std::unique_ptr<Parser> kept;
  if (kept == nullptr) kept = std::make_unique<Parser>();
  kept->text.reserve(body.size() + simdjson::SIMDJSON_PADDING);
  kept->text.assign(body);
  absl::Status status;
  const auto read = [&]() -> bool {
    ondemand::document document;
    const simdjson::padded_string_view padded(kept->text.data(), kept->text.size(),
                                              kept->text.capacity());
    if (kept->parser.iterate(padded).get(document) != simdjson::SUCCESS) return false;
    ondemand::object object;
    if (document.get_object().get(object) != simdjson::SUCCESS) {
      status = absl::InvalidArgumentError("the body is not a JSON object");
      return true;
    }
    for (auto each : object) {
      ondemand::field one;
      if (std::move(each).get(one) != simdjson::SUCCESS) return false;
      std::string_view key;
      if (one.unescaped_key().get(key) != simdjson::SUCCESS) return false;
      status = field(key, one.value(), kept->text.data());
      if (!status.ok()) return true;
    }
    // The walk must end at the end of the text: nothing may follow the object.
    const char* at = nullptr;
    return document.current_location().get(at) == simdjson::OUT_OF_BOUNDS;
  };
  if (!read()) status = NotJson();
  if (kept->text.capacity() > kKeptBytes) kept = nullptr;
  return status;
}

constexpr std::string_view kReportMode = "kv_cache_report_mode";
constexpr std::string_view kBlank = " \t\r\n";

// The names in `sampling_params` of what a body has as `vllm_xargs` otherwise.
bool AreArgumentsIn(std::string_view name) { return name == "extra_args" || name == "vllm_xargs"; }

struct ByteRange {
  size_t begin = 0;
  size_t size = 0;
};

// Members of `value` whose name is `kReportMode` and whose value is "full", from the quote before
// the name to the one behind the value. `text`: where the body begins.
void FullReportsIn(ondemand::value value, const char* text, std::vector<ByteRange>* members) {
  ondemand::object object;
  if (value.get_object().get(object) != simdjson::SUCCESS) return;
  for (auto each : object) {
    ondemand::field one;
    if (std::move(each).get(one) != simdjson::SUCCESS) return;
    const char* const name_begin = one.key().raw() - 1;
    std::string_view name, mode;
    if (one.unescaped_key().get(name) != simdjson::SUCCESS) return;
    if (name != kReportMode) continue;
    const char* const mode_begin = one.value().raw_json_token().data();
    if (one.value().get_string().get(mode) != simdjson::SUCCESS || mode != "full") continue;
    const char* mode_end = mode_begin + 1;
    while (*mode_end != '"') mode_end += *mode_end == '\\' ? 2 : 1;
    members->push_back(
        {static_cast<size_t>(name_begin - text), static_cast<size_t>(mode_end + 1 - name_begin)});
  }
}

// White space in the place of a member of an object, and of the comma behind it; of the last
// member the comma before it.
void BlankMember(size_t begin, size_t size, std::string* body) {
  size_t end = begin + size;
  const size_t next = body->find_first_not_of(kBlank, end);
  const size_t before = body->find_last_not_of(kBlank, begin - 1);
  if (next != body->npos && (*body)[next] == ',') {
    end = next + 1;
  } else if (before != body->npos && (*body)[before] == ',') {
    begin = before;
  }
  body->replace(begin, end - begin, end - begin, ' ');
}

// Reads the fields of one body; made for one body, in one thread. A field that is null counts as
// missing. For a key that comes twice the last value counts, as in Python.
class Reader {
 public:
  Reader(RequestPath path, PromptRequest* request) : path_(path), request_(*request) {}

  absl::Status Field(std::string_view key, ondemand::value value, const char* text) {
    const absl::StatusOr<std::optional<json_type>> type = TypeOf(value, text);
    if (!type.ok()) return type.status();
    if (!type->has_value()) return absl::OkStatus();
    if (**type != json_type::null) return Known(key, value, **type);
    if (key == "prompt") prompt_ = false;
    if (key == "messages") messages_ = false;
    return absl::OkStatus();
  }

  // Decides what several fields say together: the path of `kChatOrCompletion`, required fields, the
  // kind of the prompt. The body itself becomes the prompt for a tokenizer, unless it has ids that
  // every engine keeps.
  absl::Status Finish(std::shared_ptr<const std::string> body) {
    if (echo_ && logprobs_) NotRead("echo with logprobs");
    if (path_ == RequestPath::kChatOrCompletion)
      path_ = messages_ ? RequestPath::kChat : RequestPath::kCompletions;
    if ((path_ == RequestPath::kChat || path_ == RequestPath::kMessages) && !messages_)
      return Wrong("messages", "missing");
    if (path_ == RequestPath::kResponses && !input_) return Wrong("input", "missing");
    const bool ids_alone = path_ == RequestPath::kVllmGenerate;
    const bool has_prompt =
        ids_alone || path_ == RequestPath::kCompletions || path_ == RequestPath::kSglangGenerate;
    if (has_prompt && request_.no_prompt.ok()) {
      if (!prompt_ && embeds_)
        request_.no_prompt = absl::UnimplementedError("prompt_embeds has no tokens");
      else if (!prompt_)
        return Wrong(ids_alone ? "token_ids" : "prompt", "missing");
    }
    if (!is_ids_ || IsCut()) request_.prompt = BodyPrompt{.path = path_, .body = std::move(body)};
    FinishWishes();
    return absl::OkStatus();
  }

  static absl::Status Text(std::string_view key, ondemand::value& value, json_type type,
                           std::string* to) {
    if (type != json_type::string) return Wrong(key, "not a string");
    std::string_view text;
    if (value.get_string().get(text) != simdjson::SUCCESS) return NotJson();
    // simdjson accepts half of a surrogate pair and writes it as bytes that are not UTF-8.
    if (!simdjson::validate_utf8(text.data(), text.size())) return Wrong(key, "not Unicode text");
    to->assign(text);
    return absl::OkStatus();
  }

 private:
  // A field that is not null. Kinds are checked only where every engine refuses another one; for
  // other fields another kind says nothing.
  absl::Status Known(std::string_view key, ondemand::value& value, json_type type) {
    if (key == "model") return Text(key, value, type, &request_.model);
    if (key == "cache_salt") return Text(key, value, type, &request_.cache_salt);
    if (key == "messages" || key == "tools") return ListField(key, type);
    if (key == "stream") request_.stream = IsTrue(value, type);
    if (key == "chat_template") request_.own_template = type == json_type::string;
    if (key == "max_tokens" || key == "max_completion_tokens" || key == "max_output_tokens")
      Count(value, type, &request_.output_tokens_max);
    if (key == "prompt" || key == "text" || key == "input_ids" || key == "token_ids")
      return PromptField(key, value, type);
    if (key == "prompt_embeds") embeds_ = true;
    if (key == "input" && path_ == RequestPath::kResponses) {
      input_ = true;
      // vLLM takes an empty object for a list; the tokenizer looks into it.
      if (type != json_type::string && type != json_type::array && type != json_type::object)
        return Wrong(key, "neither text nor an array of items");
      if (type == json_type::array) return References(value);
    }
    NoteTrait(key);
    CacheField(key, value, type);
    SessionField(key, value, type);
    WishField(key, value, type);
    return absl::OkStatus();
  }

  // SGLang takes `n` in `sampling_params`, which then counts alone.
  void WishField(std::string_view key, ondemand::value& value, json_type type) {
    if (key == "routed_dp_rank") rank_ = WholeNumber(value.get_uint64());
    if (key == "data_parallel_rank") older_rank_ = WholeNumber(value.get_uint64());
    if (key == "n") choices_ = WholeNumber(value.get_uint64());
    if (key == "vllm_xargs") request_.wishes.has_engine_arguments = true;
    if (key == "sampling_params" && type == json_type::object) Parameters(value);
    if (path_ != RequestPath::kResponses) return;
    if (key == "previous_response_id") previous_ = StoredId(value, type);
    if (key == "conversation")
      conversation_ = type == json_type::object ? StoredIdIn(value) : StoredId(value, type);
  }

  void Parameters(ondemand::value& value) {
    has_parameters_ = true;
    choices_of_parameters_ = std::nullopt;
    for (auto each : value.get_object()) {
      ondemand::field one;
      std::string_view name;
      if (std::move(each).get(one) != simdjson::SUCCESS ||
          one.unescaped_key().get(name) != simdjson::SUCCESS)
        return;
      if (name == "n") choices_of_parameters_ = WholeNumber(one.value().get_uint64());
      if (AreArgumentsIn(name)) request_.wishes.has_engine_arguments = true;
    }
  }

  // The fields that may name a session, in the order of `PromptRequest::session`.
  void SessionField(std::string_view key, ondemand::value& value, json_type type) {
    if (type == json_type::object) {
      ondemand::object fields;
      if (key == "session_params" && value.get_object().get(fields) == simdjson::SUCCESS)
        sessions_[0] = SessionIn(fields.find_field_unordered("id"));
      if (key == "nvext" && value.get_object().get(fields) == simdjson::SUCCESS)
        sessions_[1] = SessionIn(
            fields.find_field_unordered("session_control").find_field_unordered("session_id"));
      if (key != "metadata" || value.get_object().get(fields) != simdjson::SUCCESS) return;
      sessions_[3] = SessionIn(fields.find_field_unordered("session_id"));
      sessions_[4] = SessionOfUser(TextIn(fields.find_field_unordered("user_id")));
    }
    if (key == "session_id") sessions_[2] = SessionIn(ondemand::value(value));
    if (key == "prompt_cache_key") sessions_[5] = SessionIn(ondemand::value(value));
  }

  static std::string TextIn(simdjson::simdjson_result<ondemand::value> value) {
    ondemand::value one;
    json_type type;
    std::string text;
    if (std::move(value).get(one) != simdjson::SUCCESS ||
        one.type().get(type) != simdjson::SUCCESS || !Text("id", one, type, &text).ok())
      return "";
    return text;
  }
  static std::string SessionIn(simdjson::simdjson_result<ondemand::value> value) {
    std::string text = TextIn(std::move(value));
    return text.size() <= kBodySessionBytesMax ? text : "";
  }

  // The session in Claude Code's `user_id`, whose two forms are told in the header.
  static std::string SessionOfUser(std::string_view user) {
    constexpr std::string_view kName = "\"session_id\"", kMark = "_session_";
    std::string_view session;
    if (user.starts_with('{')) {
      size_t at = user.find(kName);
      if (at == user.npos) return "";
      at = user.find_first_not_of(kBlank, at + kName.size());
      if (at == user.npos || user[at] != ':') return "";
      at = user.find_first_not_of(kBlank, at + 1);
      if (at == user.npos || user[at] != '"') return "";
      session = user.substr(at + 1);
      session = session.substr(0, session.find_first_of("\"\\"));
    } else if (const size_t at = user.rfind(kMark); at != user.npos) {
      session = user.substr(at + kMark.size());
    }
    return session.size() <= kBodySessionBytesMax ? std::string(session) : "";
  }

  // Ids of input items that the engine has stored. The only nested list that is walked here.
  absl::Status References(ondemand::value& items) {
    for (auto each : items.get_array()) {
      ondemand::value item;
      if (std::move(each).get(item) != simdjson::SUCCESS) return NotJson();
      ondemand::object fields;
      std::string_view type;
      if (item.get_object().get(fields) != simdjson::SUCCESS ||
          fields.find_field_unordered("type").get_string().get(type) != simdjson::SUCCESS ||
          type != "item_reference")
        continue;
      std::string_view id;
      if (references_.size() < kStoredMax &&
          fields.find_field_unordered("id").get_string().get(id) == simdjson::SUCCESS)
        references_.emplace_back(id);
    }
    return absl::OkStatus();
  }

  // `previous_response_id` comes first: it names the engine that has the whole conversation.
  void FinishWishes() {
    RequestWishes& wishes = request_.wishes;
    if (previous_.has_value()) wishes.stored.push_back(*std::move(previous_));
    for (std::string& id : references_) wishes.stored.push_back(std::move(id));
    if (conversation_.has_value()) wishes.stored.push_back(*std::move(conversation_));
    if (wishes.stored.size() > kStoredMax) wishes.stored.resize(kStoredMax);
    wishes.rank = rank_.has_value() ? rank_ : older_rank_;
    const std::optional<uint32_t> choices = has_parameters_ ? choices_of_parameters_ : choices_;
    wishes.one_prompt = !several_ && choices.value_or(1) < 2;
    const auto named = std::find_if(sessions_.begin(), sessions_.end(),
                                    [](const std::string& id) { return !id.empty(); });
    if (named != sessions_.end()) request_.session = std::move(*named);
  }

  // Nothing: it is no integer from 0 to 2^32 - 1.
  static std::optional<uint32_t> WholeNumber(simdjson::simdjson_result<uint64_t> read) {
    uint64_t number = 0;
    if (std::move(read).get(number) != simdjson::SUCCESS ||
        number > std::numeric_limits<uint32_t>::max())
      return std::nullopt;
    return static_cast<uint32_t>(number);
  }

  static std::optional<std::string> StoredId(ondemand::value& value, json_type type) {
    std::string id;
    if (!Text("id", value, type, &id).ok()) return std::nullopt;
    return id;
  }

  static std::optional<std::string> StoredIdIn(ondemand::value& object) {
    std::string_view id;
    if (object["id"].get_string().get(id) != simdjson::SUCCESS) return std::nullopt;
    return std::string(id);
  }

  // Checks that a list which the tokenizer will read is one: engines refuse others. Its items are
  // left to the tokenizer.
  absl::Status ListField(std::string_view key, json_type type) {
    NoteTrait(key);
    const bool is_chat = path_ == RequestPath::kChat || path_ == RequestPath::kMessages ||
                         path_ == RequestPath::kChatOrCompletion;
    if (!is_chat) return absl::OkStatus();
    if (type != json_type::array) return Wrong(key, "not an array");
    if (key == "messages") messages_ = true;
    return absl::OkStatus();
  }

  // Each trait once, in the order of the body.
  void NoteTrait(std::string_view key) {
    std::vector<std::string>& traits = request_.traits;
    const bool is_new = std::find(traits.begin(), traits.end(), key) == traits.end();
    if (is_new && std::find(kTraits.begin(), kTraits.end(), key) != kTraits.end())
      traits.emplace_back(key);
  }

  // Fields that change what the cache can give: with some of them an engine computes the whole
  // prompt, with others it keeps a part of the prompt or of the cache.
  void CacheField(std::string_view key, ondemand::value& value, json_type type) {
    if (key == "prompt_logprobs") NotRead("prompt_logprobs");
    if (key == "echo") echo_ = IsTrue(value, type);
    // vLLM's chats take the number of a prompt's logprobs from `top_logprobs` where the body says
    // echo.
    if (key == "logprobs" || key == "top_logprobs")
      logprobs_ = logprobs_ || type != json_type::boolean || IsTrue(value, type);
    if (key == "truncate_prompt_tokens") {
      size_t tokens = 0;
      Count(value, type, &tokens);
      truncate_ = tokens;
    }
    // SGLang keeps a cache tree for each `extra_key`, and its events do not name the key.
    if (key == "extra_key") request_.no_prompt = absl::UnimplementedError("extra_key is given");
    if (key == "return_logprob" && IsTrue(value, type)) NotRead("return_logprob");
  }

  void NotRead(const char* why) {
    request_.cache_not_read =
        absl::UnimplementedError(absl::StrCat("the engine does not read its cache: ", why));
  }

  static bool IsTrue(ondemand::value& value, json_type type) {
    bool is_true = false;
    return type == json_type::boolean && value.get_bool().get(is_true) == simdjson::SUCCESS &&
           is_true;
  }

  // Takes 5, 5.0 and "5", as engines do; another value leaves `to` alone, and engines judge it.
  // Values from 1e15 on are no real limit.
  static void Count(ondemand::value& value, json_type type, size_t* to) {
    double count = -1;
    if (type == json_type::number) {
      if (value.get_double().get(count) != simdjson::SUCCESS) return;
    } else if (type == json_type::string) {
      std::string_view text;
      if (value.get_string().get(text) != simdjson::SUCCESS ||
          !absl::SimpleAtod({text.data(), text.size()}, &count))
        return;
    }
    if (count >= 0 && count < 1e15) *to = static_cast<size_t>(count);
  }

  // Reads the field of the prompt: a string, an array of ids, or an array of either; of several
  // prompts the first. Ids are read here. A text is not: the tokenizer reads it from the body.
  // `counts`: another path has the same name for something else.
  absl::Status PromptField(std::string_view key, ondemand::value& value, json_type type) {
    const bool counts = key == "prompt"      ? IsCompletion()
                        : key == "token_ids" ? path_ == RequestPath::kVllmGenerate
                                             : path_ == RequestPath::kSglangGenerate;
    if (!counts) return absl::OkStatus();
    prompt_ = true;
    // The last of equal fields counts.
    if (key == "prompt") is_ids_ = by_convention_ = false;
    if (type == json_type::string) return absl::OkStatus();
    if (type != json_type::array) return WrongPrompt(key);
    std::vector<TokenId> ids;
    json_type of_first = json_type::null;
    size_t items = 0;
    for (auto item : value.get_array()) {
      ondemand::value one;
      json_type of;
      if (std::move(item).get(one) != simdjson::SUCCESS || one.type().get(of) != simdjson::SUCCESS)
        return NotJson();
      if (items++ == 0) of_first = of;
      if (of_first == json_type::number || of_first == json_type::boolean) {
        absl::Status bad = Id(key, one, of, &ids);
        if (!bad.ok()) return bad;
      } else if (of_first == json_type::array && items == 1) {
        absl::Status bad = Ids(key, one, &ids);
        if (!bad.ok()) return bad;
      }
    }
    if (items == 0) return WrongPrompt(key);
    several_ = items > 1 && (of_first == json_type::string || of_first == json_type::array);
    if (by_convention_) return absl::OkStatus();
    is_ids_ = !ids.empty();
    if (!is_ids_ && of_first != json_type::string) return WrongPrompt(key);
    if (is_ids_) request_.prompt = std::move(ids);
    return absl::OkStatus();
  }

  // Whether the body may be one of /v1/completions.
  bool IsCompletion() const {
    return path_ == RequestPath::kCompletions || path_ == RequestPath::kChatOrCompletion;
  }

  absl::Status WrongPrompt(std::string_view key) {
    return Wrong(key, "neither text nor token ids, nor an array of such");
  }

  absl::Status Ids(std::string_view key, ondemand::value& array, std::vector<TokenId>* ids) {
    for (auto item : array.get_array()) {
      ondemand::value one;
      json_type type;
      if (std::move(item).get(one) != simdjson::SUCCESS ||
          one.type().get(type) != simdjson::SUCCESS)
        return NotJson();
      absl::Status bad = Id(key, one, type, ids);
      if (!bad.ok()) return bad;
    }
    // SGLang takes an empty list in front of others.
    if (ids->empty() && IsCompletion()) by_convention_ = true;
    return ids->empty() && !by_convention_ ? WrongPrompt(key) : absl::OkStatus();
  }

  // Takes 5, 5.0 and true, which pydantic takes as integers. It takes " 5" and "5.0", too: a list
  // with a text is left to the engine's convention.
  absl::Status Id(std::string_view key, ondemand::value& value, json_type type,
                  std::vector<TokenId>* ids) {
    double id = -1;
    if (type == json_type::number) {
      if (value.get_double().get(id) != simdjson::SUCCESS) id = -1;
    } else if (type == json_type::boolean) {
      id = IsTrue(value, type) ? 1 : 0;
    } else if (type == json_type::string && IsCompletion()) {
      by_convention_ = true;
      return absl::OkStatus();
    }
    if (id < 0 || id > std::numeric_limits<TokenId>::max() || id != std::floor(id))
      return Wrong(key, "not an array of token ids");
    ids->push_back(static_cast<TokenId>(id));
    return absl::OkStatus();
  }

  // Whether vLLM takes a part of the ids alone (renderers/params.py), which SGLang does not: they
  // are then read by the engine's convention. No other path has the field.
  bool IsCut() const {
    const auto* const ids = std::get_if<std::vector<TokenId>>(&request_.prompt);
    return path_ == RequestPath::kCompletions && ids != nullptr && truncate_ > 0 &&
           ids->size() > truncate_;
  }

  RequestPath path_;
  PromptRequest& request_;
  bool messages_ = false;       // a list of messages was there
  bool prompt_ = false;         // a prompt of this path was there
  bool input_ = false;          // `input` of /v1/responses was there
  bool embeds_ = false;         // `prompt_embeds` was there
  bool is_ids_ = false;         // the prompt is ids, and read
  bool by_convention_ = false;  // it has ids that are read by the engine's convention
  bool echo_ = false;           // with `logprobs_`: the cache is not read
  bool logprobs_ = false;
  bool several_ = false;         // the body has several prompts
  bool has_parameters_ = false;  // `sampling_params` was there
  size_t truncate_ = 0;          // `truncate_prompt_tokens`; 0: the prompt is not cut
  std::optional<uint32_t> rank_;
  std::optional<uint32_t> older_rank_;
  std::optional<uint32_t> choices_;
  std::optional<uint32_t> choices_of_parameters_;
  std::optional<std::string> previous_;
  std::vector<std::string> references_;
  std::optional<std::string> conversation_;
  std::array<std::string, 6> sessions_;  // the first that is not empty counts
};

}  // namespace

// The end of the path decides: doors and engines may have a prefix.
std::optional<RequestPath> RequestPathOf(std::string_view method, std::string_view path) {
  if (method != "POST") return std::nullopt;
  path = path.substr(0, path.find('?'));
  for (const ApiPath& known : kPaths) {
    if (path.ends_with(known.suffix)) return known.path;
  }
  return std::nullopt;
}

// Python's json reads UTF-16 and UTF-32, which it tells by zero bytes and marks among the first
// four bytes (json.detect_encoding).
bool IsWideText(std::string_view body) {
  const std::string_view head = body.substr(0, 4);
  return head.find('\0') != std::string_view::npos || head.starts_with("\xff\xfe") ||
         head.starts_with("\xfe\xff");
}

bool TakesSalt(RequestPath path) {
  return path != RequestPath::kMessages && path != RequestPath::kSglangGenerate;
}

bool LeavesNoBlocks(std::string_view method, std::string_view path) {
  if (method != "POST") return true;
  path = path.substr(0, path.find('?'));
  return std::any_of(kWithoutBlocks.begin(), kWithoutBlocks.end(),
                     [path](std::string_view suffix) { return path.ends_with(suffix); });
}

// A body in UTF-16 or UTF-32 is not refused, as engines read it; it has neither model nor prompt
// here.
absl::StatusOr<PromptRequest> ReadPromptRequest(RequestPath path,
                                                std::shared_ptr<const std::string> body) {
  PromptRequest request;
  if (IsWideText(*body)) {
    request.no_prompt = absl::UnimplementedError("the body is not UTF-8");
    return request;
  }
  Reader reader(path, &request);
  absl::Status bad =
      ForEachField(*body, [&reader](std::string_view key, ondemand::value value, const char* text) {
        return reader.Field(key, value, text);
      });
  if (bad.ok()) bad = reader.Finish(std::move(body));
  if (!bad.ok()) return bad;
  return request;
}

std::optional<std::string> WithoutFullReports(std::string_view body) {
  if (IsWideText(body)) return std::nullopt;
  const size_t mark = body.starts_with(kMark) ? kMark.size() : 0;
  std::vector<ByteRange> members;
  const absl::Status bad =
      ForEachField(body, [&](std::string_view key, ondemand::value value, const char* text) {
        if (key == "vllm_xargs") FullReportsIn(value, text, &members);
        if (key == "sampling_params") {
          ondemand::object parameters;
          if (value.get_object().get(parameters) != simdjson::SUCCESS) return absl::OkStatus();
          for (auto each : parameters) {
            ondemand::field one;
            std::string_view name;
            if (std::move(each).get(one) != simdjson::SUCCESS ||
                one.unescaped_key().get(name) != simdjson::SUCCESS)
              return NotJson();
            if (AreArgumentsIn(name)) FullReportsIn(one.value(), text, &members);
          }
        }
        return absl::OkStatus();
      });
  if (!bad.ok() || members.empty()) return std::nullopt;
  std::string without(body);
  for (const ByteRange& member : members) BlankMember(mark + member.begin, member.size, &without);
  return without;
}

// 1. Walks the body for the model and for the places of all values of `cache_salt`.
// 2. Asks `salt` for the new value.
// 3. Copies the body with the new value, or null, at each of these places; where the body has none,
//    the field is put first in the object.
//
// `text` is where the walk's copy begins: a place there is the same place in `body`.
absl::StatusOr<std::string> WithSalt(std::string_view body, const SaltOfRequest& salt) {
  if (IsWideText(body)) return absl::InvalidArgumentError("the body is not UTF-8");
  if (body.starts_with(kMark)) body.remove_prefix(kMark.size());
  std::string model, callers;
  std::vector<std::string_view> salts;  // the values' places in `body`
  size_t fields = 0;
  const absl::Status bad =
      ForEachField(body, [&](std::string_view key, ondemand::value value, const char* text) {
        ++fields;
        if (key != "model" && key != "cache_salt") return absl::OkStatus();
        const absl::StatusOr<std::optional<json_type>> type = TypeOf(value, text);
        if (!type.ok()) return type.status();
        std::string said;  // a value of another kind is refused where the request is read
        std::string_view raw = value.raw_json_token();
        if (*type == json_type::array || *type == json_type::object) {
          if (simdjson::to_json_string(value).get(raw) != simdjson::SUCCESS) return NotJson();
        }
        if (*type == json_type::string) {
          if (absl::Status bad = Reader::Text(key, value, **type, &said); !bad.ok()) return bad;
        }
        (key == "model" ? model : callers) = std::move(said);
        if (key != "model")
          salts.push_back(body.substr(static_cast<size_t>(raw.data() - text), raw.size()));
        return absl::OkStatus();
      });
  if (!bad.ok()) return bad;
  const std::optional<std::string> put = salt(model, callers);
  // A key that comes twice is replaced twice: whichever of the two an engine takes, it is this
  // value.
  const std::string value = put.has_value() ? absl::StrCat("\"", *put, "\"") : "null";
  std::string salted;
  salted.reserve(body.size() + value.size() + 32);
  size_t from = 0;
  for (const std::string_view place : salts) {
    const auto at = static_cast<size_t>(place.data() - body.data());
    salted.append(body, from, at - from).append(value);
    from = at + place.size();
  }
  if (salts.empty() && put.has_value()) {
    from = body.find('{') + 1;
    salted.append(body, 0, from);
    absl::StrAppend(&salted, "\"cache_salt\":", value, fields > 0 ? "," : "");
  }
  return salted.append(body, from);
}

// As `WithSalt`, for the model: every value of the key is replaced, the last one is `*before`.
absl::StatusOr<std::string> WithModel(std::string_view body, std::string_view model,
                                      std::string* before) {
  if (IsWideText(body)) return absl::InvalidArgumentError("the body is not UTF-8");
  if (body.starts_with(kMark)) body.remove_prefix(kMark.size());
  std::vector<std::string_view> models;  // the values' places in `body`
  const absl::Status bad =
      ForEachField(body, [&](std::string_view key, ondemand::value value, const char* text) {
        if (key != "model") return absl::OkStatus();
        const absl::StatusOr<std::optional<json_type>> type = TypeOf(value, text);
        if (!type.ok()) return type.status();
        const std::string_view raw = value.raw_json_token();
        models.push_back(body.substr(static_cast<size_t>(raw.data() - text), raw.size()));
        return Reader::Text(key, value, type->value_or(json_type::null), before);
      });
  if (!bad.ok()) return bad;
  if (models.empty()) return absl::NotFoundError("the body names no model");
  std::string value = "\"";
  for (const char c : model) {
    if (static_cast<unsigned char>(c) < ' ') {
      absl::StrAppend(&value, "\\u", absl::Hex(c, absl::kZeroPad4));
      continue;
    }
    if (c == '"' || c == '\\') value += '\\';
    value += c;
  }
  value += '"';
  std::string changed;
  changed.reserve(body.size() + value.size());
  size_t from = 0;
  for (const std::string_view place : models) {
    const auto at = static_cast<size_t>(place.data() - body.data());
    changed.append(body, from, at - from).append(value);
    // A raw token reaches over the white space behind it, which stays.
    from = at + place.find_last_not_of(" \t\n\r") + 1;
  }
  return changed.append(body, from);
}

absl::StatusOr<std::string> ReadModel(std::string_view body) {
  std::string model;
  if (IsWideText(body)) return model;
  absl::Status bad =
      ForEachField(body, [&model](std::string_view key, ondemand::value value, const char* text) {
        const absl::StatusOr<std::optional<json_type>> type = TypeOf(value, text);
        if (!type.ok()) return type.status();
        if (key != "model" || *type == json_type::null) return absl::OkStatus();
        return Reader::Text(key, value, type->value_or(json_type::null), &model);
      });
  if (!bad.ok()) return bad;
  return model;
}

}  // namespace kvatlas
