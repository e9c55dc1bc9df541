// Flags of the picker, what they are turned into, and the life of its server.

#include "frontend/gateway/ext_proc/ext_proc_server.h"

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace kvatlas {
namespace {

// The mode for proxies that do not say one in their first message.
absl::StatusOr<ext_proc::BodySendMode> ModeOf(const std::string& name) {
  if (name == "full_duplex") return ext_proc::FULL_DUPLEX_STREAMED;
  if (name == "buffered") return ext_proc::BUFFERED;
  return absl::InvalidArgumentError("--ext_proc_mode: '" + name +
                                    "' is neither full_duplex nor buffered");
}

// A dry run: the checks of `Configure` at the time that flags are read.
absl::Status CheckEndpoints(const std::string& text) {
  Endpoints endpoints;
  absl::Status bad;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(text, ',')))
    bad.Update(endpoints.Configure(entry));
  return bad;
}

// INVALID_ARGUMENT: not NAME=PRIORITY.
absl::StatusOr<std::map<std::string, int>> ObjectivesOf(const std::vector<std::string>& entries) {
  std::map<std::string, int> objectives;
  for (const std::string& entry : entries) {
    const size_t equals = entry.find('=');
    int priority = 0;
    if (equals == 0 || equals == std::string::npos ||
        !absl::SimpleAtoi(entry.substr(equals + 1), &priority))
      return absl::InvalidArgumentError("'" + entry + "' is no NAME=PRIORITY");
    objectives[entry.substr(0, equals)] = priority;
  }
  return objectives;
}

// The texts were checked with the flags, so the defaults are for programs that skip that check.
PickerOptions OptionsOf(const ExtProcFlags& flags) {
  PickerOptions options = flags.picker;
  options.pool = PoolOf(flags);
  options.objectives = ObjectivesOf(flags.objectives).value_or(std::map<std::string, int>());
  return options;
}

template <typename Read>
// A check for a flag whose whole list is parsed at once by `read`.
std::function<absl::Status(const std::string&)> CheckEach(const Read& read) {
  return [read](const std::string& text) { return read(absl::StrSplit(text, ',')).status(); };
}

}  // namespace

PickerPool PoolOf(const ExtProcFlags& flags) {
  return PickerPool::Parse(flags.pool).value_or(PickerPool());
}

std::function<std::optional<std::string>(const std::string& address)> CellsOf(
    const Frontend* frontend) {
  constexpr size_t kCellsOfPoolMax = 65536;
  // Linear in the cells, once per new answer of a leaf: only pools by cell ask.
  return [frontend](const std::string& address) -> std::optional<std::string> {
    for (const SeenCell& seen : frontend->Cells(kCellsOfPoolMax))
      if (seen.address == address) return seen.cell;
    for (const ConfiguredLeaf& leaf : frontend->options().leaves)
      if (leaf.address == address) return leaf.cell;
    return std::nullopt;
  };
}

void AddExtProcFlags(FlagSet& flags, ExtProcFlags* to) {
  flags
      .AddAddress("ext_proc", &to->listen,
                  "address for Envoy's external processing, as an endpoint picker; empty: none")
      .Listens();
  flags
      .Add("ext_proc_endpoints", &to->endpoints,
           "where workers take requests: WORKER=IP:PORT, over what they say of themselves")
      .Check(CheckEndpoints);
  flags
      .Add("ext_proc_pool", &to->pool,
           "the workers of the InferencePool that this picker answers for: model=MODEL, cell=CELL, "
           "LABEL=VALUE; endpoints of others are never named; empty: all")
      .Check(CheckEach(PickerPool::Parse));
  flags
      .Add("ext_proc_objectives", &to->objectives,
           "NAME=PRIORITY of InferenceObjectives, which requests name by a header; what is below 0 "
           "is shed first")
      .Check(CheckEach(ObjectivesOf));
  flags.AddChoice("ext_proc_mode", &to->mode_unsaid, "how proxies send bodies that do not say it",
                  {"full_duplex", "buffered"});
  flags.AddChoice(
      "ext_proc_tls", &to->tls,
      "how --ext_proc is encrypted: own: by a certificate of its own, asking no client for "
      "one, as gateways expect; process: mutual, by --tls_cert; none: in clear",
      {"own", "process", "none"});
  flags.Add("ext_proc_tls_cert", &to->tls_cert,
            "PEM certificate of --ext_proc_tls=own; empty: self-signed, made at start");
  flags.Add("ext_proc_tls_key", &to->tls_key, "its key");
  flags.Add("ext_proc_body_bytes_max", &to->body_bytes_max,
            "a longer body of a request is refused with 413", 1);
  flags.Add("ext_proc_endpoints_best", &to->picker.endpoints_best,
            "endpoints in one answer: the chosen one, then those to retry", 1, 64);
  flags.Add("ext_proc_tokenize_deadline", &to->picker.tokenize_deadline,
            "how long the tokens of a prompt may take");
}

ExtProcServer::ExtProcServer(const ExtProcFlags& flags, Frontend* frontend,
                             PromptTokenizer* tokenizer, Endpoints* endpoints, Metrics* metrics,
                             uint64_t bodies_bytes_max)
    : flags_(flags),
      frontend_(frontend),
      endpoints_(endpoints),
      metrics_(metrics),
      bodies_bytes_max_(bodies_bytes_max),
      picker_(OptionsOf(flags), frontend, tokenizer, endpoints) {}

// 1. All flags are checked before anything starts; the first error wins.
// 2. Endpoints are configured: those of --engines first, then --ext_proc_endpoints, which replace
//    them.
// 3. The resolver's thread, the service and the server start, in the order of their dependence;
//    members are destroyed in the opposite order.
absl::Status ExtProcServer::Start() {
  if (flags_.listen.empty()) return absl::OkStatus();
  absl::StatusOr<Address> listen = Address::Parse(flags_.listen);
  absl::Status bad = listen.status();
  const absl::StatusOr<ext_proc::BodySendMode> mode = ModeOf(flags_.mode_unsaid);
  bad.Update(mode.status());
  for (const auto& [worker, url] : frontend_->options().engines)
    bad.Update(endpoints_->Configure(worker + "=" + url));
  for (const std::string& entry : flags_.endpoints) bad.Update(endpoints_->Configure(entry));
  if (flags_.tls != "own" && !(flags_.tls_cert.empty() && flags_.tls_key.empty()))
    bad.Update(absl::InvalidArgumentError("--ext_proc_tls_cert and _key need --ext_proc_tls=own"));
  if (!bad.ok()) return bad;
  names_ = std::make_unique<EndpointNames>(endpoints_);
  service_ = std::make_unique<ExtProcService>(
      PickerStreamOptions{.body_bytes_max = flags_.body_bytes_max, .mode_unsaid = *mode}, &picker_,
      metrics_, bodies_bytes_max_);
  server_ = std::make_unique<GrpcServer>(
      GrpcServerOptions{.listen = *std::move(listen),
                        .tls = flags_.tls == "own"       ? PortTls::kOwn
                               : flags_.tls == "process" ? PortTls::kOfProcess
                                                         : PortTls::kClear,
                        .own_certificate = flags_.tls_cert,
                        .own_key = flags_.tls_key});
  server_->Register(service_.get(), kExtProcServiceName);
  return server_->Start();
}

std::optional<Address> ExtProcServer::address() const {
  if (server_ == nullptr) return std::nullopt;
  return server_->address();
}

void ExtProcServer::SetHealth(Health health) {
  if (server_ != nullptr) server_->SetHealth(health);
}

// Health first, so that a proxy stops choosing this picker while the grace runs.
void ExtProcServer::Stop(Duration grace) {
  if (server_ == nullptr) return;
  server_->SetHealth(Health::kStopping);
  server_->Stop(grace);
}

}  // namespace kvatlas
