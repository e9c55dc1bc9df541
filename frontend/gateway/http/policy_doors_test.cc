// A policy at every door: identities × tenants × models × calls, through the proxy by TLS and
// through the calls that gRPC and HTTP share. What is expected follows from the rules alone, so
// that a door that forgets one of them differs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "frontend/gateway/grpc/route_calls.h"
#include "frontend/gateway/http/proxy_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/mutex.h"
#include "indexer/security/security.h"
#include "indexer/security/security_test_folder.h"
#include "indexer/security/tokens.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Caller {
  std::string name;
  std::vector<std::string> tenants;
  std::vector<std::string> models;  // empty: all
};

// As the policy below has them.
const std::vector<Caller>& Callers() {
  static const auto* const callers = new std::vector<Caller>{{"small", {""}, {"small"}},
                                                             {"any", {"", "salted"}, {}},
                                                             {"salted", {"salted"}, {"small"}},
                                                             {"open", {"open"}, {}}};
  return *callers;
}

constexpr const char* kModels[] = {"small", "large"};
constexpr const char* kTenants[] = {"", "salted", "open"};

bool Contains(const std::vector<std::string>& all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

// The tenant of a request: an identity that has one need not name it.
std::string TenantOf(const Caller& caller, const std::string& claimed) {
  return claimed.empty() && caller.tenants.size() == 1 ? caller.tenants[0] : claimed;
}

bool Allowed(const Caller& caller, const std::string& claimed, const std::string& model) {
  return Contains(caller.tenants, TenantOf(caller, claimed)) &&
         (caller.models.empty() || Contains(caller.models, model));
}

enum class Salt { kCarried, kNotNeeded, kImpossible };

struct Call {
  const char* path;
  Salt salt;
};

constexpr Call kCalls[] = {{"/v1/chat/completions", Salt::kCarried},
                           {"/v1/completions", Salt::kCarried},
                           {"/v1/responses", Salt::kCarried},
                           {"/inference/v1/generate", Salt::kCarried},
                           {"/v1/messages", Salt::kImpossible},
                           {"/generate", Salt::kImpossible},
                           {"/v1/embeddings", Salt::kImpossible},
                           {"/v1/score", Salt::kImpossible},
                           {"/v1/chat/completions/batch", Salt::kImpossible},
                           {"/cohere/v2/chat", Salt::kImpossible},
                           {"/tokenize", Salt::kNotNeeded},
                           {"/v1/responses/render", Salt::kNotNeeded},
                           {"/v1/messages/count_tokens", Salt::kNotNeeded}};

// Everything that it got, for the thread of the test.
class Messages {
 public:
  TestEngine::Serve serve() {
    return [this](TestSocket& connection) {
      for (std::string message; !(message = connection.ReadMessage()).empty();) {
        {
          MutexLock lock(&mutex_);
          messages_.push_back(std::move(message));
        }
        connection.Send(kOk);
      }
    };
  }
  std::vector<std::string> all() {
    MutexLock lock(&mutex_);
    return messages_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mutex_);
};

class PolicyDoorsTest : public ProxyTest {
 protected:
  PolicyDoorsTest() {
    const std::string tokens = folder_.path() + "/tokens";
    std::ofstream out(tokens);
    for (const Caller& caller : Callers())
      out << "sha256:" << TokenHash(caller.name + "-token") << " gateway/" << caller.name
          << " name=" << caller.name << "\n";
    out.close();
    SecurityOptions options = folder_.ServerOf(folder_.Issue("leaf/a/0"));
    options.tokens.tokens = tokens;
    Security::SetOfProcess(SecurityTestFolder::Start(options));
    Start({engine_.url()});
  }
  ~PolicyDoorsTest() override {
    proxy_->Stop();
    Security::SetOfProcess(Security::Open());
  }

  // One more request in curl's file of them.
  void Add(const Caller& caller, const std::string& tenant, const std::string& path,
           const std::string& type, const std::string& body) {
    const std::string file = absl::StrCat(folder_.path(), "/body-", ++bodies_);
    std::ofstream(file) << body;
    absl::StrAppend(&requests_, requests_.empty() ? "" : "next\n", "silent\ncacert=\"",
                    folder_.pki().ca_path(),
                    "\"\noutput=\"/dev/null\"\nwrite-out=\"%{http_code}\\n\"",
                    "\nurl=\"https://127.0.0.1:", proxy_->address().port, path,
                    "\"\nheader=\"Authorization: Bearer ", caller.name,
                    "-token\"\nheader=\"Content-Type: ", type, "\"\ndata-binary=\"@", file, "\"\n");
    if (!tenant.empty()) absl::StrAppend(&requests_, "header=\"x-kvatlas-tenant: ", tenant, "\"\n");
  }

  // Their answers' statuses, in order.
  std::vector<std::string> Send() {
    const std::string file = folder_.path() + "/requests";
    std::ofstream(file) << requests_;
    std::vector<std::string> statuses =
        absl::StrSplit(folder_.Curl("-K " + file, ""), '\n', absl::SkipEmpty());
    return statuses;
  }

  static std::string BodyFor(const std::string& tenant, const std::string& model) {
    return absl::StrCat(
        R"({"model":")", model, R"(","user":"of )", tenant,
        R"(","messages":[],"prompt":"x","text":"x","input":"x","token_ids":[1,2,3]})");
  }

  const std::string salt_ = SecurityTestFolder::SaltFile();
  const SecurityTestFolder folder_{absl::StrCat(R"("rules": [
      {"identity": "gateway/small", "allow": ["route"], "models": ["small"], "tenants": [""]},
      {"identity": "gateway/any", "allow": ["route"], "tenants": ["", "salted"]},
      {"identity": "gateway/salted", "allow": ["route"], "models": ["small"], "tenants": ["salted"]},
      {"identity": "gateway/open", "allow": ["route"], "tenants": ["open"]}],
    "tenants": {"salted": {"salt": "@)",
                                                salt_, R"(", "pool": ""},
                "open": {"salt": "@)",
                                                salt_,
                                                R"(", "pool": "", "public_prefixes": true}})")};
  Messages got_;
  TestEngine engine_{got_.serve()};
  std::string requests_;
  int bodies_ = 0;
};

TEST_F(PolicyDoorsTest, TheProxyAsksForModelTenantAndSalt) {
  std::vector<std::string> expected, cases;
  for (const Caller& caller : Callers()) {
    for (const std::string tenant : kTenants) {
      for (const std::string model : kModels) {
        for (const Call& call : kCalls) {
          const std::string of = TenantOf(caller, tenant);
          Add(caller, tenant, call.path, "application/json", BodyFor(of, model));
          const bool unsalted = call.salt == Salt::kImpossible && of == "salted";
          expected.push_back(!Contains(caller.tenants, of) ? "403"
                             : unsalted                    ? "409"
                             : !Allowed(caller, of, model) ? "403"
                                                           : "200");
          cases.push_back(
              absl::StrCat(caller.name, " as \"", tenant, "\" ", model, " ", call.path));
        }
      }
    }
  }
  const std::vector<std::string> statuses = Send();
  ASSERT_EQ(statuses.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(statuses[i], expected[i]) << cases[i];
  // Whatever the answers say: none of a salted tenant's prompts has reached an engine without a
  // salt.
  for (const std::string& message : got_.all()) {
    const bool salted = absl::StrContains(message, "\"of salted\"");
    const std::string head = message.substr(0, message.find("\r\n"));
    const bool blocks = !absl::StrContains(head, "token") && !absl::StrContains(head, "render");
    if (salted && blocks) {
      EXPECT_THAT(message, HasSubstr("\"cache_salt\":\""));
    } else {
      EXPECT_THAT(message, Not(HasSubstr("\"cache_salt\""))) << head;
    }
  }
  EXPECT_THAT(folder_.Audit(), HasSubstr("model=large"));
}

// For each key a search among those before is some 10^10 steps, for which the connections of its
// thread would wait.
TEST_F(PolicyDoorsTest, ALongBodyOfManyKeysIsSaltedAndReachesItsEngine) {
  std::string body = BodyFor("salted", "small");
  body.pop_back();
  for (int i = 0; i < 100'000; ++i) absl::StrAppend(&body, ",\"k", i, "\":1");
  Add(Callers()[2], "", "/v1/chat/completions", "application/json", body + "}");
  Add(Callers()[2], "", "/v1/chat/completions", "application/json", body);  // cut off
  EXPECT_THAT(Send(), testing::ElementsAre("200", "400"));
  ASSERT_EQ(got_.all().size(), 1u);
  EXPECT_THAT(got_.all()[0].substr(0, 1000), HasSubstr("\r\n\r\n{\"cache_salt\":\""));
}

TEST_F(PolicyDoorsTest, AModelThatIsNotReadNeedsARuleForAll) {
  const std::string form = "multipart/form-data; boundary=b";
  const auto field = [](const std::string& name, const std::string& value) {
    return absl::StrCat("--b\r\nContent-Disposition: form-data; name=\"", name, "\"\r\n\r\n", value,
                        "\r\n");
  };
  const std::string none = (field("x", "y") + "--b--\r\n");
  const std::string small = (field("model", "small") + "--b--\r\n");
  const std::string both = (field("model", "small") + field("model", "large") + "--b--\r\n");
  std::string wide;  // UTF-16
  for (char c : BodyFor("", "large")) wide += std::string{c, '\0'};
  const char* const path = "/v1/audio/transcriptions";
  for (const Caller& caller : {Callers()[0], Callers()[1]}) {
    Add(caller, "", path, form, none);
    Add(caller, "", path, form, small);
    Add(caller, "", path, form, both);
    Add(caller, "", "/v1/chat/completions", "application/json", wide);
    Add(caller, "", "/v1/embeddings", "application/json", wide);
  }
  EXPECT_THAT(Send(), testing::ElementsAre("403", "200", "403", "400", "400",  //
                                           "200", "200", "200", "400", "400"));
  EXPECT_THAT(folder_.Audit(), HasSubstr("(not read)"));
}

TEST_F(PolicyDoorsTest, GrpcAndHttpRoutesAskForModelTenantAndSalt) {
  const RouteCalls calls(
      frontend_.get(), router_.get(), [](const absl::StatusOr<RouteResult>&) {}, [] {});
  using Ask = std::function<void(const std::string& tenant, const std::string& model,
                                 RouteCalls::Callback, const RouteCalls::Asker&)>;
  const auto route = [&](auto fill) -> Ask {
    return [&calls, fill](const std::string& tenant, const std::string& model,
                          RouteCalls::Callback callback, const RouteCalls::Asker& asker) {
      v1::RouteRequest request;
      request.mutable_domain()->set_model(model);
      request.mutable_domain()->set_tenant(tenant);
      fill(&request);
      calls.Ask(request, std::chrono::minutes(1), std::move(callback), asker);
    };
  };
  const auto body = [&](RequestPath path) -> Ask {
    return [&calls, path](const std::string& tenant, const std::string& model,
                          RouteCalls::Callback callback, const RouteCalls::Asker& asker) {
      PromptQuestion question;
      question.input.domain.tenant = tenant;
      calls.AskBody(path, std::make_shared<const std::string>(BodyFor(tenant, model)),
                    std::move(question), std::move(callback), asker);
    };
  };
  const std::vector<std::pair<std::string, Ask>> doors = {
      {"tokens", route([](v1::RouteRequest* request) {
         for (uint32_t id = 1; id < 9; ++id) request->mutable_tokens()->add_ids(id);
       })},
      {"text", route([](v1::RouteRequest* request) { request->mutable_text()->set_text("x"); })},
      {"hashes", route([](v1::RouteRequest* request) { request->add_sequence_hashes(7); })},
      {"RouteChat",
       [&](const std::string& tenant, const std::string& model, RouteCalls::Callback callback,
           const RouteCalls::Asker& asker) {
         v1::RouteChatRequest request;
         request.set_tenant(tenant);
         request.set_body(BodyFor(tenant, model));
         calls.Ask(request, std::chrono::minutes(1), std::move(callback), asker);
       }},
      {"/route/chat", body(RequestPath::kChat)},
      {"/route/completion", body(RequestPath::kCompletions)}};
  for (const Caller& caller : Callers()) {
    const auto asker =
        std::make_shared<const Identity>(*ParseIdentity(absl::StrCat("gateway/", caller.name)));
    for (const std::string tenant : kTenants) {
      for (const std::string model : kModels) {
        for (const auto& [name, ask] : doors) {
          Gate answered;
          absl::Status status;
          ask(
              tenant, model,
              [&](absl::StatusOr<v1::RouteResponse> answer) {
                status = answer.status();
                answered.Open();
              },
              asker);
          answered.Wait();
          const std::string which =
              absl::StrCat(caller.name, " as \"", tenant, "\" ", model, " by ", name);
          const bool allowed = Allowed(caller, tenant, model);
          EXPECT_EQ(absl::IsPermissionDenied(status), !allowed) << which << ": " << status;
          const bool unsalted = name == "hashes" && TenantOf(caller, tenant) == "salted";
          EXPECT_EQ(absl::IsFailedPrecondition(status), allowed && unsalted) << which;
        }
      }
    }
  }
  EXPECT_THAT(folder_.Audit(), HasSubstr("model=large"));
}

}  // namespace
}  // namespace kvatlas
