// Each gateway against a picker: the orders of messages of Envoy (Istio, Envoy Gateway, Envoy AI
// Gateway) and of agentgateway, in clear and over TLS.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAreArray;

constexpr size_t kPiece = 62000;

// A line for what a proxy hears; pieces of a body are one line.
class Heard {
 public:
  void Add(const ext_proc::ProcessingResponse& answer) {
    if (answer.has_immediate_response()) {
      Line("immediate " + std::to_string(answer.immediate_response().status().code()) + " " +
           HeaderIn(answer.immediate_response().headers(), kDroppedHeader));
    } else if (answer.has_request_headers()) {
      const std::string endpoint = HeadersEndpoint(answer);
      Line(endpoint.empty() ? "headers" : "headers " + endpoint);
    } else if (answer.has_request_body()) {
      AddBody("body", answer, answer.request_body());
    } else if (answer.has_request_trailers()) {
      Line("trailers");
    } else if (answer.has_response_headers()) {
      Line("response headers");
    } else if (answer.has_response_body()) {
      AddBody("response body", answer, answer.response_body());
    } else if (answer.has_response_trailers()) {
      Line("response trailers");
    }
  }
  void Line(std::string line) {
    Flush();
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> lines() {
    Flush();
    return lines_;
  }

 private:
  void AddBody(const std::string& what, const ext_proc::ProcessingResponse& answer,
               const ext_proc::BodyResponse& body) {
    if (!body.response().body_mutation().has_streamed_response())
      return Line(what + " " + EndpointIn(answer, body.response()));
    if (what_ != what) Flush();
    what_ = what;
    const ext_proc::StreamedBodyResponse piece = Streamed(body);
    EXPECT_LE(piece.body().size(), kBodyChunkMax);
    bytes_ += piece.body().size();
    ends_ |= piece.end_of_stream();
  }
  void Flush() {
    if (what_.empty()) return;
    lines_.push_back(what_ + " of " + std::to_string(bytes_) + (ends_ ? ", end" : ""));
    what_.clear();
    bytes_ = 0;
    ends_ = false;
  }

  std::vector<std::string> lines_;
  std::string what_;
  size_t bytes_ = 0;
  bool ends_ = false;
};

struct Sequence {
  const char* what;
  // The request, then the response of the engine, which a gateway has once it knows the endpoint.
  std::vector<ext_proc::ProcessingRequest> request;
  std::vector<ext_proc::ProcessingRequest> response;
  std::vector<std::string> hears;
};

std::string LongBody() {
  return R"({"model": "m", "prompt": [1, 2], "user": ")" + std::string(200000, 'x') + "\"}";
}

std::vector<ext_proc::ProcessingRequest> InPieces(const ext_proc::ProcessingRequest& headers,
                                                  const std::string& body, bool ends) {
  std::vector<ext_proc::ProcessingRequest> messages = {headers};
  for (size_t at = 0; at < body.size(); at += kPiece)
    messages.push_back(Body(body.substr(at, kPiece), ends && at + kPiece >= body.size()));
  return messages;
}

template <typename... More>
std::vector<ext_proc::ProcessingRequest> With(std::vector<ext_proc::ProcessingRequest> messages,
                                              const More&... more) {
  (messages.push_back(more), ...);
  return messages;
}

std::vector<Sequence> Sequences() {
  const std::string ids = kIds;
  const std::string of_ids = "body of " + std::to_string(ids.size());
  const std::string of_long = "body of " + std::to_string(LongBody().size());
  const auto duplex = [](ext_proc::ProcessingRequest message) {
    return Mode(ext_proc::FULL_DUPLEX_STREAMED, std::move(message));
  };
  const auto get = [](bool end) { return Request("GET", "/v1/models", end); };
  const std::vector<ext_proc::ProcessingRequest> whole = {
      Response("200", "application/json"), ResponseBody("{", false), ResponseBody("}", true)};
  const std::vector<std::string> hears_whole = {"response headers", "response body of 2, end"};
  const auto hears = [](std::vector<std::string> request,
                        const std::vector<std::string>& response) {
    request.insert(request.end(), response.begin(), response.end());
    return request;
  };
  return {
      {"Envoy: GET", {duplex(get(true))}, whole, hears({"headers 10.0.0.1:8000"}, hears_whole)},
      {"agentgateway: GET whose body ends later",
       {duplex(get(false)), Body("", true)},
       whole,
       hears({"headers 10.0.0.1:8000", "body of 0, end"}, hears_whole)},
      {"GET of an older Envoy, which does not say its modes",
       {get(true)},
       whole,
       hears({"headers 10.0.0.1:8000"}, hears_whole)},
      {"Envoy: a call in one piece",
       {duplex(Completion()), Body(ids, true)},
       whole,
       hears({"headers 10.0.0.1:8000", of_ids + ", end"}, hears_whole)},
      {"a call whose end comes by itself",
       {duplex(Completion()), Body(ids, false), Body("", true)},
       whole,
       hears({"headers 10.0.0.1:8000", of_ids + ", end"}, hears_whole)},
      {"a long body in pieces", InPieces(duplex(Completion()), LongBody(), true), whole,
       hears({"headers 10.0.0.1:8000", of_long + ", end"}, hears_whole)},
      {"Istio: trailers end the body, and the stream of events",
       With(InPieces(duplex(Completion()), LongBody(), false), RequestTrailers()),
       {Response("200", "text/event-stream"), ResponseBody("data: {}\n\n", false),
        ResponseBody("data: [DONE]\n\n", false), ResponseTrailers()},
       {"headers 10.0.0.1:8000", of_long, "trailers", "response headers", "response body of 24",
        "response trailers"}},
      {"Envoy 1.35.13, 1.36.9, 1.37.5: the last piece twice",
       With(InPieces(duplex(Completion()), LongBody(), true), Body("x", true), Body("", true)),
       whole, hears({"headers 10.0.0.1:8000", of_long + ", end"}, hears_whole)},
      {"the same, of a call that passes unread",
       {duplex(Request("PUT", "/v1/files")), Body("abc", true), Body("c", true)},
       whole,
       hears({"headers 10.0.0.1:8000", "body of 3, end"}, hears_whole)},
      {"a proxy that buffers",
       {Mode(ext_proc::BUFFERED, Completion()), Body(ids, true)},
       {Response("200", "application/json"), ResponseBody("{}", true)},
       {"headers", "body 10.0.0.1:8000", "response headers", "response body "}},
      {"Istio: a subset by addresses",
       {Subset({"10.0.0.2"}, duplex(Completion())), Body(ids, true)},
       whole,
       hears({"headers 10.0.0.2:8000", of_ids + ", end"}, hears_whole)},
      {"a subset of others",
       {Subset({"192.0.2.9:8000"}, duplex(Completion())), Body(ids, true)},
       {},
       {"immediate 503 rejected-no-endpoints"}},
      {"a subset of others, GET",
       {Subset({"192.0.2.9:8000"}, duplex(get(true)))},
       {},
       {"immediate 503 rejected-no-endpoints"}},
      {"an engine that answers without a body",
       {duplex(Completion()), Body(ids, true)},
       {Response("204", "application/json", true)},
       {"headers 10.0.0.1:8000", of_ids + ", end", "response headers"}},
  };
}

class ExtProcGatewaysTest : public ExtProcServiceTest,
                            public ::testing::WithParamInterface<PortTls> {
 protected:
  ExtProcGatewaysTest() { tls_ = GetParam(); }
};

TEST_P(ExtProcGatewaysTest, EachOrderOfMessagesIsAnswered) {
  for (const Sequence& sequence : Sequences()) {
    SCOPED_TRACE(sequence.what);
    Stream stream = Open();
    Heard heard;
    const bool buffers =
        sequence.request.front().protocol_config().request_body_mode() == ext_proc::BUFFERED;
    for (const ext_proc::ProcessingRequest& message : sequence.request) {
      stream.Write(message);
      if (buffers) heard.Add(stream.Read());
    }
    // A gateway knows by the end of the body, or trailers, that the request is whole.
    const auto whole = [](const ext_proc::ProcessingResponse& answer, bool no_body) {
      return answer.has_immediate_response() || answer.has_request_trailers() ||
             (answer.has_request_headers() && no_body) ||
             (answer.has_request_body() && Streamed(answer.request_body()).end_of_stream());
    };
    const bool no_body = sequence.request.size() == 1;
    bool refused = false;
    for (bool last = buffers; !last;) {
      const ext_proc::ProcessingResponse answer = stream.Read();
      heard.Add(answer);
      last = whole(answer, no_body);
      refused = answer.has_immediate_response();
    }
    for (const ext_proc::ProcessingRequest& message : sequence.response) {
      stream.Write(message);
      heard.Add(stream.Read());
    }
    EXPECT_TRUE((refused ? stream.End() : stream.Finish()).ok());
    EXPECT_THAT(heard.lines(), ElementsAreArray(sequence.hears));
    reports_.AllEnded();
    // Turns begin with the first endpoint.
    while (endpoints_.Next() != "10.0.0.2:8000") {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Port, ExtProcGatewaysTest,
                         ::testing::Values(PortTls::kOfProcess, PortTls::kOwn),
                         [](const ::testing::TestParamInfo<PortTls>& info) {
                           return info.param == PortTls::kOwn ? "Tls" : "Clear";
                         });

}  // namespace
}  // namespace kvatlas
