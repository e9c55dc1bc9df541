// Each function makes the value of one key of /status.

#include "frontend/status_parts.h"

#include <chrono>
#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

// Addresses and reasons come from others, and may hold bytes that are no UTF-8: these are replaced.
std::string Dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string MemoryJson(const MemoryBudget& memory) {
  nlohmann::json json = {{"budget_bytes", memory.bytes_max()},
                         {"used_bytes", memory.used_bytes()},
                         {"level", MemoryLevelName(memory.level())}};
  for (const auto& [part, bytes] : memory.Parts()) json["parts"][part] = bytes;
  return json.dump();
}

// Both lists always exist, empty or not, so that scripts need no test.
std::string PeersJson(const std::vector<PeerState>& nodes, const std::vector<PeerState>& leaves) {
  nlohmann::json json = {{"hierarchies", nlohmann::json::array()},
                         {"leaves", nlohmann::json::array()}};
  const auto add = [&](const char* kind, const std::vector<PeerState>& peers) {
    for (const PeerState& peer : peers)
      json[kind].push_back(
          {{"address", peer.address}, {"state", peer.state}, {"reason", peer.reason}});
  };
  add("hierarchies", nodes);
  add("leaves", leaves);
  return Dump(json);
}

// A model's own name is no further name.
std::string NamesJson(const ServedNames& names) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [name, served] : names) {
    if (name == served.model) continue;
    json.push_back({{"name", name},
                    {"model", served.model},
                    {"adapter", served.adapter},
                    {"workers", served.workers}});
  }
  return Dump(json);
}

// The age is left out while no load was ever heard.
std::string EngineLoadsJson(const std::vector<EngineLoadState>& engines) {
  nlohmann::json json = nlohmann::json::array();
  for (const EngineLoadState& engine : engines) {
    nlohmann::json entry = {{"worker", engine.worker},
                            {"url", engine.url},
                            {"state", engine.state},
                            {"reason", engine.reason},
                            {"ranks", nlohmann::json::array()}};
    if (!engine.loads.empty())
      entry["age_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(engine.age).count();
    for (const auto& [rank, load] : engine.loads)
      entry["ranks"].push_back({{"rank", rank},
                                {"running_requests", load.running_requests},
                                {"waiting_requests", load.waiting_requests},
                                {"used_blocks", load.used_blocks},
                                {"free_blocks", load.free_blocks}});
    json.push_back(std::move(entry));
  }
  return Dump(json);
}

}  // namespace kvatlas
