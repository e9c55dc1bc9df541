// What is secret is nowhere to be seen; certificates that openssl made work, and so do Debian's
// clients.

#include <dirent.h>
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/base/await.h"
#include "indexer/security/secret_file.h"
#include "indexer/security/tokens.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tests/security_test_util.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class SecurityClientsTest : public SecurityTest {
 protected:
  // Places that people look at, and what is there: logs and audit logs, command lines and
  // environments, answers over HTTP.
  std::map<std::string, std::string> WhatIsShown() {
    std::map<std::string, std::string> shown;
    for (const auto& entry : std::filesystem::directory_iterator(cluster_->logs())) {
      if (entry.is_regular_file()) shown[entry.path()] = TextOf(entry.path());
    }
    for (const auto& [name, pid] : cluster_->Running()) {
      for (const char* const file : {"cmdline", "environ"})
        shown[name + "'s " + file] = TextOf(absl::StrCat("/proc/", pid, "/", file));
    }
    for (const char* const process : {"leaf-0", "hierarchy", "frontend"}) {
      for (const char* const path : {"/status", "/metrics", "/workers", "/diagnosis", "/decisions",
                                     "/peers", "/v1/models", "/version"}) {
        shown[absl::StrCat(process, path)] =
            Curl("operator/o", cluster_->address(process, "http"), path);
      }
    }
    return shown;
  }
};

TEST_F(SecurityClientsTest, NoSecretAndNoPromptIsShownAnywhere) {
  const std::string folder = testing::TempDir() + "/secrets";
  ASSERT_TRUE(std::filesystem::create_directories(folder));
  const std::string token = NewBearerToken();
  const std::string wrong_token = "wrong-token-canary-7c1f";
  const std::string salt = "salt-canary-90ab12cd34ef";
  const std::string prompt = "prompt canary zebra 5171";
  ASSERT_TRUE(WriteFileByRename(folder + "/tokens",
                                absl::StrCat("sha256:", TokenHash(token), " gateway/g tenant=x\n"),
                                0600)
                  .ok());
  ASSERT_TRUE(WriteFileByRename(folder + "/salt", salt, 0600).ok());
  ClusterOptions options;
  options.cells = 1;
  options.workers = 1;
  options.capacity = 400;
  options.frontend_args = {"--access_tokens=" + folder + "/tokens"};
  StartCluster(std::move(options));
  WritePolicy("[]", kRules,
              R"(, "tenants": {"x": {"salt": "@)" + folder + R"(/salt", "pool": ""}})");
  AwaitReloads(1);
  // Prompts as text, chat, tokens: routed or refused, over gRPC and HTTP, with tokens right and
  // wrong.
  const std::string http = cluster_->address("frontend", "http");
  for (const std::string& bearer : {token, wrong_token}) {
    const std::string header =
        " -H 'content-type: application/json' -H 'authorization: Bearer " + bearer + "' ";
    for (const std::string& body :
         {absl::StrCat("{\"model\":\"mock\",\"text\":\"", prompt, "\"}"),
          absl::StrCat("{\"model\":\"mock\",\"prompt\":\"", prompt, "\"}"),
          absl::StrCat("{\"model\":\"mock\",\"messages\":[{\"role\":\"user\",\"content\":\"",
                       prompt, "\"}]}"),
          absl::StrCat("{\"model\":\"mock\",\"tokens\":[51719876,51719877],\"", prompt, "\":1"),
          std::string(R"({"model":"mock","tokens":[51719876,51719877,51719878]})")}) {
      for (const char* const path : {"/route", "/v1/completions", "/v1/chat/completions"})
        Curl("", http, path, header + "-d '" + body + "'");
    }
  }
  auto frontend = v1::Frontend::NewStub(ChannelAs("gateway/g", cluster_->frontend()));
  for (const bool as_text : {true, false}) {
    v1::RouteRequest request;
    request.mutable_domain()->set_model("mock");
    if (as_text) {
      request.mutable_text()->set_text(prompt);
    } else {
      for (uint32_t i = 0; i < 2 * kTokensPerHashId; ++i)
        request.mutable_tokens()->add_ids(51719876 + i);
    }
    v1::RouteResponse answer;
    grpc::ClientContext context;
    (void)frontend->Route(&context, request, &answer);
  }
  // A refusal of each process is in its audit log by now.
  ASSERT_TRUE(Await(
      [&] { return AuditOf("frontend-frontend").find("\"allowed\":false") != std::string::npos; },
      kLong));
  std::map<std::string, std::string> canaries = {
      {"a token", token},   {"a wrong token", wrong_token},       {"a salt", salt},
      {"a prompt", prompt}, {"a part of a prompt", "zebra 5171"}, {"a token id", "51719876"}};
  for (const auto& entry : std::filesystem::directory_iterator(cluster_->logs() + "/pki")) {
    if (entry.path().extension() != ".key") continue;
    const std::vector<std::string> lines = absl::StrSplit(TextOf(entry.path()), '\n');
    ASSERT_GT(lines.size(), 3u);
    canaries["the key " + entry.path().string()] = lines[1];
  }
  EXPECT_GT(canaries.size(), 8u);
  const std::map<std::string, std::string> shown = WhatIsShown();
  EXPECT_THAT(shown.at("leaf-0/status"), HasSubstr("\"cell\""));
  for (const auto& [what, canary] : canaries) {
    for (const auto& [where, text] : shown) {
      EXPECT_EQ(text.find(canary), std::string::npos) << what << " is in " << where;
    }
  }
}

// A root, an intermediate that issues, a leaf's and an operator's certificate: by the commands that
// a reader of openssl's manual writes.
constexpr char kOpenssl[] = R"(
set -e
cd "$1"
san() { printf 'subjectAltName=URI:spiffe://cluster.local/kvatlas/%s,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$1"; }
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj '/CN=root' -keyout root.key -out root.pem
openssl req -new -newkey rsa:2048 -nodes -subj '/CN=intermediate' -keyout mid.key -out mid.csr
printf 'basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\n' > mid.ext
openssl x509 -req -in mid.csr -CA root.pem -CAkey root.key -CAcreateserial -days 2 -extfile mid.ext -out mid.pem
for who in leaf/cell-0/- operator/by-openssl; do
  name=$(echo $who | tr / -)
  san $who > $name.ext
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout $name.key -out $name.csr
  openssl x509 -req -in $name.csr -CA mid.pem -CAkey mid.key -CAcreateserial -days 2 -extfile $name.ext -out $name.alone.pem
  cat $name.alone.pem mid.pem > $name.pem
done
chmod 600 *.key
)";

TEST_F(SecurityClientsTest, AChainThatOpensslMadeWorksWithCurlOverHttpAndGrpc) {
  const std::string folder = testing::TempDir() + "/openssl";
  ASSERT_TRUE(std::filesystem::create_directories(folder));
  ASSERT_TRUE(WriteFileByRename(folder + "/make", kOpenssl, 0600).ok());
  const std::string said = OutputOf("bash " + folder + "/make " + folder + " 2>&1");
  ASSERT_TRUE(std::filesystem::exists(folder + "/operator-by-openssl.pem")) << said;
  StartCluster(1, 1);
  // The leaf serves with it, and takes clients of it.
  const std::string pki = cluster_->logs() + "/pki/";
  ASSERT_TRUE(
      WriteFileByRename(pki + "ca.pem", TextOf(pki + "ca.pem") + TextOf(folder + "/root.pem"), 0600)
          .ok());
  for (const char* const file : {"leaf-cell-0--.key", "leaf-cell-0--.pem"})
    ASSERT_TRUE(WriteFileByRename(pki + file, TextOf(folder + "/" + file), 0600).ok());
  const auto curl = [&](const std::string& certificate, const std::string& more,
                        const std::string& url) {
    return OutputOf(absl::StrCat("curl -s -m 60 --cacert ", folder, "/root.pem --cert ", folder,
                                 "/", certificate, " --key ", folder, "/operator-by-openssl.key ",
                                 more, " 'https://", url, "' 2>&1"));
  };
  const std::string status = "-o /dev/null -w '%{http_code}'";
  const std::string http = cluster_->address("leaf-0", "http") + "/status";
  EXPECT_TRUE(Await([&] { return curl("operator-by-openssl.pem", status, http) == "200"; }, kLong))
      << curl("operator-by-openssl.pem", "-v", http);
  // Without its intermediate there is no chain to the root.
  EXPECT_NE(curl("operator-by-openssl.alone.pem", status, http), "200");
  // gRPC as any client of HTTP/2 speaks it: a frame with an empty message, the status in the
  // trailers.
  ASSERT_TRUE(WriteFileByRename(folder + "/frame", std::string(5, '\0'), 0600).ok());
  const auto grpc = [&](const std::string& method) {
    return curl("operator-by-openssl.pem",
                absl::StrCat(
                    "-v -o /dev/null --http2 -H 'content-type: application/grpc' -H 'te: trailers' "
                    "--data-binary @",
                    folder, "/frame"),
                cluster_->leaf(0) + method);
  };
  EXPECT_TRUE(Await(
      [&] { return grpc("/kvatlas.v1.Leaf/Stats").find("grpc-status: 0") != std::string::npos; },
      kLong))
      << grpc("/kvatlas.v1.Leaf/Stats");
  // gRPC resets the stream behind its answer, and curl may see that first: it prints no header
  // then.
  EXPECT_TRUE(Await(
      [&] {
        return grpc("/kvatlas.v1.Leaf/NoSuchMethod").find("grpc-status: 12") != std::string::npos;
      },
      kLong))
      << grpc("/kvatlas.v1.Leaf/NoSuchMethod");
  // And our own client.
  files_["operator/by-openssl"] = {.certificate = folder + "/operator-by-openssl.pem",
                                   .key = folder + "/operator-by-openssl.key",
                                   .ca = folder + "/root.pem"};
  auto leaf = v1::Leaf::NewStub(ChannelAs("operator/by-openssl", cluster_->leaf(0)));
  v1::StatsResponse answer;
  grpc::ClientContext context;
  const grpc::Status stats = leaf->Stats(&context, {}, &answer);
  EXPECT_TRUE(stats.ok()) << stats.error_message();
  EXPECT_EQ(answer.cell(), "cell-0");
}

}  // namespace
}  // namespace kvatlas
