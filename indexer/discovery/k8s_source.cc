#include "indexer/discovery/k8s_source.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/endpoint_slices.h"
#include "indexer/discovery/k8s_account.h"
#include "indexer/discovery/k8s_objects.h"
#include "indexer/discovery/waiting_source.h"
#include "indexer/net/http_fetch.h"

namespace kvatlas {
namespace {

constexpr int kPageItems = 200;
constexpr size_t kPageBytesMax = 64 << 20;
constexpr size_t kLineBytesMax = 8 << 20;
constexpr size_t kErrorBytesMax = 64 << 10;
// Beyond the time in which the server ends a watch by itself.
constexpr Duration kWatchGrace = std::chrono::seconds(15);
constexpr Duration kForever = std::chrono::hours(24);

// For a query: what is not plain is %XX.
std::string Encoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      encoded += c;
    } else {
      absl::StrAppend(&encoded, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return encoded;
}

class K8sSource : public WaitingSource {
 public:
  K8sSource(std::unique_ptr<K8sObjects> objects, const DirectoryOptions& options)
      : objects_(std::move(objects)),
        kind_(options.kind),
        options_(options.k8s),
        clock_(options.clock),
        account_(options.k8s),
        random_(options.k8s.seed != 0 ? options.k8s.seed : std::random_device()()) {}
  ~K8sSource() override { Stop(); }

 private:
  void Run() override {
    bool listed = false;
    while (!Stopping()) {
      progress_ = false;
      const absl::Status status = listed ? Watch() : List();
      if (progress_) failures_ = 0;
      if (status.ok()) {
        const bool watched = std::exchange(listed, true);
        if (!watched || progress_) continue;
      } else {
        listed = false;
        if (!absl::IsOutOfRange(status)) TellFailure(status);
      }
      if (!WaitAfterFailure()) return;
    }
  }

  void Interrupt() override {
    MutexLock lock(&mutex_);
    if (running_ != nullptr) running_->Cancel();
  }

  // Steps 1 and 2. OK: the list is known; the watch ended, by the server's will or with its
  // connection. OUT_OF_RANGE: list again.
  absl::Status List() {
    std::string next;
    do {
      HttpFetchOptions options;
      std::string text;
      const absl::Status asked =
          Ask(absl::StrCat("&limit=", kPageItems, next.empty() ? "" : "&continue=" + Encoded(next)),
              options, [&](HttpFetch* fetch) {
                absl::StatusOr<std::string> all = fetch->ReadAll(kPageBytesMax);
                if (all.ok()) text = *std::move(all);
                return all.status();
              });
      if (!asked.ok()) return asked;
      absl::StatusOr<std::string> page = objects_->ReadPage(text);
      if (!page.ok()) return page.status();
      next = *std::move(page);
    } while (!next.empty());
    TellRecords();
    return absl::OkStatus();
  }

  absl::Status Watch() {
    const Duration watch_for = options_.watch_for + Share(options_.watch_for);
    const auto seconds =
        std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(watch_for).count());
    HttpFetchOptions options;
    options.read_timeout = std::chrono::seconds(seconds) + kWatchGrace;
    options.total_timeout = options.read_timeout;
    options.slow_for = kForever;  // a quiet Service says nothing
    const Time began = clock_->Now();
    const absl::Status asked =
        Ask(absl::StrCat("&watch=1&allowWatchBookmarks=true&timeoutSeconds=", seconds,
                         "&resourceVersion=", Encoded(objects_->resource_version())),
            options, [this](HttpFetch* fetch) { return ReadWatch(fetch); });
    if (asked.ok() && clock_->Now() - began >= watch_for / 2) progress_ = true;
    return asked;
  }

  absl::Status ReadWatch(HttpFetch* fetch) {
    std::string text;
    char piece[16 << 10];
    while (true) {
      const absl::StatusOr<size_t> got = fetch->Read(piece, sizeof piece);
      // A connection that breaks says nothing that the next one does not.
      if (!got.ok() || *got == 0) return absl::OkStatus();
      text.append(piece, *got);
      size_t begin = 0;
      for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
        const absl::Status read =
            objects_->ReadEvent(std::string_view(text).substr(begin, end - begin));
        if (absl::IsInvalidArgument(read) || absl::IsResourceExhausted(read))
          return absl::OutOfRangeError(read.message());
        if (!read.ok()) return read;
        progress_ = true;
        TellRecords();
        begin = end + 1;
      }
      text.erase(0, begin);
      if (text.size() > kLineBytesMax) return absl::OutOfRangeError("a line of over 8 MiB");
    }
  }

  // A GET of the objects with `query`; `take` reads the answer of 200.
  template <typename Take>
  absl::Status Ask(const std::string& query, HttpFetchOptions options, const Take& take) {
    const absl::StatusOr<std::string> url = account_.Url();
    if (!url.ok()) return url.status();
    absl::StatusOr<std::string> name_space = objects_->name_space();
    if (name_space->empty()) name_space = account_.Namespace();
    if (!name_space.ok()) return name_space.status();
    if (absl::Status bad = account_.Authorize(*url, &options); !bad.ok()) return bad;
    HttpFetch fetch(options);
    {
      MutexLock lock(&mutex_);
      if (Stopping()) return absl::CancelledError("stopping");
      running_ = &fetch;
    }
    const std::string path =
        absl::StrCat(objects_->api(), "/namespaces/", *name_space, "/", objects_->resource(),
                     "?labelSelector=", Encoded(objects_->selector()), query);
    const absl::StatusOr<int> answered = fetch.Get(*url, path);
    absl::Status status = answered.status();
    if (answered.ok())
      status = *answered == 200 ? take(&fetch) : Refused(*answered, *name_space, &fetch);
    MutexLock lock(&mutex_);
    running_ = nullptr;
    return status;
  }

  // What another answer than 200 means.
  absl::Status Refused(int status, const std::string& name_space, HttpFetch* fetch) const {
    const absl::StatusOr<std::string> body = fetch->ReadAll(kErrorBytesMax);
    const auto json = nlohmann::json::parse(body.ok() ? *body : "", nullptr, false);
    const std::string message =
        json.is_object() && json.contains("message") && json["message"].is_string()
            ? json["message"].get<std::string>()
            : "";
    const std::string text =
        absl::StrCat("the API server answered ", status, message.empty() ? "" : ": ", message);
    if (status == 410) return absl::OutOfRangeError(text);
    if (status == 401) return absl::UnavailableError(text + " (the token is not accepted)");
    if (status == 403) {
      return absl::UnavailableError(
          absl::StrCat(text, " (the service account needs a Role with list and watch of ",
                       objects_->resource(), " in ", name_space, ")"));
    }
    return absl::UnavailableError(text);
  }

  // What they say now, if it differs from what was told.
  void TellRecords() {
    absl::StatusOr<std::vector<ServiceRecord>> records = objects_->Records();
    if (!records.ok()) return TellFailure(records.status());
    for (ServiceRecord& record : *records) record.kind = kind_;
    if (!failed_ && *records == told_) return;
    failed_ = false;
    told_ = *records;
    Tell(*std::move(records));
  }

  void TellFailure(const absl::Status& status) {
    if (Stopping()) return;
    failed_ = true;
    Tell(status);
  }

  // A random share of it.
  Duration Share(Duration whole) {
    return std::chrono::duration_cast<Duration>(
        whole * std::uniform_real_distribution<double>(0, 1)(random_));
  }

  // False: stop.
  bool WaitAfterFailure() {
    constexpr int kDoublingsMax = 20;
    const Duration whole =
        std::min(options_.backoff_max,
                 options_.backoff_min * (int64_t{1} << std::min(failures_, kDoublingsMax)));
    ++failures_;
    return Wait(whole - Share(whole / 2));
  }

  const std::unique_ptr<K8sObjects> objects_;
  const ServiceKind kind_;
  const K8sOptions options_;
  const Clock* const clock_;

  // Of the thread.
  K8sAccount account_;
  std::mt19937_64 random_;
  std::vector<ServiceRecord> told_;
  bool failed_ = true;  // the last that was told was no records
  bool progress_ = false;
  int failures_ = 0;  // in a row

  Mutex mutex_;
  HttpFetch* running_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

std::unique_ptr<DirectorySource> MakeK8sSource(const K8sService& service,
                                               const DirectoryOptions& options) {
  return std::make_unique<K8sSource>(std::make_unique<EndpointSlices>(service), options);
}

std::unique_ptr<DirectorySource> MakeK8sPodsSource(const K8sPodsQuery& query,
                                                   const DirectoryOptions& options) {
  return std::make_unique<K8sSource>(std::make_unique<K8sPods>(query), options);
}

}  // namespace kvatlas
