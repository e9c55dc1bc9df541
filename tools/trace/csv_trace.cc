#include "tools/trace/csv_trace.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace kvatlas {
namespace {

// No field of these tables is quoted.
std::vector<std::string> FieldsOf(const std::string& line) {
  std::vector<std::string> fields = absl::StrSplit(line, ',');
  for (std::string& field : fields) absl::StripAsciiWhitespace(&field);
  return fields;
}

std::optional<size_t> Column(const std::vector<std::string>& header, std::string_view name) {
  const auto found = std::find_if(header.begin(), header.end(), [&](const std::string& column) {
    return absl::AsciiStrToLower(column) == absl::string_view(name.data(), name.size());
  });
  if (found == header.end()) return std::nullopt;
  return static_cast<size_t>(found - header.begin());
}

absl::Status Wrong(std::string_view column, const std::string& text, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(column), " is '", text, "', and no ", std::string(what)));
}

// "2023-11-16 18:15:46.6805900", perhaps with "+00:00".
std::optional<double> MsOfDate(const std::string& text) {
  absl::Time time;
  std::string error;
  for (const char* format : {"%Y-%m-%d %H:%M:%E*S", "%Y-%m-%d %H:%M:%E*S%Ez"})
    if (absl::ParseTime(format, text, &time, &error))
      return static_cast<double>(absl::ToUnixMicros(time)) / 1000;
  return std::nullopt;
}

std::optional<double> MsOfSeconds(const std::string& text) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds < 0)
    return std::nullopt;
  return seconds * 1000;
}

}  // namespace

void GiveOwnIds(TraceRequest* request, uint64_t* next) {
  const uint64_t ids = std::max<uint64_t>(
      1, (uint64_t{request->input_tokens} + kTokensPerHashId - 1) / kTokensPerHashId);
  for (uint64_t i = 0; i < ids; ++i) request->hash_ids.push_back((*next)++ | uint64_t{1} << 63);
  request->has_prefixes = false;
}

void SortByTime(std::vector<TraceRequest>* trace) {
  std::stable_sort(trace->begin(), trace->end(), [](const TraceRequest& a, const TraceRequest& b) {
    return a.timestamp_ms < b.timestamp_ms;
  });
}

bool CsvTrace::TakeHeader(const std::string& line) {
  const std::vector<std::string> header = FieldsOf(line);
  const std::optional<size_t> time = Column(header, "timestamp");
  is_azure_ = Column(header, "contexttokens").has_value();
  const std::optional<size_t> tokens =
      Column(header, is_azure_ ? "contexttokens" : "request tokens");
  const std::optional<size_t> answer =
      Column(header, is_azure_ ? "generatedtokens" : "response tokens");
  if (!time.has_value() || !tokens.has_value() || !answer.has_value()) return false;
  columns_ = header.size();
  time_ = *time;
  tokens_ = tokens;
  answer_ = *answer;
  session_ = Column(header, "session id");
  return true;
}

absl::Status CsvTrace::Add(const std::string& line) {
  const std::vector<std::string> fields = FieldsOf(line);
  if (fields.size() != columns_)
    return absl::InvalidArgumentError(
        absl::StrCat(fields.size(), " fields, and the header has ", columns_));
  TraceRequest request;
  const std::optional<double> at = is_azure_ ? MsOfDate(fields[time_]) : MsOfSeconds(fields[time_]);
  if (!at.has_value())
    return Wrong("the timestamp", fields[time_],
                 is_azure_ ? "date with a time" : "number of seconds");
  request.timestamp_ms = *at;
  if (!absl::SimpleAtoi(fields[*tokens_], &request.input_tokens))
    return Wrong("the prompt's length", fields[*tokens_], "number of tokens");
  if (!absl::SimpleAtoi(fields[answer_], &request.output_tokens))
    return Wrong("the answer's length", fields[answer_], "number of tokens");
  if (session_.has_value()) request.session_id = fields[*session_];
  GiveOwnIds(&request, &own_ids_);
  trace_.push_back(std::move(request));
  return absl::OkStatus();
}

std::vector<TraceRequest> CsvTrace::Take() {
  SortByTime(&trace_);
  const double first = trace_.empty() ? 0 : trace_.front().timestamp_ms;
  for (TraceRequest& request : trace_) request.timestamp_ms -= first;
  return std::move(trace_);
}

}  // namespace kvatlas
