// What an operator writes, and what other processes name: policies, configurations, addresses,
// traces.

#include "frontend/engine_client/engine_reach.h"
#include "indexer/base/address.h"
#include "indexer/kv_events/worker_flags.h"
#include "indexer/net/http_fetch.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/config_file.h"
#include "indexer/security/identity.h"
#include "indexer/security/policy.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

const AddFuzzSeeds kSeeds([] {
  return std::vector<std::string>{
      std::string(1, '\0') +
          R"({"version": 1, "trust_domain": "a.b", "names": {"cn:x": "leaf/a/-"}, "rules": [{"identity": "worker/*/*", "allow": ["publish"], "models": ["*"], "tenants": ["t"], "url_hosts": ["10.0.0.0/8", "*.e"], "quota": {"streams": 1}}], "revoked": ["serial:1f"], "tenants": {"t": {"pool": "", "quota": {"queries_per_s": 2}}}})",
      "\x01"
      "cell = 'a'\nlease_ttl = \"10s\"\nmax = 5_000\n[leaf]\nparents = ['h:1', "
      "\"h:2\"]\n[leaf.labels]\nzone = 'a'\n[[x]]\ny = 1979-05-27T07:32:00Z\n",
      "\x02"
      "127.0.0.1:80",
      "\x02"
      "[::1]:65535",
      "\x03"
      "http://user@h.example:8000/v1?x#y",
      "\x03"
      "https://[::1]/",
      "\x04"
      "rediss://u:p%40@h:6380?ca=/a&cert=/b&key=/c&log_key=/d",
      "\x05"
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
      "\x06"
      "worker/a/w1",
      "\x06"
      "leaf/a/-",
      "\x07"
      "w:3=tcp://10.0.0.1:5557;replay=tcp://10.0.0.1:5;topic=kv;lora=a;store_tiers=disk",
  };
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvatlas;  // NOLINT: the whole of this file
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t kind = FuzzChoice(&input, 8);
  const std::string text(input);
  switch (kind) {
    case 0:
      AccessPolicy::Parse(text).status().IgnoreError();
      break;
    case 1: {
      const auto entries = ParseConfig(text, "f.toml", "leaf");
      if (!entries.ok())
        FuzzCheck(entries.status().message().substr(0, 7) == "f.toml:", "no place");
      break;
    }
    case 2: {
      const absl::StatusOr<Address> address = Address::Parse(text);
      if (!address.ok()) break;
      const absl::StatusOr<Address> again = Address::Parse(address->ToString());
      FuzzCheck(again.ok() && *again == *address, "an address that is another");
      break;
    }
    case 3:
      EngineUrl::Parse(text).status().IgnoreError();
      HttpUrl::Parse(text).status().IgnoreError();
      break;
    case 4:
      ParseRedisUrl(text).status().IgnoreError();
      break;
    case 5: {
      const std::optional<TraceContext> context = ParseTraceparent(text);
      if (context.has_value())
        FuzzCheck(ParseTraceparent(ToTraceparent(*context)) == context, "another context");
      break;
    }
    case 6: {
      const absl::StatusOr<Identity> identity = ParseIdentity(text);
      if (identity.ok()) FuzzCheck(identity->Text() == text, "another identity");
      break;
    }
    default: {
      EngineRegistration of_all;
      of_all.model = std::string("m");
      of_all.block_size = 16;
      ParseWorkers({text}, of_all).status().IgnoreError();
    }
  }
  return 0;
}
