// Text and chats through the C interface and through the service's gRPC, before one leaf: the same tokens, receipts and errors.

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "frontend/doors/c/kvatlas_frontend.h"
#include "frontend/doors/frontend_service.h"
#include "frontend/peers/grpc_finders.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/route/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr char kModels[] =
    "bytes=frontend/prompt/text/testdata/bytes,pirate=bytes,unigram=frontend/prompt/text/testdata/"
    "unigram";
constexpr auto kLong = std::chrono::seconds(60);
constexpr uint64_t kLongUs = 60'000'000;

// Three workers, of which "near" has the first block of whatever it is asked for.
class LeafStandIn : public v1::Leaf::Service {
 public:
  grpc::Status FindOverlaps(grpc::ServerContext*, const v1::FindOverlapsRequest* request,
                            v1::FindOverlapsResponse* response) override {
    for (const char* name : {"near", "far", "away"}) {
      v1::WorkerOverlap* worker = response->add_workers();
      worker->mutable_worker()->set_name(name);
      worker->set_trust(v1::TRUST_EXACT);
      if (name[0] == 'n' && request->sequence_hashes_size() > 0) worker->set_blocks(1);
      if (is_split) (*worker->mutable_labels())["role"] = name[0] == 'n' ? "prefill" : "decode";
    }
    response->set_labels_version(is_split ? 1 : 0);
    response->set_block_size(4);
    return grpc::Status::OK;
  }
  bool is_split = false;  // "near" only prefills, the others only decode
};

// What was answered, without what differs from call to call.
struct Answer {
  int32_t code = 0;
  std::string error = {};
  Json route = {};

  bool operator==(const Answer&) const = default;
};
void PrintTo(const Answer& answer, std::ostream* out) {
  *out << answer.code << " " << answer.error << " " << answer.route.dump(1);
}

void DropTimes(Json& json) {
  if (json.is_object()) {
    for (const char* name : {"us", "find_cells_us", "find_overlaps_us", "total_us", "queued_us",
                             "age_ms", "decision_id"})
      json.erase(name);
  }
  for (Json& part : json) {
    if (part.is_structured()) DropTimes(part);
  }
}

Json Parsed(const std::string& text) {
  Json json = Json::parse(text);
  DropTimes(json);
  return json;
}

// A request of C, made to live as long as its texts.
struct CRequest {
  CRequest() { kvatlas_route_request_init(&request, sizeof(request)); }
  kvatlas_route_request request;
};

class RouteTextTest : public testing::Test {
 protected:
  void SetUp() override {
    leaf_server_.Register(&leaf_);
    ASSERT_TRUE(leaf_server_.Start().ok());
    const std::string address = leaf_server_.address().ToString();
    StartService(address);
    StartEmbedded("c=" + address);
  }
  void TearDown() override { kvatlas_frontend_destroy(embedded_); }

  Answer FromGrpc(
      const std::function<grpc::Status(grpc::ClientContext*, v1::RouteResponse*)>& call) {
    grpc::ClientContext context;
    v1::RouteResponse response;
    const grpc::Status status = call(&context, &response);
    Answer answer{.code = status.error_code(), .error = status.error_message()};
    if (!status.ok()) return answer;
    frontend_->Report(response.decision_id(), {.abandoned = true});
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    std::string json;
    EXPECT_TRUE(google::protobuf::util::MessageToJsonString(response, &json, options).ok());
    answer.route = Parsed(json);
    return answer;
  }
  Answer Service(const v1::RouteRequest& request) {
    return FromGrpc([&](grpc::ClientContext* context, v1::RouteResponse* response) {
      return stub_->Route(context, request, response);
    });
  }
  Answer Service(const v1::RouteChatRequest& request) {
    return FromGrpc([&](grpc::ClientContext* context, v1::RouteResponse* response) {
      return stub_->RouteChat(context, request, response);
    });
  }

  Answer Taken(int32_t code, const std::string& error, kvatlas_route* route) {
    Answer answer{.code = code, .error = error};
    if (route == nullptr) return answer;
    answer.route = Parsed(kvatlas_route_receipt_json(route));
    EXPECT_EQ(answer.route["prompt_tokens"], kvatlas_route_prompt_tokens(route));
    EXPECT_EQ(answer.route["tokenizer"], kvatlas_route_tokenizer(route));
    size_t count = 1;
    const uint32_t* tokens = kvatlas_route_tokens(route, &count);
    EXPECT_EQ(tokens == nullptr, count == 0);
    EXPECT_EQ(answer.route["tokens"], Json(std::vector<uint32_t>(tokens, tokens + count)));
    kvatlas_route_report report;
    kvatlas_route_report_init(&report, sizeof(report));
    report.abandoned = 1;
    EXPECT_EQ(kvatlas_frontend_report(embedded_, kvatlas_route_decision_id(route), &report),
              KVATLAS_OK);
    kvatlas_route_free(route);
    return answer;
  }
  Answer Embedded(const kvatlas_route_request& request) {
    kvatlas_route* route = nullptr;
    char error[1024];
    const int32_t code = kvatlas_frontend_route(embedded_, &request, &route, error, sizeof(error));
    return Taken(code, error, route);
  }
  // The same by callback.
  Answer EmbeddedLater(const kvatlas_route_request& request) {
    struct Waiting {
      RouteTextTest* test;
      std::promise<Answer> answer;
    } waiting{.test = this, .answer = {}};
    const int32_t code = kvatlas_frontend_route_async(
        embedded_, &request,
        [](void* context, int32_t code, const char* error, kvatlas_route* route) {
          auto* to = static_cast<Waiting*>(context);
          to->answer.set_value(to->test->Taken(code, error, route));
        },
        &waiting);
    EXPECT_EQ(code, KVATLAS_OK);
    return waiting.answer.get_future().get();
  }

  // A body both ways: one answer.
  Answer Body(const std::string& body, const std::string& session = "") {
    v1::RouteChatRequest request;
    request.set_body(body);
    request.set_session_id(session);
    request.set_return_tokens(true);
    const Answer expected = Service(request);
    CRequest c;
    c.request.body = body.data();
    c.request.body_size = body.size();
    c.request.session_id = session.c_str();
    c.request.return_tokens = 1;
    const Answer embedded = Embedded(c.request);
    EXPECT_EQ(embedded, expected) << body;
    EXPECT_EQ(EmbeddedLater(c.request), Service(request)) << body;  // both remember the first
    return embedded;
  }
  Answer Text(const std::string& model, const std::string& text, int add_special_tokens = -1) {
    v1::RouteRequest request;
    request.mutable_domain()->set_model(model);
    request.mutable_text()->set_text(text);
    if (add_special_tokens >= 0)
      request.mutable_text()->set_add_special_tokens(add_special_tokens != 0);
    request.set_return_tokens(true);
    CRequest c;
    c.request.model = model.c_str();
    c.request.text = text.data();
    c.request.text_size = text.size();
    c.request.add_special_tokens = add_special_tokens;
    c.request.return_tokens = 1;
    const Answer embedded = Embedded(c.request);
    EXPECT_EQ(embedded, Service(request)) << model << " " << text;
    return embedded;
  }
  Answer Chat(const std::string& messages, const std::string& tools = "",
              const std::string& kwargs = "", bool is_continued = false) {
    v1::RouteRequest request;
    request.mutable_domain()->set_model("bytes");
    request.mutable_chat()->set_messages_json(messages);
    request.mutable_chat()->set_tools_json(tools);
    request.mutable_chat()->set_template_kwargs_json(kwargs);
    request.mutable_chat()->set_add_generation_prompt(!is_continued);
    request.mutable_chat()->set_continue_final_message(is_continued);
    CRequest c;
    c.request.model = "bytes";
    c.request.messages_json = messages.c_str();
    c.request.tools_json = tools.empty() ? nullptr : tools.c_str();
    c.request.template_kwargs_json = kwargs.empty() ? nullptr : kwargs.c_str();
    c.request.add_generation_prompt = is_continued ? 0 : 1;
    c.request.continue_final_message = is_continued ? 1 : 0;
    const Answer embedded = Embedded(c.request);
    EXPECT_EQ(embedded, Service(request)) << messages;
    return embedded;
  }

  kvatlas_frontend* embedded_ = nullptr;
  LeafStandIn leaf_;

 private:
  void StartService(const std::string& leaf) {
    overlap_finder_.Connect(leaf);
    FrontendOptions options;
    options.leaves = {{.cell = "c", .address = leaf}};
    options.deadline = kLong;
    frontend_ =
        std::make_unique<Frontend>(options, &cell_finder_, &overlap_finder_, &Clock::Real());
    auto models = ParseModels(kModels);
    ASSERT_TRUE(models.ok()) << models.status();
    auto registry = ModelRegistry::Create(*std::move(models));
    ASSERT_TRUE(registry.ok()) << registry.status();
    models_ = *std::move(registry);
    tokenizer_ = std::make_unique<LocalTokenizer>(models_.get(), LocalTokenizerOptions());
    router_ = std::make_unique<PromptRouter>(PromptRouterOptions{.tokenize_deadline = kLong},
                                             frontend_.get(), tokenizer_.get());
    service_ = std::make_unique<FrontendService>(frontend_.get(), &metrics_, router_.get());
    server_.Register(service_.get());
    ASSERT_TRUE(server_.Start().ok());
    stub_ = v1::Frontend::NewStub(MakeChannel(server_.address().ToString()));
  }
  void StartEmbedded(const std::string& leaf) {
    kvatlas_frontend_options options;
    kvatlas_frontend_options_init(&options, sizeof(options));
    const char* leaves[] = {leaf.c_str()};
    options.leaves = leaves;
    options.leaves_count = 1;
    options.deadline_us = kLongUs;
    options.models = kModels;
    char error[256];
    ASSERT_EQ(kvatlas_frontend_create(&options, &embedded_, error, sizeof(error)), KVATLAS_OK)
        << error;
  }

  GrpcServer leaf_server_{GrpcServerOptions{.listen = {"127.0.0.1", 0}}};
  GrpcCellFinder cell_finder_;
  GrpcOverlapFinder overlap_finder_;
  Metrics metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<ModelRegistry> models_;
  std::unique_ptr<LocalTokenizer> tokenizer_;
  std::unique_ptr<PromptRouter> router_;
  std::unique_ptr<FrontendService> service_;
  GrpcServer server_{GrpcServerOptions{.listen = {"127.0.0.1", 0}}};
  std::unique_ptr<v1::Frontend::Stub> stub_;
};

TEST_F(RouteTextTest, ABodyGoesWhereTheServiceWouldSendItWithTheSameReceipt) {
  const Answer chat =
      Body(R"({"model":"bytes","messages":[{"role":"user","content":"Hello you"}]})");
  ASSERT_EQ(chat.code, KVATLAS_OK) << chat.error;
  EXPECT_EQ(chat.route["worker"]["name"], "near");
  EXPECT_EQ(chat.route["overlap_blocks"], 1);
  EXPECT_THAT(chat.route["tokenizer"], StartsWith("bytes (tokenizer.json "));
  EXPECT_GT(chat.route["prompt_tokens"], 4);
  EXPECT_EQ(chat.route["tokens"].size(), chat.route["prompt_tokens"]);
  const Answer text = Body(R"({"model":"pirate","prompt":"Hello you, all of you"})", "session 1");
  ASSERT_EQ(text.code, KVATLAS_OK) << text.error;
  EXPECT_THAT(text.route["tokenizer"], StartsWith("pirate ("));
  const Answer ids = Body(R"({"model":"unknown","prompt":[1,2,3,4,5,6,7,8]})");
  ASSERT_EQ(ids.code, KVATLAS_OK) << ids.error;
  EXPECT_EQ(ids.route["tokenizer"], "");
  EXPECT_EQ(ids.route["tokens"], Json({1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST_F(RouteTextTest, WhatIsWrongWithABodyIsSaidInTheServicesWords) {
  EXPECT_EQ(Body("{").code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(Body("").code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(Body(R"({"messages":[]})").error, HasSubstr("model"));
  EXPECT_EQ(Body(R"({"model":"bytes"})").code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_EQ(Body(std::string(100'000, '[')).code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(Body(R"({"model":"bytes","messages":[{"role":"pirate","content":"Ahoy"}]})").error,
              HasSubstr("unknown role: pirate"));
  const Answer unknown = Body(R"({"model":"gpt-7","prompt":"Hello"})");
  EXPECT_EQ(unknown.code, KVATLAS_NOT_FOUND);
  EXPECT_THAT(unknown.error, HasSubstr("gpt-7"));
  EXPECT_EQ(Body(R"({"model":"bytes","prompt":"Hello"})", std::string(257, 's')).code,
            KVATLAS_INVALID_ARGUMENT);
}

TEST_F(RouteTextTest, TextIsTakenAsItIs) {
  const Answer all = Text("bytes", "Hello you, all of you");
  ASSERT_EQ(all.code, KVATLAS_OK) << all.error;
  const Answer bare = Text("bytes", "Hello you, all of you", 0);
  ASSERT_EQ(bare.code, KVATLAS_OK) << bare.error;
  EXPECT_LT(bare.route["tokens"].size(), all.route["tokens"].size()) << "no special tokens";
  EXPECT_EQ(Text("bytes", "Hello you, all of you", 1).route["tokens"], all.route["tokens"]);
  EXPECT_EQ(Text("unigram", std::string("with a NUL \0 inside", 19)).code, KVATLAS_OK);
  EXPECT_EQ(Text("gpt-7", "Hello").code, KVATLAS_NOT_FOUND);
  EXPECT_EQ(Text("bytes", "", 0).code, KVATLAS_INVALID_ARGUMENT) << "no tokens";
}

TEST_F(RouteTextTest, AConversationIsWrittenByItsTemplate) {
  const std::string hello = R"([{"role":"user","content":"Hello"}])";
  const Answer plain = Chat(hello);
  ASSERT_EQ(plain.code, KVATLAS_OK) << plain.error;
  const Answer tools =
      Chat(hello, R"([{"type":"function","function":{"name":"look_up","parameters":{}}}])");
  ASSERT_EQ(tools.code, KVATLAS_OK) << tools.error;
  EXPECT_GT(tools.route["prompt_tokens"], plain.route["prompt_tokens"]);
  EXPECT_EQ(Chat(R"([{"role":"user","content":"Hello"},{"role":"assistant","content":"Wel"}])", "",
                 R"({"enable_thinking":false})", /*is_continued=*/true)
                .code,
            KVATLAS_OK);
  EXPECT_THAT(Chat("{}").error, HasSubstr("messages_json"));
  EXPECT_THAT(Chat("").error, HasSubstr("messages_json is missing"));
  EXPECT_THAT(Chat(hello, "{}").error, HasSubstr("tools_json"));
  EXPECT_THAT(Chat(hello, "", "[]").error, HasSubstr("template_kwargs_json"));
  EXPECT_EQ(Chat(R"([{"role":"pirate","content":"Ahoy"}])").code, KVATLAS_INVALID_ARGUMENT);
}

TEST_F(RouteTextTest, TwoPromptsAreRefused) {
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "Hello";
  c.request.text_size = 5;
  c.request.messages_json = "[]";
  EXPECT_EQ(Embedded(c.request).code, KVATLAS_INVALID_ARGUMENT);
  c.request.messages_json = nullptr;
  const uint32_t token = 1;
  c.request.tokens = &token;
  c.request.tokens_count = 1;
  EXPECT_THAT(Embedded(c.request).error, HasSubstr("more than one of"));
  c.request.tokens_count = 0;
  c.request.text = nullptr;
  EXPECT_EQ(Embedded(c.request).code, KVATLAS_INVALID_ARGUMENT) << "NULL, and a size";
}

TEST_F(RouteTextTest, ARouteToTwoWorkersNamesBothAndAReportWhoWasNotReached) {
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "Hello you, all of you";
  c.request.text_size = 21;
  kvatlas_route* one = nullptr;
  ASSERT_EQ(kvatlas_frontend_route(embedded_, &c.request, &one, nullptr, 0), KVATLAS_OK);
  EXPECT_EQ(kvatlas_route_decode_worker(one), nullptr);
  EXPECT_EQ(kvatlas_route_decode_cell(one), nullptr);
  EXPECT_EQ(kvatlas_route_decode_url(one), nullptr);
  kvatlas_route_free(one);

  leaf_.is_split = true;
  kvatlas_route* two = nullptr;
  ASSERT_EQ(kvatlas_frontend_route(embedded_, &c.request, &two, nullptr, 0), KVATLAS_OK);
  EXPECT_STREQ(kvatlas_route_worker(two), "near");
  ASSERT_NE(kvatlas_route_decode_worker(two), nullptr);
  const std::string decoder = kvatlas_route_decode_worker(two);
  EXPECT_STREQ(kvatlas_route_decode_cell(two), "c");
  EXPECT_STREQ(kvatlas_route_decode_url(two), "");
  EXPECT_EQ(kvatlas_route_decode_rank(two), 0u);
  kvatlas_route_report report;
  kvatlas_route_report_init(&report, sizeof(report));
  report.decode_unreachable = 1;
  ASSERT_EQ(kvatlas_frontend_report(embedded_, kvatlas_route_decision_id(two), &report),
            KVATLAS_OK);
  kvatlas_route_free(two);
  kvatlas_route* again = nullptr;
  ASSERT_EQ(kvatlas_frontend_route(embedded_, &c.request, &again, nullptr, 0), KVATLAS_OK);
  EXPECT_STREQ(kvatlas_route_worker(again), "near") << "nothing is held against who prefills";
  EXPECT_STRNE(kvatlas_route_decode_worker(again), decoder.c_str());
  kvatlas_route_free(again);
}

// Protobuf would refuse it in words of its own.
TEST_F(RouteTextTest, TextThatIsNoUtf8IsRefused) {
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "\xff\xfe";
  c.request.text_size = 2;
  const Answer answer = Embedded(c.request);
  EXPECT_EQ(answer.code, KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(answer.error, HasSubstr("UTF-8"));
}

// Of a program compiled before there was text.
TEST_F(RouteTextTest, AnOlderHeadersRequestHasNoText) {
  CRequest c;
  c.request.model = "bytes";
  const uint32_t tokens[] = {1, 2, 3, 4, 5};
  c.request.tokens = tokens;
  c.request.tokens_count = 5;
  c.request.text = "what lies behind an older struct is not looked at";
  c.request.text_size = 5;
  c.request.struct_size = offsetof(kvatlas_route_request, text);
  const Answer answer = Embedded(c.request);
  EXPECT_EQ(answer.code, KVATLAS_OK) << answer.error;
  EXPECT_EQ(answer.route["prompt_tokens"], 5);
}

TEST(RouteTextOptionsTest, WhatCannotBeIsNamed) {
  const char* leaf = "c=127.0.0.1:1";
  kvatlas_frontend_options options;
  kvatlas_frontend_options_init(&options, sizeof(options));
  options.leaves = &leaf;
  options.leaves_count = 1;
  kvatlas_frontend* frontend = nullptr;
  char error[256];
  const auto create = [&] {
    return kvatlas_frontend_create(&options, &frontend, error, sizeof(error));
  };
  options.models = "there=/is/nothing/there";
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(error, StartsWith("models: "));
  EXPECT_THAT(error, HasSubstr("there"));
  options.models = nullptr;
  options.prompt_threads = 0;
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  options.prompt_threads = 1;
  options.prompts_max = 0;
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  options.prompts_max = 1;
  options.schedule = "sometimes";
  EXPECT_EQ(create(), KVATLAS_INVALID_ARGUMENT);
  EXPECT_THAT(error, StartsWith("schedule: "));
  options.schedule = "early:7;every:16";
  ASSERT_EQ(create(), KVATLAS_OK) << error;
  CRequest c;
  c.request.model = "bytes";
  c.request.text = "Hello";
  c.request.text_size = 5;
  kvatlas_route* route = nullptr;
  EXPECT_EQ(kvatlas_frontend_route(frontend, &c.request, &route, error, sizeof(error)),
            KVATLAS_NOT_FOUND);
  EXPECT_THAT(error, HasSubstr("no tokenizer for model \"bytes\""));
  EXPECT_EQ(route, nullptr);
  kvatlas_frontend_destroy(frontend);
}

}  // namespace
}  // namespace kvatlas
