// The endpoint picker as a part of a process: its flags, and a gRPC server of its own, since
// proxies reach it where no other client needs to.
//
// Health is that of the gateway API's pickers: the names "liveness", "readiness" and the service's.
// So is TLS: most gateways speak to a picker over TLS alone, take any certificate and show none.
// The port has its own, self-signed without files, whatever the process has; a policy says by the
// verb `pick` which callers may ask.
//
// *Threads*: one, but for what gRPC's threads do. *Lifetime*: everything it is given outlives it.
//
// Example:
//   ExtProcServer ext_proc(flags.ext_proc, &frontend, &tokenizer, &endpoints, &metrics);
//   if (absl::Status status = ext_proc.Start(); !status.ok()) return service.Fail(status);

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_SERVER_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "frontend/gateway/ext_proc/endpoint_names.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/ext_proc_service.h"
#include "frontend/gateway/ext_proc/picker.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "indexer/base/address.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/flags.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

struct ExtProcFlags {
  std::string listen = {};                  // HOST:PORT; empty: no picker
  std::vector<std::string> endpoints = {};  // WORKER=IP:PORT
  std::string mode_unsaid = "full_duplex";
  std::string tls = "own";  // or "process", "none"
  std::string tls_cert = {};
  std::string tls_key = {};
  uint32_t body_bytes_max = 10 << 20;
  std::vector<std::string> pool = {};        // `PickerPool`
  std::vector<std::string> objectives = {};  // NAME=PRIORITY
  PickerOptions picker = {};
};

void AddExtProcFlags(FlagSet& flags, ExtProcFlags* to);

// REQUIRES: the texts were checked when flags were read; else the pool is empty.
PickerPool PoolOf(const ExtProcFlags& flags);

// For `EndpointLearner::SetCellOf`: by the cells that the hierarchy told and the leaves that were
// given. `frontend` outlives it.
std::function<std::optional<std::string>(const std::string& address)> CellsOf(
    const Frontend* frontend);

class ExtProcServer {
 public:
  // Without an address in `flags` all of it does nothing. `bodies_bytes_max`: see `ExtProcService`.
  ExtProcServer(const ExtProcFlags& flags, Frontend* frontend, PromptTokenizer* tokenizer,
                Endpoints* endpoints, Metrics* metrics,
                uint64_t bodies_bytes_max = uint64_t{2} << 30);

  // INVALID_ARGUMENT: a flag. UNAVAILABLE: the address cannot be had.
  absl::Status Start();
  // Nothing: there is none.
  std::optional<Address> address() const;
  uint64_t bodies_bytes() const { return service_ == nullptr ? 0 : service_->bodies_bytes(); }
  void SetHealth(Health health);
  void Stop(Duration grace);

 private:
  const ExtProcFlags flags_;
  Frontend* const frontend_;
  Endpoints* const endpoints_;
  Metrics* const metrics_;
  const uint64_t bodies_bytes_max_;
  Picker picker_;
  std::unique_ptr<EndpointNames> names_;
  std::unique_ptr<ExtProcService> service_;
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_SERVER_H_
