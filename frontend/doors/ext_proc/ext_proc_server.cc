#include "frontend/doors/ext_proc/ext_proc_server.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"

namespace kvatlas {
namespace {

absl::StatusOr<ext_proc::BodySendMode> ModeOf(const std::string& name) {
  if (name == "full_duplex") return ext_proc::FULL_DUPLEX_STREAMED;
  if (name == "buffered") return ext_proc::BUFFERED;
  return absl::InvalidArgumentError("--ext_proc_mode: '" + name +
                                    "' is neither full_duplex nor buffered");
}

absl::Status CheckEndpoints(const std::string& text) {
  Endpoints endpoints;
  absl::Status bad;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(text, ',')))
    bad.Update(endpoints.Configure(entry));
  return bad;
}

}  // namespace

void AddExtProcFlags(FlagSet& flags, ExtProcFlags* to) {
  flags
      .AddAddress("ext_proc", &to->listen,
                  "address for Envoy's external processing, as an endpoint picker; empty: none")
      .Listens();
  flags
      .Add("ext_proc_endpoints", &to->endpoints,
           "where workers take requests: WORKER=IP:PORT, over what they say of themselves")
      .Check(CheckEndpoints);
  flags.AddChoice("ext_proc_mode", &to->mode_unsaid, "how proxies send bodies that do not say it",
                  {"full_duplex", "buffered"});
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
      picker_(flags.picker, frontend, tokenizer, endpoints) {}

absl::Status ExtProcServer::Start() {
  if (flags_.listen.empty()) return absl::OkStatus();
  absl::StatusOr<Address> listen = Address::Parse(flags_.listen);
  absl::Status bad = listen.status();
  const absl::StatusOr<ext_proc::BodySendMode> mode = ModeOf(flags_.mode_unsaid);
  bad.Update(mode.status());
  for (const auto& [worker, url] : frontend_->options().engines)
    bad.Update(endpoints_->Configure(worker + "=" + url));
  for (const std::string& entry : flags_.endpoints) bad.Update(endpoints_->Configure(entry));
  if (!bad.ok()) return bad;
  service_ = std::make_unique<ExtProcService>(
      PickerStreamOptions{.body_bytes_max = flags_.body_bytes_max, .mode_unsaid = *mode}, &picker_,
      metrics_, bodies_bytes_max_);
  server_ = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = *std::move(listen)});
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

void ExtProcServer::Stop(Duration grace) {
  if (server_ == nullptr) return;
  server_->SetHealth(Health::kStopping);
  server_->Stop(grace);
}

}  // namespace kvatlas
