// The question to all engines, and the three operations on lists of models: merge, filter, find.
// Entries are kept as minified JSON text and never interpreted beyond `id` and `parent`.

#include "frontend/gateway/http/models_list.h"

#include <simdjson.h>

#include <algorithm>
#include <list>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "frontend/engine_client/engine_reach.h"
#include "frontend/engine_client/engines_question.h"

namespace kvatlas {
namespace {

namespace dom = simdjson::dom;

// Entries beyond this number are left out.
constexpr size_t kModelsMax = 100'000;

// Empty: the field is missing or no text.
std::string TextIn(const dom::object& object, std::string_view name) {
  std::string_view text;
  return object[name].get_string().get(text) == simdjson::SUCCESS ? std::string(text) : "";
}

// Calls `each` with the entries of a list of models that have an id. False: `body` is no such list.
template <typename Each>
bool ForEachModel(std::string_view body, Each each) {
  dom::parser parser;
  dom::element root;
  dom::array data;
  if (parser.parse(body.data(), body.size()).get(root) != simdjson::SUCCESS ||
      root["data"].get_array().get(data) != simdjson::SUCCESS)
    return false;
  for (const dom::element model : data) {
    dom::object fields;
    if (model.get_object().get(fields) != simdjson::SUCCESS) continue;
    if (std::string id = TextIn(fields, "id"); !id.empty()) each(std::move(id), fields);
  }
  return true;
}

// Entries are JSON already.
std::string ListOf(const std::list<std::string>& models) {
  std::string list = R"({"object":"list","data":[)";
  bool first = true;
  for (const std::string& model : models)
    absl::StrAppend(&list, std::exchange(first, false) ? "" : ",", model);
  return list += "]}";
}

}  // namespace

void AskModels(boost::asio::io_context* io, EngineConnections* pool,
               const std::vector<KnownEngine>& engines, const HttpHeaders& headers,
               Duration timeout, EnginesAnswers callback, EnginesKey key) {
  // In the same order each time, suspects last: the list of two questions then has the same order,
  // and the bound cuts off suspects first.
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
  AskEngines(io, pool, std::move(urls), "/v1/models", headers, timeout, std::move(callback), key);
}

std::optional<std::string> ModelIn(const std::string& list, const std::string& id) {
  std::optional<std::string> found;
  ForEachModel(list, [&](const std::string& name, const dom::object& model) {
    if (!found.has_value() && name == id) found = simdjson::minify(model);
  });
  return found;
}

std::string ModelsOf(const std::string& list,
                     const std::function<bool(const std::string& id)>& keep) {
  std::list<std::string> models;
  ForEachModel(list, [&](const std::string& id, const dom::object& model) {
    if (keep(id)) models.push_back(simdjson::minify(model));
  });
  return ListOf(models);
}

// A linked list, so that a model can be inserted before an adapter that stands there already.
std::optional<std::string> MergeModels(const std::vector<std::optional<std::string>>& bodies) {
  std::list<std::string> models;
  std::set<std::string> ids;
  // Where the first adapter of a model stands: the model comes before it, where an engine without
  // it listed this one first.
  std::unordered_map<std::string, std::list<std::string>::iterator> adapters;
  bool any = false;
  for (const std::optional<std::string>& body : bodies) {
    if (!body.has_value()) continue;
    any |= ForEachModel(*body, [&](const std::string& id, const dom::object& model) {
      if (ids.size() == kModelsMax || !ids.insert(id).second) return;
      // simdjson takes half of a pair of surrogates, which is not UTF-8: one engine's name would
      // spoil the list for all clients.
      std::string text = simdjson::minify(model);
      if (!simdjson::validate_utf8(text)) return;
      const auto adapter = adapters.find(id);
      const auto at = models.insert(adapter == adapters.end() ? models.end() : adapter->second,
                                    std::move(text));
      if (const std::string parent = TextIn(model, "parent"); !parent.empty())
        adapters.emplace(parent, at);
    });
  }
  if (!any) return std::nullopt;
  return ListOf(models);
}

}  // namespace kvatlas
