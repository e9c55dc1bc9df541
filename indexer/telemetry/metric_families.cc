// Each family is one string, with its head first; a series is appended to the family of its name
// wherever it comes. So the series of a family are together in the output, as the format requires,
// whatever the order of the calls.

#include "indexer/telemetry/metric_families.h"

#include <cstdio>

#include "indexer/telemetry/metrics.h"

namespace kvatlas {

void MetricFamilies::Gauge(std::string_view name, std::string_view help, std::string_view labels,
                           double value) {
  Add(name, "gauge", help, labels, value);
}

void MetricFamilies::Count(std::string_view name, std::string_view help, std::string_view labels,
                           double value) {
  Add(name, "counter", help, labels, value);
}

void MetricFamilies::CountRenamed(std::string_view name, std::string_view help,
                                  std::string_view labels, double value) {
  Count(name, help, labels, value);
  Gauge(FormerName(name), FormerHelp(name), labels, value);
}

void MetricFamilies::DeclareGauge(std::string_view name, std::string_view help) {
  Family(name, "gauge", help);
}

// `append` is the same function that adds the series later; while declaring, Add stops after the
// head.
void MetricFamilies::Declare(const std::function<void(MetricFamilies*)>& append) {
  declaring_ = true;
  append(this);
  declaring_ = false;
}

void MetricFamilies::AppendTo(std::string* text) const {
  for (const std::string& family : families_) *text += family;
}

// The family of `name`, made with HELP and TYPE at the first call; later help and type are ignored.
std::string& MetricFamilies::Family(std::string_view name, std::string_view type,
                                    std::string_view help) {
  const auto known = index_.find(name);
  if (known != index_.end()) return families_[known->second];
  index_.emplace(std::string(name), families_.size());
  std::string& family = families_.emplace_back("# HELP ");
  family.append(name).append(" ").append(help);
  family.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
  return family;
}

void MetricFamilies::Add(std::string_view name, std::string_view type, std::string_view help,
                         std::string_view labels, double value) {
  std::string& family = Family(name, type, help);
  if (declaring_) return;
  family += name;
  if (!labels.empty()) family.append("{").append(labels).append("}");
  // 17 digits: every double reads back to the same value, and counters stay exact up to 2^53.
  char number[32];
  std::snprintf(number, sizeof number, " %.17g\n", value);
  family += number;
}

}  // namespace kvatlas
