// The C interface over `Frontend`: arguments are checked, exceptions end here, and a forked child touches nothing.

#include "frontend/doors/c/kvatlas_frontend.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/doors/grpc/prompt_wire.h"
#include "frontend/peers/grpc_finders.h"
#include "frontend/prompt/openai/openai_request.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/route/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/service/c_api.h"
#include "indexer/service/fork_mark.h"
#include "indexer/service/version.h"
#include "proto/kvatlas/v1/frontend.pb.h"

// Members are destroyed from the last to the first: the tokenizers, the frontend, then the services that its routes ask.
struct kvatlas_frontend {
  const kvatlas::ForkMark* mark = nullptr;
  uint32_t routes_max = 0;

  kvatlas::Mutex mutex;
  kvatlas::CondVar idle;
  uint32_t under_way ABSL_GUARDED_BY(mutex) = 0;

  kvatlas::WaypointSchedule schedule = kvatlas::WaypointSchedule::Standard();
  kvatlas::GrpcTimer timer;
  kvatlas::GrpcCellFinder cell_finder;
  kvatlas::GrpcOverlapFinder overlap_finder;
  std::unique_ptr<kvatlas::Frontend> frontend;

  std::unique_ptr<kvatlas::ModelRegistry> models;      // null: none
  std::unique_ptr<kvatlas::LocalTokenizer> tokenizer;  // likewise
  std::unique_ptr<kvatlas::PromptRouter> router;
};

struct kvatlas_route {
  kvatlas::PromptRoute answer;
  std::string json;  // empty: not made yet
};

namespace kvatlas {
namespace {

constexpr size_t kTextsMax = 4096;  // leaves, or names of workers
constexpr uint32_t kPromptThreadsMax = 256;
constexpr uint64_t kUsMax = 1'000'000ull * 3600 * 24;

static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) == KVATLAS_INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kNotFound) == KVATLAS_NOT_FOUND);
static_assert(static_cast<int>(absl::StatusCode::kResourceExhausted) == KVATLAS_RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(absl::StatusCode::kFailedPrecondition) ==
              KVATLAS_FAILED_PRECONDITION);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == KVATLAS_UNAVAILABLE);
static_assert(sizeof(TokenId) == sizeof(uint32_t));  // what `kvatlas_route_tokens` shows

std::string StringOf(const char* text) { return text == nullptr ? "" : text; }

Duration Us(uint64_t us) { return std::chrono::microseconds(std::min(us, kUsMax)); }

// A pointer that may be null only for nothing.
bool Fits(const void* values, size_t count) { return values != nullptr || count == 0; }

// ---- Options ----

absl::Status LeavesOf(const kvatlas_frontend_options& given, std::vector<ConfiguredLeaf>* leaves) {
  if (given.leaves_count > kTextsMax) return absl::InvalidArgumentError("leaves_count: too many");
  if (!Fits(given.leaves, given.leaves_count)) return absl::InvalidArgumentError("leaves: NULL");
  for (size_t i = 0; i < given.leaves_count; ++i) {
    const std::string entry = StringOf(given.leaves[i]);
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == entry.size())
      return absl::InvalidArgumentError("leaves: '" + entry + "' is no CELL=HOST:PORT");
    leaves->push_back({.cell = entry.substr(0, equals), .address = entry.substr(equals + 1)});
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const kvatlas_frontend_options& given) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (given.ask == 0 || given.ask > 64) return bad("ask: 1 to 64");
  if (given.block_size == 0 || given.block_size > 65536) return bad("block_size: 1 to 65536");
  if (given.deadline_us == 0) return bad("deadline_us: at least 1");
  if (given.routes_max == 0) return bad("routes_max: at least 1");
  if (given.prompt_threads == 0 || given.prompt_threads > kPromptThreadsMax)
    return bad("prompt_threads: 1 to 256");
  if (given.prompts_max == 0) return bad("prompts_max: at least 1");
  for (double weight : {given.zone_distance, given.prefill_weight, given.queue_weight,
                        given.decode_weight, given.temperature}) {
    if (!(weight >= 0 && weight <= std::numeric_limits<double>::max()))
      return bad("zone_distance, weights, temperature: at least 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<FrontendOptions> OptionsOf(const kvatlas_frontend_options& given) {
  if (absl::Status bad = CheckNumbers(given); !bad.ok()) return bad;
  FrontendOptions options;
  if (absl::Status bad = LeavesOf(given, &options.leaves); !bad.ok()) return bad;
  if (const std::string hierarchy = StringOf(given.hierarchy); !hierarchy.empty()) {
    absl::StatusOr<ShardMap> map = ShardMap::Parse(hierarchy);
    if (!map.ok())
      return absl::InvalidArgumentError("hierarchy: " + std::string(map.status().message()));
    options.hierarchies = *std::move(map);
  }
  if (options.leaves.empty() && options.hierarchies.empty())
    return absl::InvalidArgumentError("neither a hierarchy nor leaves");
  options.ask_cells = given.ask;
  options.block_size = given.block_size;
  options.contract.seed = given.hash_seed;
  options.deadline = Us(given.deadline_us);
  options.memory.in_flight_ttl = Us(std::min(given.in_flight_ttl_ms, kUsMax / 1000) * 1000);
  options.zone = StringOf(given.zone);
  options.zone_distance = given.zone_distance;
  options.weights.prefill = given.prefill_weight;
  options.weights.queue = given.queue_weight;
  options.weights.decode = given.decode_weight;
  options.weights.temperature = given.temperature;
  options.weights.seed = given.seed;
  return options;
}

absl::StatusOr<WaypointSchedule> ScheduleOf(const kvatlas_frontend_options& given) {
  if (given.schedule == nullptr) return WaypointSchedule::Standard();
  absl::StatusOr<WaypointSchedule> schedule = WaypointSchedule::Parse(given.schedule);
  if (schedule.ok()) return schedule;
  return absl::InvalidArgumentError("schedule: " + std::string(schedule.status().message()));
}

// Null without any.
absl::StatusOr<std::unique_ptr<ModelRegistry>> ModelsOf(const kvatlas_frontend_options& given) {
  auto registry = ModelRegistry::FromFlag(StringOf(given.models));
  if (registry.ok()) return registry;
  return absl::InvalidArgumentError("models: " + std::string(registry.status().message()));
}

// gRPC makes its threads for callbacks at the first of them: that must not be in a thread of the program.
void StartThreads(kvatlas_frontend* frontend) {
  struct Started {
    Mutex mutex;
    CondVar changed;
    bool done ABSL_GUARDED_BY(mutex) = false;
  };
  auto started = std::make_shared<Started>();
  frontend->timer.After(Duration(0), [started] {
    MutexLock lock(&started->mutex);
    started->done = true;
    started->changed.Signal();
  });
  MutexLock lock(&started->mutex);
  while (!started->done) started->changed.Wait(&started->mutex);
}

absl::StatusOr<std::unique_ptr<kvatlas_frontend>> Create(const kvatlas_frontend_options& given) {
  const absl::StatusOr<const ForkMark*> mark = MarkOfThisProcess("frontend");
  if (!mark.ok()) return mark.status();
  absl::StatusOr<FrontendOptions> options = OptionsOf(given);
  if (!options.ok()) return options.status();
  absl::StatusOr<WaypointSchedule> schedule = ScheduleOf(given);
  if (!schedule.ok()) return schedule.status();
  const SignalsBlocked blocked;
  absl::StatusOr<std::unique_ptr<ModelRegistry>> models = ModelsOf(given);
  if (!models.ok()) return models.status();
  auto made = std::make_unique<kvatlas_frontend>();
  made->mark = *mark;
  made->routes_max = given.routes_max;
  made->schedule = *std::move(schedule);
  options->schedule = &made->schedule;
  StartThreads(made.get());
  for (const std::string& address : options->hierarchies.Addresses())
    made->cell_finder.Connect(address);
  for (const ConfiguredLeaf& leaf : options->leaves) made->overlap_finder.Connect(leaf.address);
  made->frontend = std::make_unique<Frontend>(*std::move(options), &made->cell_finder,
                                              &made->overlap_finder, &Clock::Real(), &made->timer);
  made->models = *std::move(models);
  if (made->models != nullptr)
    made->tokenizer = std::make_unique<LocalTokenizer>(made->models.get(), LocalTokenizerOptions());
  made->router = std::make_unique<PromptRouter>(
      PromptRouterOptions{.threads = given.prompt_threads, .queue_max = given.prompts_max},
      made->frontend.get(), made->tokenizer.get());
  return made;
}

// ---- Routes ----

// What is to be routed, and how: `body` as it came, or else `question`.
struct Asked {
  PromptQuestion question;
  std::shared_ptr<const std::string> body = nullptr;
};

absl::Status CheckRequest(const kvatlas_route_request& given) {
  if (!Fits(given.tokens, given.tokens_count) ||
      !Fits(given.sequence_hashes, given.sequence_hashes_count) ||
      !Fits(given.allowed_workers, given.allowed_workers_count) ||
      !Fits(given.text, given.text_size) || !Fits(given.body, given.body_size)) {
    return absl::InvalidArgumentError("an array is NULL and has a count");
  }
  if (given.allowed_workers_count > kTextsMax)
    return absl::InvalidArgumentError("allowed_workers_count: too many");
  const int prompts = (given.tokens_count > 0) + (given.sequence_hashes_count > 0) +
                      (given.text != nullptr) + (given.messages_json != nullptr) +
                      (given.body != nullptr);
  if (prompts > 1) {
    return absl::InvalidArgumentError(
        "more than one of tokens, sequence_hashes, text, messages_json and body");
  }
  return absl::OkStatus();
}

TextPrompt TextOf(const kvatlas_route_request& given) {
  TextPrompt text{.text = std::string(given.text, given.text_size)};
  if (given.add_special_tokens >= 0) text.add_special_tokens = given.add_special_tokens != 0;
  return text;
}

// As the wire has it, so that both are read alike.
absl::StatusOr<Prompt> ChatOf(const kvatlas_route_request& given) {
  v1::RouteRequest request;
  v1::ChatPrompt& chat = *request.mutable_chat();
  chat.set_messages_json(given.messages_json);
  chat.set_tools_json(StringOf(given.tools_json));
  chat.set_template_kwargs_json(StringOf(given.template_kwargs_json));
  chat.set_chat_template(StringOf(given.chat_template));
  chat.set_add_generation_prompt(given.add_generation_prompt != 0);
  chat.set_continue_final_message(given.continue_final_message != 0);
  if (given.add_special_tokens >= 0) chat.set_add_special_tokens(given.add_special_tokens != 0);
  return PromptFromProto(request);
}

RouteInput InputOf(const kvatlas_route_request& given) {
  RouteInput input;
  input.domain = {StringOf(given.model), StringOf(given.tenant)};
  if (given.tokens_count > 0) input.tokens.assign(given.tokens, given.tokens + given.tokens_count);
  input.sequence_hashes.reserve(given.sequence_hashes_count);
  for (size_t i = 0; i < given.sequence_hashes_count; ++i)
    input.sequence_hashes.push_back(SequenceHash{given.sequence_hashes[i]});
  input.prompt_tokens = given.prompt_tokens;
  input.lora_name = StringOf(given.lora_name);
  input.cache_salt = StringOf(given.cache_salt);
  input.session_id = StringOf(given.session_id);
  for (size_t i = 0; i < given.allowed_workers_count; ++i)
    input.allowed_workers.push_back(StringOf(given.allowed_workers[i]));
  input.expected_output_tokens = given.expected_output_tokens;
  input.deadline = Us(given.deadline_us);
  return input;
}

absl::StatusOr<Asked> AskedOf(const kvatlas_route_request* request) {
  if (!IsInitialized(request))
    return absl::InvalidArgumentError("request: not from kvatlas_route_request_init");
  const kvatlas_route_request given = Whole(*request, &kvatlas_route_request_init);
  if (absl::Status bad = CheckRequest(given); !bad.ok()) return bad;
  Asked asked{.question = {.input = InputOf(given),
                           .return_tokens = given.return_tokens != 0,
                           .deadline = Us(given.deadline_us)}};
  if (given.body != nullptr) {
    asked.body = std::make_shared<const std::string>(given.body, given.body_size);
  } else if (given.text != nullptr) {
    asked.question.prompt = TextOf(given);
  } else if (given.messages_json != nullptr) {
    absl::StatusOr<Prompt> chat = ChatOf(given);
    if (!chat.ok()) return chat.status();
    asked.question.prompt = *std::move(chat);
  }
  return asked;
}

// One more route under way, unless there are too many.
absl::Status Begin(kvatlas_frontend* frontend) {
  MutexLock lock(&frontend->mutex);
  if (frontend->under_way >= frontend->routes_max)
    return absl::ResourceExhaustedError("routes_max routes are under way");
  ++frontend->under_way;
  return absl::OkStatus();
}

void End(kvatlas_frontend* frontend) {
  MutexLock lock(&frontend->mutex);
  if (--frontend->under_way == 0) frontend->idle.SignalAll();
}

// gRPC makes threads when it wants to, also in this call.
void RouteAsync(kvatlas_frontend* frontend, Asked asked, PromptRouter::Callback callback) {
  const SignalsBlocked blocked;
  PromptRouter& router = *frontend->router;
  if (asked.body == nullptr) return router.Route(std::move(asked.question), std::move(callback));
  router.RouteBody(OpenAiCall::kEither, std::move(asked.body), std::move(asked.question),
                   std::move(callback));
}

// The same, waiting, with the program's own signals.
absl::StatusOr<PromptRoute> RouteWaiting(kvatlas_frontend* frontend, Asked asked) {
  struct Waiter {
    Mutex mutex;
    CondVar done;
    std::optional<absl::StatusOr<PromptRoute>> answer ABSL_GUARDED_BY(mutex);
  };
  auto waiter = std::make_shared<Waiter>();
  RouteAsync(frontend, std::move(asked), [waiter](absl::StatusOr<PromptRoute> answer) {
    MutexLock lock(&waiter->mutex);
    waiter->answer.emplace(std::move(answer));
    waiter->done.Signal();
  });
  MutexLock lock(&waiter->mutex);
  while (!waiter->answer.has_value()) waiter->done.Wait(&waiter->mutex);
  return *std::move(waiter->answer);
}

int32_t Take(absl::StatusOr<PromptRoute> answer, kvatlas_route** route, std::string* error) {
  if (!answer.ok()) {
    *error = std::string(answer.status().message());
    return CodeOf(answer.status());
  }
  *route = new kvatlas_route{.answer = *std::move(answer), .json = {}};
  return KVATLAS_OK;
}

void Deliver(absl::StatusOr<PromptRoute> answer, kvatlas_route_callback callback, void* context) {
  kvatlas_route* route = nullptr;
  std::string error;
  const int32_t code = Guarded([&] { return Take(std::move(answer), &route, &error); });
  callback(context, code, error.c_str(), route);
}

bool Usable(const kvatlas_frontend& frontend) { return !frontend.mark->forked(); }

template <typename Count>
void SetCount(int64_t given, Count* to) {
  if (given >= 0 && given <= std::numeric_limits<uint32_t>::max())
    *to = static_cast<uint32_t>(given);
}

std::string JsonOf(const PromptRoute& answer) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(ToProto(answer), &json, options).ok())
    return "{}";
  return json;
}

}  // namespace
}  // namespace kvatlas

using kvatlas::Guarded;

void kvatlas_frontend_options_init(kvatlas_frontend_options* options, size_t struct_size) {
  const kvatlas::FrontendOptions defaults;
  const auto us = [](kvatlas::Duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  };
  kvatlas_frontend_options whole = {};
  whole.struct_size = struct_size;
  whole.ask = defaults.ask_cells;
  whole.block_size = defaults.block_size;
  whole.hash_seed = defaults.contract.seed;
  whole.deadline_us = us(defaults.deadline);
  whole.in_flight_ttl_ms = us(defaults.memory.in_flight_ttl) / 1000;
  whole.zone_distance = defaults.zone_distance;
  whole.prefill_weight = defaults.weights.prefill;
  whole.queue_weight = defaults.weights.queue;
  whole.decode_weight = defaults.weights.decode;
  whole.temperature = defaults.weights.temperature;
  whole.seed = defaults.weights.seed;
  whole.routes_max = 16384;
  const kvatlas::PromptRouterOptions prompts;
  whole.prompt_threads = prompts.threads;
  whole.prompts_max = static_cast<uint32_t>(prompts.queue_max);
  kvatlas::InitStruct(whole, options, struct_size);
}

void kvatlas_route_request_init(kvatlas_route_request* request, size_t struct_size) {
  kvatlas_route_request whole = {};
  whole.struct_size = struct_size;
  whole.add_generation_prompt = 1;
  whole.add_special_tokens = -1;
  kvatlas::InitStruct(whole, request, struct_size);
}

void kvatlas_route_report_init(kvatlas_route_report* report, size_t struct_size) {
  kvatlas_route_report whole = {};
  whole.struct_size = struct_size;
  whole.cached_tokens = -1;
  whole.prompt_tokens = -1;
  kvatlas::InitStruct(whole, report, struct_size);
}

const char* kvatlas_frontend_version(void) { return kvatlas::kVersion; }

uint32_t kvatlas_frontend_abi(void) { return KVATLAS_FRONTEND_ABI; }

const char* kvatlas_frontend_code_name(int32_t code) { return kvatlas::CodeName(code); }

int32_t kvatlas_frontend_create(const kvatlas_frontend_options* options,
                                kvatlas_frontend** frontend, char* error, size_t error_size) {
  kvatlas::PutText("", error, error_size);
  if (frontend == nullptr) return KVATLAS_INVALID_ARGUMENT;
  *frontend = nullptr;
  const int32_t code = Guarded([&] {
    if (!kvatlas::IsInitialized(options)) {
      return kvatlas::PutStatus(
          absl::InvalidArgumentError("options: not from kvatlas_frontend_options_init"), error,
          error_size);
    }
    absl::StatusOr<std::unique_ptr<kvatlas_frontend>> made =
        kvatlas::Create(kvatlas::Whole(*options, &kvatlas_frontend_options_init));
    if (!made.ok()) return kvatlas::PutStatus(made.status(), error, error_size);
    *frontend = made->release();
    return int32_t{KVATLAS_OK};
  });
  if (code == KVATLAS_RESOURCE_EXHAUSTED) kvatlas::PutText("no memory", error, error_size);
  return code;
}

void kvatlas_frontend_destroy(kvatlas_frontend* frontend) {
  if (frontend == nullptr || !kvatlas::Usable(*frontend)) return;
  {
    kvatlas::MutexLock lock(&frontend->mutex);
    while (frontend->under_way > 0) frontend->idle.Wait(&frontend->mutex);
  }
  delete frontend;
}

int32_t kvatlas_frontend_route(kvatlas_frontend* frontend, const kvatlas_route_request* request,
                               kvatlas_route** route, char* error, size_t error_size) {
  kvatlas::PutText("", error, error_size);
  if (route == nullptr) return KVATLAS_INVALID_ARGUMENT;
  *route = nullptr;
  if (frontend == nullptr) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&]() -> int32_t {
    absl::StatusOr<kvatlas::Asked> asked = kvatlas::AskedOf(request);
    if (!asked.ok()) return kvatlas::PutStatus(asked.status(), error, error_size);
    if (absl::Status bad = kvatlas::Begin(frontend); !bad.ok())
      return kvatlas::PutStatus(bad, error, error_size);
    const std::unique_ptr<kvatlas_frontend, void (*)(kvatlas_frontend*)> under_way(frontend,
                                                                                   &kvatlas::End);
    std::string why;
    const int32_t code =
        kvatlas::Take(kvatlas::RouteWaiting(frontend, *std::move(asked)), route, &why);
    kvatlas::PutText(why, error, error_size);
    return code;
  });
}

int32_t kvatlas_frontend_route_async(kvatlas_frontend* frontend,
                                     const kvatlas_route_request* request,
                                     kvatlas_route_callback callback, void* context) {
  if (frontend == nullptr || callback == nullptr) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&]() -> int32_t {
    absl::StatusOr<kvatlas::Asked> asked = kvatlas::AskedOf(request);
    if (!asked.ok()) return kvatlas::CodeOf(asked.status());
    if (absl::Status bad = kvatlas::Begin(frontend); !bad.ok()) return kvatlas::CodeOf(bad);
    kvatlas::RouteAsync(frontend, *std::move(asked),
                        [frontend, callback, context](absl::StatusOr<kvatlas::PromptRoute> answer) {
                          kvatlas::Deliver(std::move(answer), callback, context);
                          kvatlas::End(frontend);
                        });
    return KVATLAS_OK;
  });
}

uint64_t kvatlas_route_decision_id(const kvatlas_route* route) {
  return route->answer.route.decision_id;
}

const char* kvatlas_route_worker(const kvatlas_route* route) {
  return route->answer.route.worker.name.c_str();
}

uint32_t kvatlas_route_rank(const kvatlas_route* route) { return route->answer.route.worker.rank; }

const char* kvatlas_route_cell(const kvatlas_route* route) {
  return route->answer.route.cell.c_str();
}

const char* kvatlas_route_url(const kvatlas_route* route) {
  return route->answer.route.url.c_str();
}

uint32_t kvatlas_route_overlap_blocks(const kvatlas_route* route) {
  return route->answer.route.overlap_blocks;
}

const char* kvatlas_route_decode_worker(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->worker.name.c_str() : nullptr;
}

uint32_t kvatlas_route_decode_rank(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->worker.rank : 0;
}

const char* kvatlas_route_decode_cell(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->cell.c_str() : nullptr;
}

const char* kvatlas_route_decode_url(const kvatlas_route* route) {
  const auto& decode = route->answer.route.decode;
  return decode.has_value() ? decode->url.c_str() : nullptr;
}

uint64_t kvatlas_route_prompt_tokens(const kvatlas_route* route) {
  return route->answer.prompt_tokens;
}

const char* kvatlas_route_tokenizer(const kvatlas_route* route) {
  return route->answer.tokenizer.c_str();
}

const uint32_t* kvatlas_route_tokens(const kvatlas_route* route, size_t* count) {
  const std::vector<kvatlas::TokenId>& tokens = route->answer.tokens;
  if (count != nullptr) *count = tokens.size();
  return tokens.empty() ? nullptr : tokens.data();
}

const char* kvatlas_route_receipt_json(kvatlas_route* route) {
  const int32_t code = Guarded([&] {
    if (route->json.empty()) route->json = kvatlas::JsonOf(route->answer);
    return int32_t{KVATLAS_OK};
  });
  return code == KVATLAS_OK ? route->json.c_str() : nullptr;
}

void kvatlas_route_free(kvatlas_route* route) { delete route; }

int32_t kvatlas_frontend_report(kvatlas_frontend* frontend, uint64_t decision_id,
                                const kvatlas_route_report* report) {
  if (frontend == nullptr || !kvatlas::IsInitialized(report)) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&] {
    const kvatlas_route_report given = kvatlas::Whole(*report, &kvatlas_route_report_init);
    kvatlas::RouteReport said;
    said.accepted = given.accepted != 0;
    said.finished = given.finished != 0;
    said.abandoned = given.abandoned != 0;
    said.unreachable = given.unreachable != 0;
    said.decode_unreachable = given.decode_unreachable != 0;
    said.error = kvatlas::StringOf(given.error);
    kvatlas::SetCount(given.cached_tokens, &said.cached_tokens);
    kvatlas::SetCount(given.prompt_tokens, &said.prompt_tokens);
    frontend->frontend->Report(decision_id, said);
    return int32_t{KVATLAS_OK};
  });
}

int32_t kvatlas_frontend_get_stats(kvatlas_frontend* frontend, kvatlas_frontend_stats* stats) {
  if (frontend == nullptr || !kvatlas::IsInitialized(stats)) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&] {
    const kvatlas::FrontendStats now = frontend->frontend->stats();
    kvatlas_frontend_stats whole = {};
    whole.struct_size = stats->struct_size;
    whole.routes = now.routes;
    whole.failed = now.failed;
    whole.fallbacks = now.routes - now.by_fallback[0];
    whole.in_flight = now.in_flight;
    whole.cells = now.cells;
    whole.workers = now.workers;
    {
      kvatlas::MutexLock lock(&frontend->mutex);
      whole.under_way = frontend->under_way;
    }
    std::memcpy(static_cast<void*>(stats), &whole, std::min(stats->struct_size, sizeof(whole)));
    return int32_t{KVATLAS_OK};
  });
}
