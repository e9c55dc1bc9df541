#include "indexer/checkpoint/checkpoint_http.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "indexer/net/http_server.h"

namespace kvatlas {
namespace {

HttpResponse WriteOne(Checkpointer* checkpointer) {
  if (checkpointer == nullptr) return HttpError(404, "this leaf has no --checkpoint_dir");
  const absl::StatusOr<CheckpointReport> report = checkpointer->WriteNow();
  // A full disk is not the caller's fault: 429 would ask it to slow down, which would not help. 507
  // is Insufficient Storage.
  if (absl::IsResourceExhausted(report.status())) return HttpError(507, report.status().ToString());
  if (!report.ok()) return HttpError(report.status());
  const nlohmann::json json = {{"number", report->number},
                               {"path", report->path},
                               {"bytes", report->counts.bytes},
                               {"holders", report->counts.holders},
                               {"blocks", report->counts.blocks},
                               {"engine_blocks", report->counts.engine_names},
                               {"seconds", std::chrono::duration<double>(report->took).count()}};
  return HttpResponse{.body = json.dump() + "\n"};
}

}  // namespace

void AddCheckpointHttp(Checkpointer* checkpointer, AdminHttp* http) {
  http->Handle("POST", "/checkpoint",
               [checkpointer](const HttpRequest&) { return WriteOne(checkpointer); });
}

}  // namespace kvatlas
