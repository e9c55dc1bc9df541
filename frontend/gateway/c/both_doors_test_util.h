// The C interface and the service's gRPC before one leaf: what is asked at both doors must be
// answered alike.

#ifndef KVATLAS_FRONTEND_GATEWAY_C_BOTH_DOORS_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_C_BOTH_DOORS_TEST_UTIL_H_

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

#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/gateway/c/kvatlas_frontend.h"
#include "frontend/gateway/frontend_service.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/local_tokenizer.h"
#include "frontend/prompt/text/model_registry.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/telemetry/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"

namespace kvatlas {

inline constexpr char kTestModels[] =
    "bytes=frontend/prompt/text/testdata/bytes,pirate=bytes,unigram=frontend/prompt/text/testdata/"
    "unigram";

// Three workers, of which "near" has the first block of whatever it is asked for.
class NearLeaf : public v1::Leaf::Service {
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

// The answer, without the fields that differ from call to call.
struct RouteAnswer {
  int32_t code = 0;
  std::string error = {};
  nlohmann::json route = {};

  bool operator==(const RouteAnswer&) const = default;
};
inline void PrintTo(const RouteAnswer& answer, std::ostream* out) {
  *out << answer.code << " " << answer.error << " " << answer.route.dump(1);
}

inline void DropTimes(nlohmann::json& json) {
  if (json.is_object()) {
    for (const char* name : {"us", "find_cells_us", "find_overlaps_us", "total_us", "queued_us",
                             "age_ms", "decision_id"})
      json.erase(name);
  }
  for (nlohmann::json& part : json) {
    if (part.is_structured()) DropTimes(part);
  }
}

inline nlohmann::json Parsed(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text);
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

  RouteAnswer FromGrpc(
      const std::function<grpc::Status(grpc::ClientContext*, v1::RouteResponse*)>& call) {
    grpc::ClientContext context;
    v1::RouteResponse response;
    const grpc::Status status = call(&context, &response);
    RouteAnswer answer{.code = status.error_code(), .error = status.error_message()};
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
  RouteAnswer Service(const v1::RouteRequest& request) {
    return FromGrpc([&](grpc::ClientContext* context, v1::RouteResponse* response) {
      return stub_->Route(context, request, response);
    });
  }
  RouteAnswer Service(const v1::RouteChatRequest& request) {
    return FromGrpc([&](grpc::ClientContext* context, v1::RouteResponse* response) {
      return stub_->RouteChat(context, request, response);
    });
  }

  RouteAnswer Taken(int32_t code, const std::string& error, kvatlas_route* route) {
    RouteAnswer answer{.code = code, .error = error};
    if (route == nullptr) return answer;
    answer.route = Parsed(kvatlas_route_receipt_json(route));
    EXPECT_EQ(answer.route["prompt_tokens"], kvatlas_route_prompt_tokens(route));
    EXPECT_EQ(answer.route["tokenizer"], kvatlas_route_tokenizer(route));
    size_t count = 1;
    const uint32_t* tokens = kvatlas_route_tokens(route, &count);
    EXPECT_EQ(tokens == nullptr, count == 0);
    EXPECT_EQ(answer.route["tokens"],
              nlohmann::json(std::vector<uint32_t>(tokens, tokens + count)));
    kvatlas_route_report report;
    kvatlas_route_report_init(&report, sizeof(report));
    report.abandoned = 1;
    EXPECT_EQ(kvatlas_frontend_report(embedded_, kvatlas_route_decision_id(route), &report),
              KVATLAS_OK);
    kvatlas_route_free(route);
    return answer;
  }
  RouteAnswer Embedded(const kvatlas_route_request& request) {
    kvatlas_route* route = nullptr;
    char error[1024];
    const int32_t code = kvatlas_frontend_route(embedded_, &request, &route, error, sizeof(error));
    return Taken(code, error, route);
  }
  // The same by callback.
  RouteAnswer EmbeddedLater(const kvatlas_route_request& request) {
    struct Waiting {
      RouteTextTest* test;
      std::promise<RouteAnswer> answer;
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
  RouteAnswer Body(const std::string& body, const std::string& session = "") {
    v1::RouteChatRequest request;
    request.set_body(body);
    request.set_session_id(session);
    request.set_return_tokens(true);
    const RouteAnswer expected = Service(request);
    CRequest c;
    c.request.body = body.data();
    c.request.body_size = body.size();
    c.request.session_id = session.c_str();
    c.request.return_tokens = 1;
    const RouteAnswer embedded = Embedded(c.request);
    EXPECT_EQ(embedded, expected) << body;
    EXPECT_EQ(EmbeddedLater(c.request), Service(request)) << body;  // both remember the first
    return embedded;
  }
  RouteAnswer Text(const std::string& model, const std::string& text, int add_special_tokens = -1) {
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
    const RouteAnswer embedded = Embedded(c.request);
    EXPECT_EQ(embedded, Service(request)) << model << " " << text;
    return embedded;
  }
  RouteAnswer Chat(const std::string& messages, const std::string& tools = "",
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
    const RouteAnswer embedded = Embedded(c.request);
    EXPECT_EQ(embedded, Service(request)) << messages;
    return embedded;
  }

  kvatlas_frontend* embedded_ = nullptr;
  NearLeaf leaf_;

 private:
  void StartService(const std::string& leaf) {
    overlap_finder_.Connect(leaf);
    FrontendOptions options;
    options.leaves = {{.cell = "c", .address = leaf}};
    options.deadline = std::chrono::seconds(60);
    frontend_ =
        std::make_unique<Frontend>(options, &cell_finder_, &overlap_finder_, &Clock::Real());
    auto models = ParseModels(kTestModels);
    ASSERT_TRUE(models.ok()) << models.status();
    auto registry = ModelRegistry::Create(*std::move(models));
    ASSERT_TRUE(registry.ok()) << registry.status();
    models_ = *std::move(registry);
    tokenizer_ = std::make_unique<LocalTokenizer>(models_.get(), LocalTokenizerOptions());
    router_ = std::make_unique<PromptRouter>(
        PromptRouterOptions{.tokenize_deadline = std::chrono::seconds(60)}, frontend_.get(),
        tokenizer_.get());
    service_ = std::make_unique<FrontendService>(frontend_.get(), &metrics_, router_.get());
    server_.Register(service_.get());
    ASSERT_TRUE(server_.Start().ok());
    stub_ = v1::Frontend::NewStub(
        MakeChannel(server_.address().ToString(), {.connect_timeout = std::chrono::minutes(1)}));
  }
  void StartEmbedded(const std::string& leaf) {
    kvatlas_frontend_options options;
    kvatlas_frontend_options_init(&options, sizeof(options));
    const char* leaves[] = {leaf.c_str()};
    options.leaves = leaves;
    options.leaves_count = 1;
    options.deadline_us = 60'000'000;
    options.models = kTestModels;
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

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_C_BOTH_DOORS_TEST_UTIL_H_
