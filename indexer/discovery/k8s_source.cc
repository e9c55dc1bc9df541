// Lists objects of Kubernetes, then watches them, on one thread (`Run`). What the objects are and
// say is behind `K8sObjects`; this file has the requests, the pace and the reports.

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

// Objects per page of a list, and bounds of what is read: a page, a line of a watch, the text of an
// error.
constexpr int kPageItems = 200;
constexpr size_t kPageBytesMax = 64 << 20;
constexpr size_t kLineBytesMax = 8 << 20;
constexpr size_t kErrorBytesMax = 64 << 10;
// A watch is read for this much longer than the server was asked to keep it, so that normally the
// server ends it.
constexpr Duration kWatchGrace = std::chrono::seconds(15);
constexpr Duration kForever = std::chrono::hours(24);

// For a value in a URL's query: all but unreserved characters as %XX.
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
  // Alternates as the header says: `List`, then `Watch` from its version, again and again, until an
  // error makes a new list necessary.
  // `progress_` is set by a watch that received a line, or that lasted for at least half of its
  // time: it resets the backoff, and the next watch begins at once. A watch that ends at once
  // without a word (a proxy that cuts it, for instance) counts as a failure for the pace, but needs
  // no new list.
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
        // OUT_OF_RANGE (410 Gone, an unreadable line) is no failure to report: a new list tells the
        // same and more.
        if (!absl::IsOutOfRange(status)) TellFailure(status);
      }
      if (!WaitAfterFailure()) return;
    }
  }

  // `running_` is set and cleared under `mutex_`, so the fetch is there while it is cancelled.
  void Interrupt() override {
    MutexLock lock(&mutex_);
    if (running_ != nullptr) running_->Cancel();
  }

  // Step 1. The pages take the place of all that was known only when the last one was read; a page
  // that fails begins anew. OK: the list is known and reported. OUT_OF_RANGE: list again (a page's
  // token may have expired).
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

  // Step 2. OK: the watch ended, by the server's time or with its connection; the next one goes on
  // from the last version read. The time is drawn at random between `watch_for` and twice that, so
  // that many processes do not ask again at once. OUT_OF_RANGE: list again.
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

  // Reads events, a JSON object per line, as they come in; each changes the objects and is reported
  // if that changes the records. An event that is malformed, or one too many, leaves the objects
  // unlike the server's: list again.
  absl::Status ReadWatch(HttpFetch* fetch) {
    std::string text;
    char piece[16 << 10];
    while (true) {
      const absl::StatusOr<size_t> got = fetch->Read(piece, sizeof piece);
      // The end and a broken connection are the same: the version says where to go on.
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

  // GET of the objects with `query`; `take` reads the body of a 200. Address, token and namespace
  // are looked up for each request, since tokens are replaced while the process runs.
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
      // Checked under `mutex_` together with setting `running_`: `Stop` first sets the flag, then
      // `Interrupt` cancels what runs, so no request can slip in between.
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

  // Another answer than 200 as a status, with the server's message and what an operator may do
  // about it. 410: the resource version, or the token of the next page, is too old.
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

  // Reports the records if they differ from the last report, or if that was a failure. Objects may
  // have no records to say (UNAVAILABLE): then the directory keeps what it has.
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

  // A random part of `whole`, evenly distributed.
  Duration Share(Duration whole) {
    return std::chrono::duration_cast<Duration>(
        whole * std::uniform_real_distribution<double>(0, 1)(random_));
  }

  // Waits `backoff_min` doubled with each failure in a row, at most `backoff_max`, shortened at
  // random by up to a half. `Refresh` ends the wait. False: stop.
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

  // Only the source's thread uses these.
  K8sAccount account_;
  std::mt19937_64 random_;
  std::vector<ServiceRecord> told_;
  bool failed_ = true;  // the last report was none of records
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
