// Is a request one connected trace, over all processes that it passes? A client's traceparent goes
// through the proxy, and beside it through gRPC and HTTP, to the hierarchy, the leaf and the
// engine; their spans arrive at a collector.
//
//   client ──▶ proxy, Route ─── route ─┬─ ask hierarchy ── FindCells     (kvatlas-hierarchy)
//                 │                    └─ ask leaf ─────── FindOverlaps  (kvatlas-leaf)
//                 └─ engine ──▶ its own spans, by the traceparent that it is sent

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/net/grpc_channel.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "tests/programs.h"
#include "tools/testing/servers/otlp_test_collector.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(90);
constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kClientSpan[] = "00f067aa0ba902b7";

std::string Traceparent(const char* flags = "01") {
  return absl::StrCat("00-", kTrace, "-", kClientSpan, "-", flags);
}

// The value of a header in a message as it came.
std::string HeaderIn(const std::string& message, const std::string& name) {
  const size_t at = message.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const size_t from = at + name.size() + 4;
  return message.substr(from, message.find("\r\n", from) - from);
}

class TracingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> traced = {"--otlp_endpoint=" + collector_.address(),
                                             "--trace_ratio=0"};
    Start({.name = "hierarchy", .kind = "hierarchy", .args = traced});
    Start({.name = "leaf", .kind = "leaf", .args = With(traced, "--parents={hierarchy:grpc}")});
    Start({.name = "worker",
           .kind = "engine",
           .args = {"--worker=w", "--leaf={leaf:grpc}", "--block_size=16"},
           .prefills = true});
    StartFrontend("frontend", traced);
  }

  void Start(const Program& program) {
    const absl::Status started = programs_.Start(program);
    ASSERT_TRUE(started.ok()) << started;
  }
  static std::vector<std::string> With(std::vector<std::string> args, const std::string& more) {
    args.push_back(more);
    return args;
  }
  // Returns when it has found the worker by way of the hierarchy and the leaf, and not only by
  // turns.
  void StartFrontend(const std::string& name, std::vector<std::string> args) {
    for (const std::string& arg :
         {std::string("--hierarchy={hierarchy:grpc}"), std::string("--block_size=16"),
          std::string("--proxy=127.0.0.1:0"), "--engines=w=" + engine_.url()})
      args.push_back(arg);
    Start({.name = name, .kind = "frontend", .args = args});
    std::string answer;
    ASSERT_TRUE(Await(
        [&] {
          answer = Proxy(name);
          return answer.starts_with("HTTP/1.1 200") &&
                 HeaderIn(answer, "x-kvatlas-fallback") == "none";
        },
        kLong))
        << answer;
  }

  // The proxy's answer to a completion of two blocks.
  std::string Proxy(const std::string& frontend, const std::string& traceparent = "") {
    std::string prompt = "1";
    for (int token = 2; token <= 32; ++token) absl::StrAppend(&prompt, ",", token);
    const std::string body = absl::StrCat(R"({"model":"mock","prompt":[)", prompt, "]}");
    TestSocket socket(*Address::Parse(programs_.Of(frontend).address("proxy")));
    const std::string header =
        traceparent.empty() ? "" : absl::StrCat("traceparent: ", traceparent, "\r\n");
    socket.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: proxy\r\n", header,
                             "Content-Type: application/json\r\nContent-Length: ", body.size(),
                             "\r\n\r\n", body));
    return socket.ReadMessage();
  }

  // Of the client's trace, as soon as there is one.
  std::optional<CollectedSpan> Span(const std::string& program, const std::string& name) {
    std::optional<CollectedSpan> found;
    Await(
        [&] {
          for (const CollectedSpan& one : collector_.Spans())
            if (one.program() == program && one.span.name() == name &&
                HexOf(one.span.trace_id()) == kTrace)
              found = one;
          return found.has_value();
        },
        kLong);
    EXPECT_TRUE(found.has_value()) << program << " sends no span " << name;
    return found;
  }

  // That `child` was made within one of the spans `name` of the frontend.
  void ExpectWithin(const std::optional<CollectedSpan>& child, const std::string& name) {
    ASSERT_TRUE(child.has_value());
    const auto within = [&] {
      for (const CollectedSpan& one : collector_.Spans())
        if (one.program() == "kvatlas-frontend" && one.span.name() == name &&
            one.span.span_id() == child->span.parent_span_id() &&
            one.span.trace_id() == child->span.trace_id())
          return true;
      return false;
    };
    EXPECT_TRUE(Await(within, kLong)) << child->span.name() << " is not within " << name;
  }

  OtlpTestCollector collector_;
  LastMessage engine_got_;
  TestEngine engine_{[this](TestSocket& connection) {
    while (engine_got_.ReadFrom(connection))
      connection.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  }};
  Programs programs_{"TracingTest"};
};

TEST_F(TracingTest, FromProxyToLeafToEngineItIsOneTrace) {
  EXPECT_TRUE(collector_.Spans().empty()) << "a request without a context, and a ratio of 0";
  ASSERT_TRUE(Proxy("frontend", Traceparent()).starts_with("HTTP/1.1 200"));
  const auto proxy = Span("kvatlas-frontend", "proxy");
  ASSERT_TRUE(proxy.has_value());
  EXPECT_EQ(HexOf(proxy->span.parent_span_id()), kClientSpan);
  ExpectWithin(Span("kvatlas-frontend", "route"), "proxy");
  ExpectWithin(Span("kvatlas-frontend", "ask hierarchy"), "route");
  ExpectWithin(Span("kvatlas-frontend", "ask leaf"), "route");
  ExpectWithin(Span("kvatlas-hierarchy", "FindCells"), "ask hierarchy");
  ExpectWithin(Span("kvatlas-leaf", "FindOverlaps"), "ask leaf");
  const auto engine = Span("kvatlas-frontend", "engine");
  ExpectWithin(engine, "proxy");
  EXPECT_EQ(HeaderIn(engine_got_.text(), "traceparent"),
            absl::StrCat("00-", kTrace, "-", HexOf(engine->span.span_id()), "-01"));
}

TEST_F(TracingTest, CallsOfGrpcAndHttpAreOfTheirCallersTraces) {
  const auto stub = v1::Frontend::NewStub(MakeChannel(programs_.Of("frontend").address("grpc")));
  v1::RouteRequest request;
  request.mutable_domain()->set_model("mock");
  for (uint64_t block : {1, 2}) request.add_sequence_hashes(block);
  grpc::ClientContext context;
  context.AddMetadata("traceparent", Traceparent());
  v1::RouteResponse response;
  ASSERT_TRUE(stub->Route(&context, request, &response).ok());
  const auto call = Span("kvatlas-frontend", "Route");
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(HexOf(call->span.parent_span_id()), kClientSpan);
  ExpectWithin(Span("kvatlas-leaf", "FindOverlaps"), "ask leaf");

  const std::string other = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-00f067aa0ba902b7-01";
  const std::string body = R"({"model":"mock","sequence_hashes":[1,2]})";
  TestSocket socket(*Address::Parse(programs_.Of("frontend").address("http")));
  socket.Send(absl::StrCat("POST /route HTTP/1.1\r\nHost: f\r\nTraceparent: ", other,
                           "\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  ASSERT_TRUE(socket.ReadMessage().starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(Await(
      [&] {
        for (const CollectedSpan& one : collector_.Spans())
          if (one.span.name() == "FindOverlaps" && HexOf(one.span.trace_id())[0] == 'a')
            return true;
        return false;
      },
      kLong));
}

TEST_F(TracingTest, ACallerThatIsNotSampledIsNotTracedAndItsContextGoesOn) {
  ASSERT_TRUE(Proxy("frontend", Traceparent("00")).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(HeaderIn(engine_got_.text(), "traceparent"), Traceparent("00"));
  // Its spans would have come before this one's.
  ASSERT_TRUE(Proxy("frontend", "00-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-00f067aa0ba902b7-01")
                  .starts_with("HTTP/1.1 200"));
  ASSERT_TRUE(Await([&] { return collector_.Find("proxy").has_value(); }, kLong));
  for (const CollectedSpan& one : collector_.Spans())
    EXPECT_NE(HexOf(one.span.trace_id()), kTrace) << one.span.name();
}

TEST_F(TracingTest, TracestateGoesOnWithItsTraceAlone) {
  const std::string state = "\r\ntracestate: vendor=1";
  for (const std::string& good : {Traceparent(), Traceparent("00")}) {
    ASSERT_TRUE(Proxy("frontend", good + state).starts_with("HTTP/1.1 200"));
    EXPECT_EQ(HeaderIn(engine_got_.text(), "tracestate"), "vendor=1");
  }
  ASSERT_TRUE(Proxy("frontend", "of no form" + state).starts_with("HTTP/1.1 200"));
  EXPECT_NE(HeaderIn(engine_got_.text(), "traceparent"), "of no form");
  EXPECT_EQ(HeaderIn(engine_got_.text(), "tracestate"), "");
}

TEST_F(TracingTest, WithoutACollectorTheClientsContextGoesOnToTheEngine) {
  StartFrontend("off", {});
  ASSERT_TRUE(Proxy("off", Traceparent()).starts_with("HTTP/1.1 200"));
  EXPECT_EQ(HeaderIn(engine_got_.text(), "traceparent"), Traceparent());
}

TEST_F(TracingTest, ADeadCollectorFailsNoRequest) {
  StartFrontend("dead", {"--otlp_endpoint={dead}", "--trace_ratio=1"});
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Proxy("dead").starts_with("HTTP/1.1 200"));
  EXPECT_NE(HeaderIn(engine_got_.text(), "traceparent"), "") << "every request is the root of one";
  const std::string dropped = "\nkvatlas_trace_spans_dropped_total{reason=\"not_taken\"} ";
  const auto counted = [&] {
    const std::string metrics = programs_.Get("dead", "/metrics");
    const size_t at = metrics.find(dropped);
    return at != std::string::npos && metrics[at + dropped.size()] != '0';
  };
  EXPECT_TRUE(Await(counted, kLong)) << programs_.Get("dead", "/metrics");
}

}  // namespace
}  // namespace kvatlas
