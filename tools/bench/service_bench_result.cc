#include "tools/bench/service_bench_result.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json OrNull(const std::optional<Percentiles>& value) {
  const auto field = [&](double Percentiles::* member) {
    return value ? Json((*value).*member) : Json(nullptr);
  };
  return {{"p50", field(&Percentiles::p50)},
          {"p99", field(&Percentiles::p99)},
          {"p999", field(&Percentiles::p999)},
          {"max", field(&Percentiles::max)},
          {"mean", field(&Percentiles::mean)}};
}

Json ToJsonObject(const ServiceBenchResult& result) {
  Json json;
  json["what"] = result.what;
  json["target"] = result.target;
  json["workers"] = result.workers;
  json["workload"] = OrNull(result.workload);
  json["seconds"] = result.seconds;
  json["connections"] = OrNull(result.connections);
  json["blocks"] = OrNull(result.blocks);
  json["qps"] = OrNull(result.qps);
  json["us"] = OrNull(result.us);
  json["leaf_cpu_us_per_query"] = OrNull(result.leaf_cpu_us_per_query);
  json["client_cpu_us_per_query"] = OrNull(result.client_cpu_us_per_query);
  json["answer_bytes"] = OrNull(result.answer_bytes);
  json["blocks_stored"] = OrNull(result.blocks_stored);
  json["blocks_removed"] = OrNull(result.blocks_removed);
  json["blocks_per_s"] = OrNull(result.blocks_per_s);
  json["stored_per_s"] = OrNull(result.stored_per_s);
  json["leaf_cpu_ns_per_block"] = OrNull(result.leaf_cpu_ns_per_block);
  json["client_cpu_ns_per_block"] = OrNull(result.client_cpu_ns_per_block);
  json["redis_cpu_ns_per_block"] = OrNull(result.redis_cpu_ns_per_block);
  json["bytes_per_block"] = OrNull(result.bytes_per_block);
  json["lag_ms"] = OrNull(result.lag_ms);
  json["blocks_held"] = OrNull(result.blocks_held);
  json["checked"] = OrNull(result.checked);
  json["wrong"] = OrNull(result.wrong);
  json["rss_per_held_block"] = OrNull(result.rss_per_held_block);
  json["leaf_cpu_s"] = OrNull(result.leaf_cpu_s);
  json["leaf_rss_bytes"] = OrNull(result.leaf_rss_bytes);
  json["errors"] = result.errors;
  json["first_error"] = result.first_error.empty() ? Json(nullptr) : Json(result.first_error);
  return json;
}

std::string TextOf(const Json& value) {
  if (!value.is_number_float()) return value.is_string() ? value.get<std::string>() : value.dump();
  char text[64];
  const double number = value.get<double>();
  std::snprintf(text, sizeof(text), number >= 1000 ? "%.0f" : "%.4g", number);
  return text;
}

}  // namespace

std::string ToJson(const ServiceBenchResult& result) { return ToJsonObject(result).dump(); }

std::string ToText(const ServiceBenchResult& result) {
  std::string text;
  const auto line = [&](const std::string& name, const Json& value) {
    if (value.is_null()) return;
    text += name + std::string(name.size() < 26 ? 26 - name.size() : 1, ' ') + TextOf(value) + "\n";
  };
  const Json json = ToJsonObject(result);
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) {
      line(name, value);
      continue;
    }
    for (const auto& [part, number] : value.items()) line(name + "." + part, number);
  }
  return text;
}

}  // namespace kvatlas
