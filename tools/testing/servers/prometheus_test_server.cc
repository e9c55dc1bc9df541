#include "tools/testing/servers/prometheus_test_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kStartTimeout(60);
constexpr int kPortsTried = 20;
constexpr char kHost[] = "127.0.0.1";

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "prometheus for tests: %s\n", why.c_str());
  std::abort();
}

// Free now; Prometheus ends when something takes it in between, and another one is tried.
uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

std::string PercentEncoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return encoded;
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) Die("cannot write " + path);
}

}  // namespace

PrometheusTestServer::PrometheusTestServer(PrometheusOptions options)
    : options_(std::move(options)) {
  const char* root = std::getenv("TEST_TMPDIR");
  directory_ = std::string(root == nullptr ? "/tmp" : root) + "/prometheus.XXXXXX";
  if (mkdtemp(directory_.data()) == nullptr) Die("cannot make " + directory_);
  WriteConfig();
  for (int i = 0; i < kPortsTried; ++i) {
    Start();
    if (Await([this] { return pid_ == 0 || Ready(); }, kStartTimeout) && pid_ != 0) return;
  }
  Die("does not start; is it installed (tools/install)? See " + directory_ + "/log");
}

PrometheusTestServer::~PrometheusTestServer() {
  if (pid_ != 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

void PrometheusTestServer::WriteConfig() const {
  std::string config =
      "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
      "scrape_configs:\n";
  if (!options_.rules.empty()) {
    Write(directory_ + "/rules.yaml", options_.rules);
    config = "rule_files: [rules.yaml]\n" + config;
  }
  // A job of several names is several jobs of one label.
  for (size_t i = 0; i < options_.targets.size(); ++i) {
    const PrometheusTarget& target = options_.targets[i];
    absl::StrAppend(&config, "- job_name: target-", i, "\n");
    if (!target.tls.empty()) {
      std::string lines = target.tls;
      for (size_t at = 0; (at = lines.find('\n', at)) + 1 < lines.size();)
        lines.insert(++at, "    ");
      absl::StrAppend(&config, "  scheme: https\n  tls_config:\n    ", lines);
    }
    absl::StrAppend(&config, "  static_configs: [{targets: ['", target.address,
                    "'], labels: {job: ", target.job, "}}]\n");
  }
  Write(directory_ + "/prometheus.yaml", config);
}

void PrometheusTestServer::Start() {
  port_ = FreePort();
  const std::string config = "--config.file=" + directory_ + "/prometheus.yaml";
  const std::string storage = "--storage.tsdb.path=" + directory_ + "/data";
  const std::string listen = absl::StrCat("--web.listen-address=", kHost, ":", port_);
  const std::string log = directory_ + "/log";
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) Die("cannot fork");
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execlp("prometheus", "prometheus", config.c_str(), storage.c_str(), listen.c_str(),
         "--log.level=warn", nullptr);
  _exit(127);
}

bool PrometheusTestServer::Ready() {
  if (waitpid(pid_, nullptr, WNOHANG) == pid_) {
    pid_ = 0;
    return false;
  }
  return Ask("/-/ready").starts_with("HTTP/1.1 200");
}

std::string PrometheusTestServer::Ask(const std::string& path) const {
  TestSocket socket(Address{kHost, port_});
  if (!socket.Send("GET " + path + " HTTP/1.1\r\nhost: prometheus\r\n\r\n")) return "";
  return socket.ReadMessage();
}

Json PrometheusTestServer::Get(const std::string& path) const {
  const std::string answer = Ask(path);
  const bool chunked = answer.find("chunked\r\n") < answer.find("\r\n\r\n");
  const std::string body = chunked ? Dechunked(answer) : BodyOf(answer);
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("status", "") != "success")
    Die(path + ": " + answer.substr(0, 1000));
  return std::move(json["data"]);
}

std::vector<PrometheusAlert> PrometheusTestServer::Alerts() const {
  std::vector<PrometheusAlert> alerts;
  const Json data = Get("/api/v1/alerts");
  for (const Json& one : data["alerts"]) {
    alerts.push_back({.labels = one["labels"].get<std::map<std::string, std::string>>(),
                      .annotations = one["annotations"].get<std::map<std::string, std::string>>(),
                      .firing = one["state"] == "firing"});
  }
  return alerts;
}

bool PrometheusTestServer::Fires(std::string_view name, std::string_view label,
                                 std::string_view value) const {
  for (PrometheusAlert& alert : Alerts()) {
    if (!alert.firing || alert.labels["alertname"] != name) continue;
    if (label.empty() || alert.labels[std::string(label)] == value) return true;
  }
  return false;
}

std::string PrometheusTestServer::Firing() const {
  std::set<std::string> names;
  for (PrometheusAlert& alert : Alerts())
    if (alert.firing) names.insert(alert.labels["alertname"]);
  return absl::StrJoin(names, ", ");
}

std::map<std::string, double> PrometheusTestServer::Query(const std::string& expression) const {
  const Json data = Get("/api/v1/query?query=" + PercentEncoded(expression));
  if (data["resultType"] == "scalar")
    return {{"", std::stod(data["result"][1].get<std::string>())}};
  std::map<std::string, double> values;
  for (const Json& one : data["result"])
    values[one["metric"].dump()] = std::stod(one["value"][1].get<std::string>());
  return values;
}

bool PrometheusTestServer::AllUp() const {
  const std::map<std::string, double> up = Query("up == 1");
  return up.size() == options_.targets.size();
}

std::string ShortenedRules(std::string rules, int window_s) {
  rules = std::regex_replace(rules, std::regex("for: [0-9]+[mh]\n"), "for: 1s\n");
  const std::string window = absl::StrCat(window_s, "s");
  rules = std::regex_replace(rules, std::regex("\\[[0-9]+[mh]\\]"), "[" + window + "]");
  return std::regex_replace(rules, std::regex("offset [0-9]+[mh]"), "offset " + window);
}

}  // namespace kvatlas
