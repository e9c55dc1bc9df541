#include "frontend/doors/http/models_list.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "frontend/peers/engine_reach.h"
#include "frontend/peers/models_question.h"
#include "frontend/prompt/openai/json_depth.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void AskModels(boost::asio::io_context* io, EngineConnections* pool,
               const std::vector<KnownEngine>& engines, const HttpHeaders& headers,
               Duration timeout, ModelsCallback callback) {
  std::vector<EngineUrl> urls;
  std::set<std::string> asked;
  for (const KnownEngine& engine : engines) {
    absl::StatusOr<EngineUrl> url = EngineUrl::Parse(engine.url);
    if (urls.size() == kModelsEnginesMax) break;
    if (url.ok() && asked.insert(url->authority()).second) urls.push_back(*std::move(url));
  }
  AskForModels(
      io, pool, std::move(urls), headers, timeout,
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
  std::map<std::string, Json> models;
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
      if (id != model.end() && id->is_string()) models.emplace(id->get<std::string>(), model);
    }
  }
  if (!any) return std::nullopt;
  Json merged = {{"object", "list"}, {"data", Json::array()}};
  for (auto& [id, model] : models) merged["data"].push_back(std::move(model));
  return merged.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvatlas
