#include "frontend/doors/http/models_list.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "frontend/peers/engine_reach.h"
#include "frontend/peers/engines_question.h"
#include "frontend/prompt/openai/json_depth.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void AskModels(boost::asio::io_context* io, EngineConnections* pool,
               const std::vector<KnownEngine>& engines, const HttpHeaders& headers,
               Duration timeout, ModelsCallback callback) {
  // In an order that is the same each time.
  std::vector<KnownEngine> ordered = engines;
  std::sort(ordered.begin(), ordered.end(), [](const KnownEngine& a, const KnownEngine& b) {
    return std::tie(a.suspect, a.worker, a.url) < std::tie(b.suspect, b.worker, b.url);
  });
  std::vector<EngineUrl> urls;
  std::set<std::string> asked;
  for (const KnownEngine& engine : ordered) {
    absl::StatusOr<EngineUrl> url = EngineUrl::Parse(engine.url);
    if (urls.size() == kModelsEnginesMax) break;
    if (url.ok() && asked.insert(url->authority()).second) urls.push_back(*std::move(url));
  }
  AskEngines(
      io, pool, std::move(urls), "/v1/models", headers, timeout,
      [callback = std::move(callback)](const std::vector<std::optional<std::string>>& bodies) {
        callback(MergeModels(bodies));
      });
}

std::optional<std::string> ModelIn(const std::string& list, const std::string& id) {
  const Json json = Json::parse(list, nullptr, /*allow_exceptions=*/false);
  for (const Json& model : json["data"]) {
    if (model["id"] == id) return model.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return std::nullopt;
}

std::optional<std::string> MergeModels(const std::vector<std::optional<std::string>>& bodies) {
  Json merged = {{"object", "list"}, {"data", Json::array()}};
  Json::array_t& models = merged["data"].get_ref<Json::array_t&>();
  std::set<std::string> ids;
  bool any = false;
  for (const std::optional<std::string>& body : bodies) {
    if (!body.has_value() || IsNestedTooDeep(*body)) continue;
    const Json list = Json::parse(*body, nullptr, /*allow_exceptions=*/false);
    if (!list.is_object()) continue;
    const auto data = list.find("data");
    if (data == list.end() || !data->is_array()) continue;
    any = true;
    for (const Json& model : *data) {
      if (!model.is_object()) continue;
      const auto id = model.find("id");
      if (id == model.end() || !id->is_string() || !ids.insert(id->get<std::string>()).second)
        continue;
      // Before its adapters, where an engine without it listed these first.
      const auto adapter = std::find_if(models.begin(), models.end(), [&](const Json& other) {
        const auto parent = other.find("parent");
        return parent != other.end() && *parent == *id;
      });
      models.insert(adapter, model);
    }
  }
  if (!any) return std::nullopt;
  return merged.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvatlas
